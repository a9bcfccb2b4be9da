"""What a gateway gets to know of a node, how often and how late: probes, reports, KV events.

It stands for the collectors of the control service, with their intervals.
"""

from collections.abc import Sequence
from itertools import chain
from random import Random

from pointsman.core.events import (
    CacheChange,
    CacheChanged,
    ChainStored,
    IndexTrust,
    IndexTrusted,
    NodeDescribed,
    NodeJoined,
    NodeProbed,
    NodeReported,
    NodeSignals,
)
from pointsman.sim.clock import Clock, Timer
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import SimulatedNode
from pointsman.sim.scenario import Index, Knowledge

PROBE_INTERVAL_S = 10.0
PROBE_RETRY_S = 1.0
SUCCESSES_TO_RECOVER = 2
"""As the prober of the control service has them."""

Changes = Sequence[CacheChange | ChainStored]
Message = tuple[int, Changes]
"""What an incarnation tells."""


class Watch:
    """One gateway's eyes on one node. Faults blind it by `partitioned`, `stale` and so on."""

    def __init__(
        self,
        clock: Clock,
        gateway: SimulatedGateway,
        node: SimulatedNode,
        knowledge: Knowledge,
        rng: Random,
    ) -> None:
        self.partitioned = False
        self.stale = False
        self.flaps = False
        self.event_loss = self.event_loss_usual = knowledge.event_loss
        self._clock = clock
        self._gateway = gateway
        self._node = node
        self._knowledge = knowledge
        self._rng = rng
        self._incarnation = 0  # the one that the scheduler knows
        self._successes = 0
        self._told: NodeSignals | None = None
        self._lost: list[Message] = []
        self._probing: Timer | None = None
        self._first_reports_s = rng.uniform(0, knowledge.report_interval_s)
        node.on_changes.append(self._changed)

    def join(self) -> None:
        """The node is configured: it is probed at once, and for ever."""
        self._clock.after(self._first_reports_s, self._report)
        self._gateway.step(NodeJoined(self._node.spec))
        self._probe()

    def probe_soon(self) -> None:
        """A request failed there."""
        self._successes = 0
        if self._probing is not None:
            self._probing.cancel()
        self._probing = self._clock.after(0.0, self._probe)

    # --- probes ------------------------------------------------------------------------

    def _probe(self) -> None:
        healthy = self._node.up and not self.partitioned and not self.flaps
        if healthy:
            self._successes += 1
            self._notice_restart()
        else:
            self._successes = 0
        node_id = self._gateway.node_ids[self._node.name]
        if self._incarnation:
            detail = "" if healthy else "no answer to GET /health"
            self._gateway.step(NodeProbed(node_id, healthy=healthy, detail=detail))
        recovered = self._successes >= SUCCESSES_TO_RECOVER
        wait_s = PROBE_INTERVAL_S if recovered else PROBE_RETRY_S
        self._probing = self._clock.after(wait_s, self._probe)

    def _notice_restart(self) -> None:
        node = self._node
        if node.incarnation == self._incarnation:
            return
        if self._incarnation:
            self._gateway.step(NodeJoined(node.spec))
        self._incarnation = node.incarnation
        node_id = self._gateway.node_ids[node.name]
        self._gateway.step(NodeDescribed(node_id, node.facts))
        if self._knowledge.index is Index.PRECISE:
            self._gateway.step(IndexTrusted(node_id, IndexTrust.EXACT))

    # --- reports -----------------------------------------------------------------------

    def _report(self) -> None:
        self._clock.after(self._knowledge.report_interval_s, self._report)
        signals = self._told if self.stale else self._node.signals()
        if signals is None or self.partitioned or not self._incarnation:
            return
        self._told = signals
        self._clock.after(
            self._knowledge.report_lag_s, self._deliver_report, signals, self._clock.now_s
        )

    def _deliver_report(self, signals: NodeSignals, at_s: float) -> None:
        node_id = self._gateway.node_ids[self._node.name]
        self._gateway.step(NodeReported(node_id, at_s, signals))

    # --- KV events ---------------------------------------------------------------------

    def _changed(self, changes: Changes) -> None:
        if self._knowledge.index is not Index.PRECISE:
            return
        self._lost.append((self._node.incarnation, changes))
        lost = self.event_loss and self._rng.random() < self.event_loss
        if self.partitioned or lost:
            return
        # The gap in the sequence is seen, and what was lost is replayed in order.
        messages, self._lost = self._lost, []
        self._clock.after(self._knowledge.event_lag_s, self._deliver, messages)

    def _deliver(self, messages: list[Message]) -> None:
        """What a new incarnation tells before it is known as one waits until then."""
        known = [changes for told_by, changes in messages if told_by == self._incarnation]
        early = [message for message in messages if message[0] > self._incarnation]
        self._lost[:0] = early
        if known:
            node_id = self._gateway.node_ids[self._node.name]
            self._gateway.step(CacheChanged(node_id, tuple(chain.from_iterable(known))))
