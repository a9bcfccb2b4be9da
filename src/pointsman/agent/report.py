"""Gathers what is to be told of one engine: its collector's events go in, its part of a heartbeat
comes out."""

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from pointsman.agent.front import Front
from pointsman.collectors.link import NodeLink
from pointsman.core.block_set import BlockSet
from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheChange,
    ChainStored,
)
from pointsman.core.engine_blocks import EngineBlocks
from pointsman.core.events import (
    CacheChanged,
    Event,
    IndexTrust,
    IndexTrusted,
    NodeDescribed,
    NodeFacts,
    NodeJoined,
    NodeProbed,
    NodeReported,
    NodeSignals,
    NodeSpec,
)
from pointsman.core.ids import BlockHash, NodeId
from pointsman.wire.control import (
    Announce,
    Bucket,
    EngineBeat,
    MalformedFrame,
    pack_hashes,
    to_wire,
)

BLOCKS_DEFAULT = 1 << 19
"""Blocks that an engine of unknown capacity is taken to have; the scheduler assumes the same."""

BUCKET_HASHES = 1 << 15
"""The most hashes in one `bucket` frame: 256 KiB."""

_DETAIL_CHARS = 200


class EngineReport:
    """A `NodeSink` for one engine. `wake` is called when a heartbeat should not wait.

    `told` is what the scheduler has been told: the engine's blocks without what is pending.
    """

    def __init__(
        self,
        number: int,
        spec: NodeSpec,
        *,
        clock: Callable[[], float],
        wake: Callable[[], None],
        delta_blocks: int,
    ) -> None:
        self.number = number
        self.spec = spec
        self.now_s = clock
        self.link: NodeLink | None = None  # its collector's; set before that runs
        self.incarnation = 0
        self.draining = False
        self.told = BlockSet(BLOCKS_DEFAULT)
        self.front: Front | None = None  # what is in front of the engine
        self._wake = wake
        self._delta_blocks = delta_blocks
        self._facts: NodeFacts | None = None
        self._is_announced = False
        self._well_at_s = float("-inf")
        self._signals: NodeReported | None = None
        self._extra = NodeSignals()
        self._probe: NodeProbed | None = None
        self._trust = IndexTrust.HISTORY
        self._engine: EngineBlocks | None = None
        self._pending: dict[BlockHash, bool] = {}  # block -> whether the engine holds it now

    def local_spec(self, url: str) -> NodeSpec:
        """The engine's spec as its collector reaches it."""
        return msgspec.structs.replace(self.spec, url=url)

    # --- from the collector: NodeSink ---------------------------------------------------

    def submit(self, event: Event) -> None:
        match event:
            case NodeJoined():
                self._begin()
            case NodeDescribed():
                self._facts, self._is_announced = event.facts, False
                self._well_at_s = self.now_s()
                self._wake()
            case NodeReported():
                self._reported(event)
            case NodeProbed():
                self._probed(event)
            case IndexTrusted():
                self._trust = event.trust
            case CacheChanged():
                self._changed(event.changes)
            case _:
                pass  # leaving and draining are told by whoever asks for them

    def drain(self) -> None:
        """Tell with the next heartbeat that nothing new should come."""
        self.draining = True
        if self.front is not None:
            self.front.draining = True
        self._wake()

    def look_again(self) -> None:
        """Note that the load is worth knowing now."""
        if self.link is not None:
            self.link.scrape_soon.set()

    def died(self, detail: str) -> None:
        """Note that the engine's process is no more, and that nothing should be sent there."""
        self.draining = True
        if self.link is not None and self.link.node_id is not None:
            self._probe = NodeProbed(self.link.node_id, healthy=False, detail=detail)
        self._wake()

    def respawned(self) -> None:
        """Note that another process begins in its place."""
        self.draining = False
        if self.link is not None and self.link.node_id is not None:
            self.link.restarted("its process ended")

    @property
    def is_described(self) -> bool:
        return self.link is not None and self.link.described.is_set()

    @property
    def silent_s(self) -> float:
        """How long the engine has given no sign of being well."""
        return self.now_s() - self._well_at_s

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits, as far as can be seen."""
        if self.front is not None:
            return not (self.front.queue.running or self.front.queue.waiting)
        signals = self._signals.signals if self._signals is not None else NodeSignals()
        return not (signals.running or signals.waiting)

    def observe(self, extra: NodeSignals) -> None:
        """Take what the machine says beside the engine: signals that no engine gives."""
        self._extra = extra

    def _begin(self) -> None:
        """Begin with a fresh process: what was known of the former is void."""
        assert self.link is not None, "no collector yet"
        self.incarnation += 1
        self.link.node_id = NodeId(self.incarnation)
        self.told = BlockSet(BLOCKS_DEFAULT)
        self._facts = self._signals = self._probe = self._engine = None
        self._trust = IndexTrust.HISTORY
        self._pending.clear()
        self._is_announced = False
        self._wake()

    def _reported(self, event: NodeReported) -> None:
        try:
            to_wire(event.signals)
        except MalformedFrame:
            return  # a metrics page with numbers that make no sense: the last ones age
        self._signals = event
        if self.front is not None:
            self.front.engine_says(event.signals.running, event.signals.waiting)

    def _probed(self, event: NodeProbed) -> None:
        self._probe = event
        if event.healthy:
            self._well_at_s = self.now_s()
        else:
            self._wake()

    # --- its cache ----------------------------------------------------------------------

    def _changed(self, changes: Sequence[CacheChange | ChainStored]) -> None:
        if self._engine is None:
            self._engine = self._follow()
        for change in changes:
            match change:
                case BlockStored():
                    self._note(self._engine.stored(change), held=True)
                case ChainStored():
                    self._note(self._engine.chained(change.hashes), held=True)
                case BlockRemoved():
                    self._note(self._engine.removed(change), held=False)
                case AllBlocksCleared():
                    self._engine.cleared()
                    self._note([b for b, held in self._pending.items() if held], held=False)
                    self._note(self.told.blocks(), held=False)
        if self.link is not None:
            self.link.placed()  # it works: its load is worth knowing
        if len(self._pending) >= self._delta_blocks:
            self._wake()

    def _follow(self) -> EngineBlocks:
        facts = self._facts or NodeFacts()
        served = [card.name for card in facts.models if card.parent is None]
        base = next(iter(self.spec.models or served), "")
        blocks_max = 2 * (facts.kv_blocks or BLOCKS_DEFAULT)
        self.told = BlockSet(blocks_max)
        return EngineBlocks(base, blocks_max)

    def _note(self, hashes: Sequence[BlockHash], *, held: bool) -> None:
        """Note what the engine holds, or holds no longer. What of that has not been told is
        pending."""
        pending, told = self._pending, self.told
        for block in hashes:
            if (block in told) is held:
                pending.pop(block, None)
            else:
                pending[block] = held

    # --- to the scheduler ---------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether changes are left that are worth telling at once."""
        return len(self._pending) >= self._delta_blocks

    def connected(self) -> None:
        """Start over for a new connection: whoever is told from here on knows nothing yet."""
        self._is_announced = False

    def announcement(self) -> Announce | None:
        """What is new of the engine itself."""
        if self._is_announced or not self.incarnation:
            return None
        self._is_announced = True
        return Announce(self.number, self.incarnation, self.spec, self._facts)

    def beat(self, hashes_max: int) -> EngineBeat:
        """What is new since the last beat, with at most so many block hashes. From here on it
        counts as told."""
        stored, removed = self._take(hashes_max)
        probe, self._probe = self._probe, None
        signals, age_ms = self._current_signals()
        return EngineBeat(
            engine=self.number,
            incarnation=self.incarnation,
            trust=self._trust,
            blocks=len(self.told),
            digest=self.told.digest,
            stored=pack_hashes(stored),
            removed=pack_hashes(removed),
            age_ms=age_ms,
            signals=None if signals is None else to_wire(signals),
            healthy=None if probe is None else probe.healthy,
            detail="" if probe is None else probe.detail[:_DETAIL_CHARS],
            draining=self.draining,
        )

    def differing(self, digests: Sequence[int]) -> Sequence[int]:
        """The buckets of which the scheduler has another digest."""
        own = self.told.bucket_digests()
        return [n for n, (a, b) in enumerate(zip(own, digests, strict=True)) if a != b]

    def bucket(self, number: int) -> Sequence[Bucket]:
        """All that was told of one bucket, in frames."""
        hashes = self.told.bucket(number)
        starts = range(0, max(len(hashes), 1), BUCKET_HASHES)
        return [
            Bucket(
                engine=self.number,
                incarnation=self.incarnation,
                bucket=number,
                hashes=pack_hashes(hashes[at : at + BUCKET_HASHES]),
                more=at + BUCKET_HASHES < len(hashes),
            )
            for at in starts
        ]

    def _take(self, hashes_max: int) -> tuple[list[BlockHash], list[BlockHash]]:
        if len(self._pending) <= hashes_max:
            taken, self._pending = self._pending, {}
        else:
            taken = dict(islice(self._pending.items(), hashes_max))
            for block in taken:
                del self._pending[block]
        stored = [block for block, held in taken.items() if held]
        removed = [block for block, held in taken.items() if not held]
        return self.told.add(stored), self.told.remove(removed)

    def _current_signals(self) -> tuple[NodeSignals | None, int]:
        """The signals of the engine with the machine's own, and their age in milliseconds."""
        extra = {
            name: value
            for name, value in msgspec.structs.asdict(self._extra).items()
            if value is not None
        }
        if self._signals is None:
            return (NodeSignals(**extra), 0) if extra else (None, 0)
        if self.front is not None and self.front.queue.waiting:
            extra["waiting"] = (self._signals.signals.waiting or 0) + self.front.queue.waiting
        age_s = max(0.0, self.now_s() - self._signals.at_s)
        return msgspec.structs.replace(self._signals.signals, **extra), round(age_s * 1_000)
