"""vLLM's KV-cache events (SGLang publishes the same): which blocks an engine holds.

On the wire: ZMQ PUB, three frames: topic, sequence number (8 bytes, big-endian), payload
(msgpack). A payload is `[ts, [event, ...], data_parallel_rank]`. Events are maps with a `type`
(vLLM from 0.23 on, PR 42892) or arrays that begin with it (before, and SGLang); one interim
build had the batch as a map too. Both shapes are taken at both levels, unknown fields are
ignored, unknown events counted.

Hashes are the engine's own and opaque: uint64, or the digest's bytes, by its settings.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheChange,
)
from pointsman.decoding import Undecodable, decoded, decoded_or_none

PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
"""A step's events of a 1M-token prompt are about 4 MB; beyond this it is no KV event."""

END_OF_REPLAY_SEQ = 2**64 - 1
"""The sequence number -1 that ends the answers to a replay request."""


class EventBatch(msgspec.Struct, frozen=True, gc=False):
    """One scheduler step's events. `ts_s` is the engine's wall clock, in seconds;
    `skipped` counts events of unknown type."""

    ts_s: float
    events: tuple[CacheChange, ...]
    data_parallel_rank: int | None = None
    skipped: int = 0


class Message(msgspec.Struct, frozen=True, gc=False):
    """One ZMQ message, or the mark that ends a replay (then its batch is empty)."""

    topic: str
    seq: int
    batch: EventBatch

    @property
    def ends_replay(self) -> bool:
        return self.seq == END_OF_REPLAY_SEQ


class MalformedEvent(Exception):  # noqa: N818 - named by whose fault it is
    """A message that is no KV-event message; says what is wrong and where."""


def decode_message(frames: Sequence[bytes]) -> Message:
    """A live message or a replay's answer, with or without topic. Raises MalformedEvent.

    The last two frames are sequence number and payload in every version and direction.
    """
    if len(frames) < 2:
        raise MalformedEvent(f"message: {len(frames)} frame(s), at least seq and payload expected")
    seq_bytes, payload = frames[-2], frames[-1]
    if len(seq_bytes) != 8:
        raise MalformedEvent(f"frame {len(frames) - 2}: seq of {len(seq_bytes)} bytes, not 8")
    topic = frames[-3].decode(errors="replace") if len(frames) > 2 else ""
    seq = int.from_bytes(seq_bytes)
    if seq == END_OF_REPLAY_SEQ:
        return Message(topic, seq, _NO_EVENTS)
    return Message(topic, seq, decode_batch(payload))


def decode_batch(payload: bytes) -> EventBatch:
    """A message's payload, in any of its shapes. Raises MalformedEvent."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise MalformedEvent(f"payload: {len(payload)} bytes, limit {PAYLOAD_BYTES_MAX}")
    for decode in (_decode_maps, _decode_rows):
        if (batch := decoded_or_none(decode, payload)) is not None:
            return batch.public()
    return _decode_any_shape(payload)


_NO_EVENTS = EventBatch(0.0, ())


class _Batch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The common shape: an array of events as maps, all of known types."""

    ts: float
    events: tuple[CacheChange, ...]
    data_parallel_rank: int | None = None

    def public(self) -> EventBatch:
        return EventBatch(self.ts, self.events, self.data_parallel_rank)


class _StoredRow(BlockStored, array_like=True, frozen=True, gc=False):
    def public(self) -> BlockStored:
        return BlockStored(*astuple(self))


class _RemovedRow(BlockRemoved, array_like=True, frozen=True, gc=False):
    def public(self) -> BlockRemoved:
        return BlockRemoved(*astuple(self))


class _ClearedRow(AllBlocksCleared, array_like=True, frozen=True, gc=False):
    def public(self) -> AllBlocksCleared:
        return AllBlocksCleared()


_Row: TypeAlias = _StoredRow | _RemovedRow | _ClearedRow


