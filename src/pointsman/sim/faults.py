"""What befalls the nodes, and when."""

from collections.abc import Mapping, Sequence

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
        """All of them, from the beginning on."""
        for fault in faults:
            for name in fault.nodes or self._nodes:
                node = self._nodes.get(NodeName(name))
                if node is None:
                    last = list(self._nodes)[-1]
                    raise ValueError(
                        f"a fault names the node {name!r}. Remedy: nodes are node-0 to {last}."
                    )
                self._clock.at(fault.at_s, self._begin, fault, node)
                self._clock.at(fault.at_s + fault.duration_s, self._end, fault, node)

    def _begin(self, fault: Fault, node: SimulatedNode) -> None:
        match fault.kind:
            case FaultKind.CRASH:
                node.crash()
            case FaultKind.SLOW:
                node.slow_down(fault.factor)
            case FaultKind.HANG:
                node.hang(fault.duration_s)
            case FaultKind.FLAP:
                self._flap(fault, node, until_s=fault.at_s + fault.duration_s)
            case _:
                self._blind(fault, node)

    def _end(self, fault: Fault, node: SimulatedNode) -> None:
        match fault.kind:
            case FaultKind.CRASH:
                if not node.up:
                    node.boot()
            case FaultKind.SLOW:
                node.slow_down(1.0)
            case FaultKind.HANG:
                pass
            case FaultKind.FLAP:
                for watch in self._watches[node.name]:
                    watch.flaps = False
            case _:
                self._see(fault, node)

    def _blind(self, fault: Fault, node: SimulatedNode) -> None:
        for watch in self._watches[node.name]:
            match fault.kind:
                case FaultKind.PARTITION:
                    watch.partitioned = True
                case FaultKind.STALE:
                    watch.stale = True
                case _:
                    watch.event_loss = min(1.0, fault.factor)

    def _see(self, fault: Fault, node: SimulatedNode) -> None:
        for watch in self._watches[node.name]:
            match fault.kind:
                case FaultKind.PARTITION:
                    watch.partitioned = False
                case FaultKind.STALE:
                    watch.stale = False
                case _:
                    watch.event_loss = watch.event_loss_usual

    def _flap(self, fault: Fault, node: SimulatedNode, until_s: float) -> None:
        if self._clock.now_s >= until_s:
            return
        for watch in self._watches[node.name]:
            watch.flaps = not watch.flaps
            watch.probe_soon()
        self._clock.after(fault.period_s, self._flap, fault, node, until_s)
