"""What befalls the nodes, and when.

Faults may overlap, also on one node: two crashes keep it down until the later one is over, two
slow-downs multiply, two hangs last until the later end. A fault that begins before a node is
switched on changes how it starts; one whose end nobody lives to see does no harm.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from pointsman.core.ids import NodeName
from pointsman.sim.clock import Clock
from pointsman.sim.node import SimulatedNode
from pointsman.sim.scenario import Fault, FaultKind
from pointsman.sim.watch import Watch


class Faults:
    """Schedules all of a scenario's. Raises ValueError for a node that is not there."""

    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[NodeName, SimulatedNode],
        watches: Mapping[NodeName, Sequence[Watch]],
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._watches = watches

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Put all of them on the clock."""
        for fault in faults:
            for place, name in enumerate(dict.fromkeys(fault.nodes) or self._nodes):
                node = self._nodes.get(NodeName(name))
                if node is None:
                    raise ValueError(
                        f"a fault names the node {name!r}. Remedy: {_names(list(self._nodes))}."
                    )
                for begin_s in fault.begins_s(place):
                    self._schedule(fault, node, begin_s)

    def _schedule(self, fault: Fault, node: SimulatedNode, begin_s: float) -> None:
        end_s = begin_s + fault.duration_s
        match fault.kind:
            case FaultKind.CRASH:
                self._between(begin_s, end_s, node.crash, node.recover)
            case FaultKind.SLOW:
                self._clock.at(begin_s, node.slow_down, fault.factor)
                self._clock.at(end_s, node.speed_up, fault.factor)
            case FaultKind.HANG:
                self._clock.at(begin_s, node.hang, fault.duration_s)
            case FaultKind.PARTITION:
                for watch in self._watches[node.name]:
                    self._between(begin_s, end_s, watch.partition, watch.reconnect)
            case FaultKind.STALE:
                for watch in self._watches[node.name]:
                    self._between(begin_s, end_s, watch.freeze, watch.thaw)
            case FaultKind.FLAP:
                for watch in self._watches[node.name]:
                    self._clock.at(begin_s, self._flap, watch, fault.period_s, end_s)
            case FaultKind.EVENT_LOSS:
                for watch in self._watches[node.name]:
                    self._clock.at(begin_s, watch.lose_events, fault.factor)
                    self._clock.at(end_s, watch.lose_no_more, fault.factor)
            case _:
                assert_never(fault.kind)

    def _between(
        self, begin_s: float, end_s: float, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self._clock.at(begin_s, begin)
        self._clock.at(end_s, end)

    def _flap(self, watch: Watch, period_s: float, end_s: float) -> None:
        """Probes fail for a period and succeed for the next one; they succeed after the end."""
        now_s = self._clock.now_s
        if now_s >= end_s:
            return
        watch.fail_probes()
        self._clock.at(min(now_s + period_s, end_s), watch.pass_probes)
        self._clock.at(now_s + 2 * period_s, self._flap, watch, period_s, end_s)


def _names(names: Sequence[NodeName]) -> str:
    if len(names) == 1:
        return f"the only node is {names[0]}"
    return f"nodes are {names[0]} to {names[-1]}"