class _RowBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The older shape: an array of events as arrays, all of known types."""

    ts: float
    events: tuple[_Row, ...]
    data_parallel_rank: int | None = None

    def public(self) -> EventBatch:
        events = tuple([row.public() for row in self.events])
        return EventBatch(self.ts, events, self.data_parallel_rank)


class _RawBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    ts: float
    events: list[Raw]
    data_parallel_rank: int | None = None


class _RawBatchMap(_RawBatch, array_like=False, frozen=True, gc=False):
    pass


class _TypeMap(msgspec.Struct, frozen=True, gc=False):
    type: str


class _TypeRow(_TypeMap, array_like=True, frozen=True, gc=False):
    pass


def _decode_any_shape(payload: bytes) -> EventBatch:
    """Event by event: older encodings, unknown types, and the place of what is malformed."""
    try:
        batch = decoded(_decode_raw_map if _is_map(payload) else _decode_raw, payload)
    except Undecodable as error:
        raise MalformedEvent(f"batch: {error}") from None
    events: list[CacheChange] = []
    for index, raw in enumerate(batch.events):
        try:
            event = decoded(_decode_event, bytes(raw))
        except Undecodable as error:
            raise MalformedEvent(f"event {index}: {error}") from None
        if event is not None:
            events.append(event)
    skipped = len(batch.events) - len(events)
    return EventBatch(batch.ts, tuple(events), batch.data_parallel_rank, skipped)


def _decode_event(data: bytes) -> CacheChange | None:
    """One event of either shape; None for a type that is not known."""
    if _is_map(data):
        known = _decode_type_map(data).type in _KNOWN
        return _decode_map_event(data) if known else None
    known = _decode_type_row(data).type in _KNOWN
    return _decode_row(data).public() if known else None


def _is_map(data: bytes) -> bool:
    """Whether msgpack `data` begins a map (fixmap, map 16, map 32)."""
    first = data[0] if data else 0
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)


_KNOWN = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})

_decode_maps: Callable[[bytes], _Batch | _RowBatch] = msgspec.msgpack.Decoder(_Batch).decode
_decode_rows = msgspec.msgpack.Decoder(_RowBatch).decode
_decode_raw: Callable[[bytes], _RawBatch | _RawBatchMap] = msgspec.msgpack.Decoder(_RawBatch).decode
_decode_raw_map = msgspec.msgpack.Decoder(_RawBatchMap).decode
_decode_map_event: Callable[[bytes], CacheChange] = msgspec.msgpack.Decoder(CacheChange).decode
_decode_type_map = msgspec.msgpack.Decoder(_TypeMap).decode
_decode_type_row = msgspec.msgpack.Decoder(_TypeRow).decode
_decode_row: Callable[[bytes], _Row] = msgspec.msgpack.Decoder(_Row).decode


class SequenceVerdict(StrEnum):
    """What a sequence number means. Only FIRST and NEXT take the message."""

    FIRST = "first"
    NEXT = "next"
    DUPLICATE = "duplicate"  # drop it: a replay already brought it
    GAP = "gap"  # not taken: replay from `expected`, or `resync`; then feed it again
    RESTARTED = "restarted"  # not taken: clear what the engine held, then feed it again


class SequenceTracker:
    """Follows one publisher's sequence numbers, live and replayed. Two numbers of state.

    ZMQ neither reorders nor repeats, so a live number that does not rise is a new publisher.
    A restart whose numbers have passed the last one seen looks like a gap: only the engine's
    start time tells (process_start_time_s of its metrics).
    """

    __slots__ = ("_last", "_last_live", "_last_ts_s")

    def __init__(self) -> None:
        self._last: int | None = None
        self._last_live: int | None = None
        self._last_ts_s = 0.0

    @property
    def expected(self) -> int:
        """The next number in order: where a replay is to begin."""
        return 0 if self._last is None else self._last + 1

    def feed(self, seq: int, *, ts_s: float = 0.0, replayed: bool = False) -> SequenceVerdict:
        """Judge a message by its number; `ts_s` is its batch's time, 0 if not known."""
        assert seq >= 0, seq
        verdict = self._judge(seq, ts_s, replayed)
        if verdict is SequenceVerdict.RESTARTED:
            self._last = self._last_live = None
            self._last_ts_s = 0.0
        elif verdict is not SequenceVerdict.GAP:
            self._take(seq, ts_s, replayed)
        return verdict

    def resync(self, seq: int) -> None:
        """Accept that all before `seq` is lost: `seq` is what comes next."""
        assert seq >= self.expected, (seq, self.expected)
        self._last = seq - 1

    def _judge(self, seq: int, ts_s: float, replayed: bool) -> SequenceVerdict:
        if self._last is None:
            return SequenceVerdict.FIRST
        if seq == self._last + 1:
            return SequenceVerdict.NEXT
        if seq > self._last:
            return SequenceVerdict.GAP
        if not replayed and self._is_restart(seq, ts_s):
            return SequenceVerdict.RESTARTED
        return SequenceVerdict.DUPLICATE

    def _is_restart(self, seq: int, ts_s: float) -> bool:
        fell = self._last_live is not None and seq <= self._last_live
        return fell or ts_s > self._last_ts_s > 0.0

    def _take(self, seq: int, ts_s: float, replayed: bool) -> None:
        self._last = seq if self._last is None else max(self._last, seq)
        self._last_ts_s = max(self._last_ts_s, ts_s)
        if not replayed:
            self._last_live = seq
