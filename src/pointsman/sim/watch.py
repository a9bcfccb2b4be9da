"""What a gateway gets to know of a node, how often and how late: probes, reports, KV events.

It stands for the collectors: with their own intervals between probes, and with the scenario's
between reports (`Knowledge`).
"""

from collections import deque
from itertools import chain
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from pointsman.core.events import (
    CacheChanged,
    IndexTrust,
    IndexTrusted,
    NodeDescribed,
    NodeJoined,
    NodeProbed,
    NodeReported,
    NodeSignals,
)
from pointsman.core.health import WATCHED
from pointsman.core.ids import NodeId
from pointsman.core.limits import PROBE_RETRY_S, PROBE_S, PROBE_SUCCESSES_MIN
from pointsman.sim.clock import Clock, Timer
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import Changes, SimulatedNode
from pointsman.sim.scenario import Index, Knowledge

REPLAYED_MAX = 10_000
"""KV event messages that an engine can replay: vLLM's default `buffer_steps`. What is lost beyond
it is lost for good, and the index is not exact any more."""


class Message(NamedTuple):
    """What an incarnation tells of its cache."""

    number: int
    incarnation: int
    changes: Changes


class Watch:
    """One gateway's eyes on one node. Faults blind it; each of them can be there several times."""

    def __init__(
        self,
        clock: Clock,
        gateway: SimulatedGateway,
        node: SimulatedNode,
        knowledge: Knowledge,
        rng: Random,
    ) -> None:
        self._clock = clock
        self._gateway = gateway
        self._node = node
        self._knowledge = knowledge
        self._rng = rng
        self._partitions = 0
        self._freezes = 0
        self._failing = 0
        self._losses = [knowledge.event_loss]
        self._incarnation = 0  # the one that the scheduler knows
        self._successes = 0
        self._probing: Timer | None = None
        self._told: NodeSignals | None = None
        self._messages: deque[Message] = deque()  # that the scheduler does not know yet
        self._overran = False
        self._sent = 0
        self._arrived = 0
        self._first_reports_s = rng.uniform(0, knowledge.report_interval_s)
        node.on_changes.append(self._changed)

    def join(self) -> None:
        """The node is configured: it is probed at once, and for ever."""
        self._clock.after(self._first_reports_s, self._report)
        self._gateway.step(NodeJoined(self._node.spec))
        self._probe()

    @property
    def in_sync(self) -> bool:
        """Whether the scheduler has been told all that the node has told."""
        known = self._incarnation == self._node.incarnation
        return known and not self._messages and not self._overran

    @property
    def _node_id(self) -> NodeId:
        return self._gateway.node_ids[self._node.name]

    # --- faults ------------------------------------------------------------------------

    def partition(self) -> None:
        """Nothing arrives any more."""
        self._partitions += 1

    def reconnect(self) -> None:
        self._partitions -= 1

    def freeze(self) -> None:
        """Reports repeat the last one."""
        self._freezes += 1

    def thaw(self) -> None:
        self._freezes -= 1

    def fail_probes(self) -> None:
        """Probes fail, and the next one is due."""
        self._failing += 1
        self.probe_soon()

    def pass_probes(self) -> None:
        self._failing -= 1
        self.probe_soon()

    def lose_events(self, share: float) -> None:
        """Lose a share of its messages; of several shares the largest counts."""
        self._losses.append(share)

    def lose_no_more(self, share: float) -> None:
        self._losses.remove(share)

    # --- probes ------------------------------------------------------------------------

    def probe_soon(self) -> None:
        """Probe it early, since something speaks against it. A node that is in trouble already is
        probed often enough as it is."""
        if self._probing is None or self._successes < PROBE_SUCCESSES_MIN:
            return
        self._successes = 0
        self._probing.cancel()
        self._probing = self._clock.after(0.0, self._probe)

    def _probe(self) -> None:
        healthy = self._node.up and not self._partitions and not self._failing
        if healthy:
            self._successes += 1
            self._notice_restart()
        else:
            self._successes = 0
        if self._incarnation:
            detail = "" if healthy else "no answer to GET /health"
            self._gateway.step(NodeProbed(self._node_id, healthy=healthy, detail=detail))
        recovered = self._successes >= PROBE_SUCCESSES_MIN
        wait_s = PROBE_S if recovered and not self._is_watched else PROBE_RETRY_S
        self._probing = self._clock.after(wait_s, self._probe)

    @property
    def _is_watched(self) -> bool:
        return self._gateway.health.get(self._node.name) in WATCHED

    def _notice_restart(self) -> None:
        node = self._node
        if node.incarnation == self._incarnation:
            return
        if self._incarnation:
            self._gateway.step(NodeJoined(node.spec))
        self._incarnation = node.incarnation
        self._overran = False
        facts = node.facts if self._knowledge.kv_blocks else replace(node.facts, kv_blocks=None)
        self._gateway.step(NodeDescribed(self._node_id, facts))
        if self._knowledge.index is Index.PRECISE:
            self._gateway.step(IndexTrusted(self._node_id, IndexTrust.EXACT))
            self._tell()

    # --- reports -----------------------------------------------------------------------

    def _report(self) -> None:
        self._clock.after(self._knowledge.report_interval_s, self._report)
        signals = self._told if self._freezes else self._node.signals()
        if signals is None or self._partitions or not self._incarnation:
            return
        self._told = signals
        event = NodeReported(self._node_id, self._clock.now_s, signals)
        self._clock.after(self._knowledge.report_lag_s, self._gateway.step, event)

    # --- KV events ---------------------------------------------------------------------

    def _changed(self, changes: Changes) -> None:
        if self._knowledge.index is not Index.PRECISE:
            return
        self._sent += 1
        self._messages.append(Message(self._sent, self._node.incarnation, changes))
        if len(self._messages) > REPLAYED_MAX:
            self._messages.popleft()
            self._overran = True
        share = max(self._losses)
        lost = share > 0 and self._rng.random() < share
        if not lost and not self._partitions:
            self._clock.after(self._knowledge.event_lag_s, self._arrive, self._sent)

    def _arrive(self, number: int) -> None:
        """The gap before it is seen, if there is one, and what was lost is replayed in order."""
        self._arrived = number
        self._tell()

    def _tell(self) -> None:
        """What a new incarnation tells before it is known as one waits until then; what the one
        before it left behind is of no use any more."""
        messages, changes = self._messages, []
        while messages and messages[0].number <= self._arrived:
            if messages[0].incarnation > self._incarnation:
                break
            message = messages.popleft()
            if message.incarnation == self._incarnation:
                changes.append(message.changes)
        if changes:
            if self._overran:
                self._gateway.step(IndexTrusted(self._node_id, IndexTrust.DEGRADED))
            self._gateway.step(CacheChanged(self._node_id, tuple(chain.from_iterable(changes))))
