"""One engine that an agent tells of: what it says becomes events of its node."""

import logging
from collections.abc import Callable

from pointsman.collectors.link import NodeLink
from pointsman.control.fleet import Fleet
from pointsman.control.service import SchedulerService
from pointsman.core.block_set import BlockSet
from pointsman.core.events import (
    CacheTold,
    IndexTrust,
    IndexTrusted,
    NodeDescribed,
    NodeFacts,
    NodeProbed,
    NodeReported,
)
from pointsman.core.ids import BlockHash
from pointsman.wire.control import (
    Announce,
    Bucket,
    Compare,
    EngineBeat,
    from_wire,
    pack_hashes,
    unpack_hashes,
)

BEATS_BETWEEN_COMPARISONS = 2
"""An answer may be under way while the next beat comes."""

COMPARISONS_MAX = 5
"""Comparisons in a row after which two copies are not going to agree: a bug, or an agent that
cannot count. Then only every `BEATS_AFTER_GIVING_UP`th beat tries again."""

BEATS_AFTER_GIVING_UP = 120

BEATS_TO_CATCH_UP = 20
"""For an agent that has just started to find the engine's events, while what our own subscription
has learned is still better than nothing: 10 s."""

BUCKET_BLOCKS_MAX = 1 << 20
"""Blocks of one bucket, over all its frames: 64 of them are more than the index has room for."""

log = logging.getLogger(__name__)


class AttendedEngine:
    """Mutable, one for each engine of a connection."""

    def __init__(
        self,
        number: int,
        link: NodeLink,
        service: SchedulerService,
        ask: Callable[[Compare], None],
    ) -> None:
        self.number = number
        self.link = link
        self.incarnation: int | None = None
        self.announcement: Announce | None = None  # the last one
        self._service = service
        self._ask = ask
        self._was_followed = bool(link.sources)  # by our own subscription
        self._trust: IndexTrust | None = None
        self._beat: EngineBeat | None = None  # the last one that told of blocks
        self._bucket: list[BlockHash] = []
        self._ask_from_seq = 0
        self._comparisons = 0
        self._agreed = False
        self._draining = False

    def announce(self, frame: Announce, *, known: int | None) -> None:
        """Its facts, and maybe that it restarted: `known` is the incarnation that this agent
        has told of before, also on an earlier connection."""
        if known is not None and known != frame.incarnation:
            self.link.restarted("its agent says so")
            self._trust = self._beat = None
        self.incarnation = frame.incarnation
        self.announcement = frame
        if frame.facts is not None:
            self._describe(frame.facts)

    def _describe(self, facts: NodeFacts) -> None:
        if not self.link.described.is_set():
            self.link.describe(facts)
        elif facts != self.link.facts and self.link.node_id is not None:
            self.link.facts = facts
            self._service.submit(NodeDescribed(self.link.node_id, facts))

    @property
    def is_removed(self) -> bool:
        """Whether its node is gone: an operator, or another configuration, wants it so."""
        return self.link.node_id is None

    # --- heartbeats ---------------------------------------------------------------------

    def beat(self, beat: EngineBeat, seq: int, waited_s: float) -> None:
        """Take in what is new of the engine, and may have waited here for so long. Raises
        MalformedFrame."""
        node_id, tally = self.link.node_id, self.link.tally
        if node_id is None or beat.incarnation != self.incarnation:
            return
        tally.agent_beats.add()
        if beat.signals is not None:
            at_s = self._service.now_s() - waited_s - beat.age_ms / 1_000
            self._service.submit(NodeReported(node_id, at_s, from_wire(beat.signals)))
        if beat.healthy is False:
            self._service.submit(NodeProbed(node_id, healthy=False, detail=beat.detail))
            self.link.probe_soon.set()  # whether it has recovered is seen from here
        if beat.draining is not self._draining:
            self._draining = beat.draining
            self.link.drain(beat.draining)
        if beat.trust is not IndexTrust.HISTORY:
            self._tell(beat, seq)
        elif self._was_followed and self._beat is None and seq <= BEATS_TO_CATCH_UP:
            self._trusted(IndexTrust.DEGRADED)
        else:
            self._trusted(IndexTrust.HISTORY)

    def _tell(self, beat: EngineBeat, seq: int) -> None:
        assert self.link.node_id is not None, "checked by the caller"
        stored, removed = unpack_hashes(beat.stored), unpack_hashes(beat.removed)
        self._service.submit(CacheTold(self.link.node_id, stored, removed))
        self._beat = beat
        told = self._told()
        if told is None or told.overflows:
            return  # not believed, or more than there is room for
        if not self._agrees(told, beat) and seq >= self._ask_from_seq:
            self._compare(told, seq)

    def bucket(self, frame: Bucket) -> None:
        """Take in one part of all that its cache holds. Raises MalformedFrame."""
        node_id = self.link.node_id
        if node_id is None or frame.incarnation != self.incarnation:
            return
        if len(self._bucket) < BUCKET_BLOCKS_MAX:
            self._bucket += unpack_hashes(frame.hashes)
        if frame.more:
            return
        hashes, self._bucket = self._bucket, []
        self._service.submit(CacheTold(node_id, hashes, bucket=frame.bucket))
        told = self._told()
        if told is not None and self._beat is not None:
            self._agrees(told, self._beat)

    def _told(self) -> BlockSet | None:
        assert self.link.node_id is not None, "checked by the caller"
        return self._service.scheduler.told(self.link.node_id)

    def _agrees(self, told: BlockSet, beat: EngineBeat) -> bool:
        """Whether both sides have the same blocks; only then is the index what the agent says."""
        agrees = told.digest == beat.digest and len(told) == beat.blocks
        self._trusted(beat.trust if agrees else IndexTrust.DEGRADED)
        if agrees:
            self._agreed, self._comparisons = True, 0
        return agrees

    def _compare(self, told: BlockSet, seq: int) -> None:
        assert self.incarnation is not None, "beats follow an announcement"
        if self._agreed:
            self._agreed = False
            self.link.tally.index_drifts.add()
            log.info("engine %s: the index differs from its agent's", self.link.spec.name)
        self._comparisons += 1
        if self._comparisons == COMPARISONS_MAX:
            log.warning("engine %s: index and agent never agree", self.link.spec.name)
        often = self._comparisons < COMPARISONS_MAX
        self._ask_from_seq = seq + (BEATS_BETWEEN_COMPARISONS if often else BEATS_AFTER_GIVING_UP)
        self._ask(Compare(self.number, self.incarnation, pack_hashes(told.bucket_digests())))

    def _trusted(self, trust: IndexTrust) -> None:
        if trust is self._trust or self.link.node_id is None:
            return
        self._trust = trust
        log.info("engine %s: its cache index is %s", self.link.spec.name, trust)
        self._service.submit(IndexTrusted(self.link.node_id, trust))

    # --- the agent is gone --------------------------------------------------------------

    def lost(self) -> None:
        """Nobody tells of changes: what is known of its cache may be stale from here on."""
        self.link.tally.agent_losses.add()
        if self._trust is IndexTrust.EXACT:
            self._trusted(IndexTrust.DEGRADED)

    def give_up(self, fleet: Fleet) -> None:
        """The agent did not come back: the collectors take over, from nothing."""
        if not self.link.attended.is_set():
            return
        self._trusted(IndexTrust.HISTORY)
        if self._draining:
            self.link.drain(False)
        fleet.leave_alone(self.link)
