"""The nodes over time, in samples at even distances."""

from collections.abc import Sequence

from pointsman.sim.clock import Clock
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import SimulatedNode
from pointsman.traffic.replayed import NodeSeries, Series

SAMPLES_MAX = 240
"""More than a plot is wide in pixels help nobody; when they are reached, every second one goes
and the distance doubles."""

NODES_MAX = 64
"""Nodes that are sampled: of more, those at even distances in order of their names."""


class Sampler:
    """Samples from the beginning until the clock stops."""

    def __init__(
        self,
        clock: Clock,
        nodes: Sequence[SimulatedNode],
        gateways: Sequence[SimulatedGateway],
        interval_s: float,
    ) -> None:
        stride = -(-len(nodes) // NODES_MAX)
        self._clock = clock
        self._nodes = nodes[::stride]
        self._gateways = gateways
        self._interval_s = interval_s
        self._times_s: list[float] = []
        self._held: list[int] = []
        self._rows: list[list[tuple[int, int, float, float]]] = []

    def begin(self) -> None:
        self._sample()

    def series(self) -> Series:
        """What was seen."""
        columns = [list(zip(*column, strict=True)) for column in zip(*self._rows, strict=True)]
        return Series(
            times_s=tuple(self._times_s),
            held=tuple(self._held),
            nodes=tuple(
                NodeSeries(
                    node=node.name,
                    running=running,
                    waiting=waiting,
                    kv_usage=kv_usage,
                    remaining_s=remaining_s,
                )
                for node, (running, waiting, kv_usage, remaining_s) in zip(
                    self._nodes, columns, strict=True
                )
            ),
        )

    def _sample(self) -> None:
        if len(self._times_s) == SAMPLES_MAX:
            self._interval_s *= 2
            for column in (self._times_s, self._held, self._rows):
                del column[1::2]
        self._times_s.append(round(self._clock.now_s, 6))
        self._held.append(sum(gateway.scheduler.held for gateway in self._gateways))
        self._rows.append([_picture(node) for node in self._nodes])
        self._clock.after(self._interval_s, self._sample)


def _picture(node: SimulatedNode) -> tuple[int, int, float, float]:
    if node.engine is None:
        return 0, 0, 0.0, 0.0
    model = node.engine.model
    return model.running, model.waiting, round(model.kv_usage, 4), round(node.remaining_s(), 4)
