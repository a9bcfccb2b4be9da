"""KV events: every shape an engine has sent, recorded samples, and sequence numbers."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.cache_events import AllBlocksCleared, BlockRemoved, BlockStored
from pointsman.wire.engine_events import (
    END_OF_REPLAY_SEQ,
    EventBatch,
    MalformedEvent,
    SequenceTracker,
    SequenceVerdict,
    decode_batch,
    decode_message,
)

DATA = Path(__file__).parent / "data"
pack = msgspec.msgpack.encode

STORED = BlockStored(
    block_hashes=(2**64 - 1, 7),
    parent_block_hash=5,
    token_ids=(1, 2, 3, 4),
    block_size=2,
    lora_id=3,
    medium="GPU",
    lora_name="adapter",
    extra_keys=(None, ["salt"]),
    group_idx=1,
)
REMOVED = BlockRemoved((b"\x01" * 32,), "CPU", 2)


def recordings() -> Iterator[dict[str, Any]]:
    for name in ("kv_events_sha256.jsonl", "kv_events_removed.jsonl"):
        for line in (DATA / name).read_text().splitlines():
            yield json.loads(line)


@pytest.mark.parametrize("recording", list(recordings()), ids=lambda r: f"seq{r['seq']}")
def test_recorded_messages(recording: dict[str, Any]) -> None:
    frames = [
        recording["topic"].encode(),
        bytes.fromhex(recording["seq_hex"]),
        bytes.fromhex(recording["payload_hex"]),
    ]
    message = decode_message(frames)
    ts_s, events, rank = recording["decoded"]
    assert (message.topic, message.seq) == (recording["topic"], recording["seq"])
    assert (message.batch.ts_s, message.batch.data_parallel_rank) == (ts_s, rank)
    assert list(message.batch.events) == [expected(event) for event in events]


def expected(event: dict[str, Any]) -> Any:
    kinds = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved}
    return msgspec.convert(event, kinds.get(event["type"], AllBlocksCleared))


def as_map(event: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(event, builtin_types=(bytes,)))


def as_row(event: Any) -> list[Any]:
    return list(as_map(event).values())


hashes = st.one_of(st.integers(0, 2**64 - 1), st.binary(min_size=32, max_size=32))
hash_tuples = st.lists(hashes, max_size=4).map(tuple)
names = st.one_of(st.none(), st.text(max_size=4))
stored_events = st.builds(
    BlockStored,
    block_hashes=hash_tuples,
    parent_block_hash=st.one_of(st.none(), hashes),
    token_ids=st.lists(st.integers(0, 2**32), max_size=9).map(tuple),
    block_size=st.integers(1, 128),
    lora_id=st.one_of(st.none(), st.integers(0, 9)),
    medium=names,
    lora_name=names,
    extra_keys=st.one_of(st.none(), st.lists(st.one_of(st.none(), st.lists(names))).map(tuple)),
    group_idx=st.one_of(st.none(), st.integers(0, 9)),
)
removed_events = st.builds(
    BlockRemoved, hash_tuples, names, st.one_of(st.none(), st.integers(0, 9))
)
known_events = st.one_of(stored_events, removed_events, st.just(AllBlocksCleared()))


@given(st.lists(known_events, max_size=5), st.booleans(), st.lists(st.booleans(), min_size=5))
def test_both_shapes_at_both_levels(events: list[Any], map_batch: bool, maps: list[bool]) -> None:
    wire = [as_map(e) if is_map else as_row(e) for e, is_map in zip(events, maps, strict=False)]
    batch: Any = [1.5, wire, 3]
    if map_batch:
        batch = {"data_parallel_rank": 3, "events": wire, "ts": 1.5}
    assert decode_batch(pack(batch)) == EventBatch(1.5, tuple(events), 3)


@pytest.mark.parametrize("shape", [as_map, as_row])
def test_unknown_types_are_skipped_and_counted(shape: Any) -> None:
    other: Any = {"type": "BlockMoved", "to": [1]} if shape is as_map else ["BlockMoved", {}]
    batch = decode_batch(pack([1.0, [shape(STORED), other, shape(REMOVED)]]))
    assert batch == EventBatch(1.0, (STORED, REMOVED), None, skipped=1)


def test_unknown_fields_are_ignored_and_missing_ones_defaulted() -> None:
    more = {"kv_cache_spec_kind": "full_attention", "session_id": "s", "ownership": [1, {}]}
    assert decode_batch(pack([1, [as_map(STORED) | more], 0, "new"])).events == (STORED,)
    assert decode_batch(pack([1, [[*as_row(STORED), "full_attention", 9]]])).events == (STORED,)
    oldest = ["BlockStored", [1], None, [5, 6], 2, None]
    assert decode_batch(pack([1.0, [oldest]])) == EventBatch(
        1.0, (BlockStored((1,), None, (5, 6), 2),)
    )
    assert decode_batch(pack([1.0, [{"type": "BlockRemoved", "block_hashes": []}]])).events == (
        BlockRemoved(()),
    )


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        (b"", "batch"),
        (b"\xc1", "batch"),
        (pack("text"), "batch"),
        (pack([1.0]), "batch"),
        (pack([1.0, 2]), "batch"),
        (pack([1.0, [as_map(STORED), {"type": "BlockStored"}]]), "event 1: .*block_hashes"),
        (pack([1.0, [["BlockStored", ["x"]]]]), r"event 0: .*\[1\]\[0\]"),
        (pack([1.0, [as_map(STORED) | {"token_ids": [1.5]}]]), "event 0: .*token_ids"),
        (pack([1.0, [7]]), "event 0"),
        (pack([1.0, [[]]]), "event 0"),
        (pack([1.0, [as_map(STORED)]])[:-9], "batch"),
        (b"\x91" * 100_000, "batch"),
        (b"\x92\x01\x91\x82\xa4type\xabBlockStored\xaaextra_keys" + b"\x91" * 100_000, "batch"),
    ],
)
def test_malformed_payloads_say_what_and_where(payload: bytes, where: str) -> None:
    with pytest.raises(MalformedEvent, match=where):
        decode_batch(payload)


def test_an_oversize_payload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.wire.engine_events.PAYLOAD_BYTES_MAX", 10)
    with pytest.raises(MalformedEvent, match="limit 10"):
        decode_batch(b"x" * 11)


@given(st.binary(max_size=80))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    with suppress(MalformedEvent):
        decode_batch(payload)


SEQ_5 = (5).to_bytes(8)
PAYLOAD = pack([1.0, [as_map(REMOVED)], 0])
BATCH = EventBatch(1.0, (REMOVED,), 0)


@pytest.mark.parametrize(
    ("frames", "topic"),
    [
        ([b"kv@node", SEQ_5, PAYLOAD], "kv@node"),
        ([SEQ_5, PAYLOAD], ""),
        ([b"", b"kv@node", SEQ_5, PAYLOAD], "kv@node"),
        ([b"", SEQ_5, PAYLOAD], ""),
        ([b"\xff", SEQ_5, PAYLOAD], "\ufffd"),
    ],
)
def test_messages_with_and_without_topic_live_and_replayed(frames: list[bytes], topic: str) -> None:
    message = decode_message(frames)
    assert (message.topic, message.seq, message.batch) == (topic, 5, BATCH)
    assert not message.ends_replay


@pytest.mark.parametrize("frames", [[b"", b"", b"\xff" * 8, b""], [b"", b"\xff" * 8, b""]])
def test_the_end_of_a_replay(frames: list[bytes]) -> None:
    message = decode_message(frames)
    assert message.ends_replay
    assert (message.seq, message.batch.events) == (END_OF_REPLAY_SEQ, ())


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([], "0 frame"),
        ([PAYLOAD], "1 frame"),
        ([b"topic", PAYLOAD], "frame 0: seq of 5 bytes"),
        ([b"topic", b"", PAYLOAD], "frame 1: seq of 0 bytes"),
        ([b"topic", SEQ_5, b"\xc1"], "batch"),
    ],
)
def test_malformed_messages(frames: list[bytes], what: str) -> None:
    with pytest.raises(MalformedEvent, match=what):
        decode_message(frames)


FIRST, NEXT, DUPLICATE, GAP, RESTARTED = SequenceVerdict


def test_an_undisturbed_stream() -> None:
    tracker = SequenceTracker()
    assert tracker.expected == 0
    assert [tracker.feed(seq) for seq in (0, 1, 2)] == [FIRST, NEXT, NEXT]
    assert tracker.expected == 3


def test_a_gap_is_not_taken_until_it_is_filled() -> None:
    tracker = SequenceTracker()
    tracker.feed(0)
    assert [tracker.feed(3), tracker.feed(3)] == [GAP, GAP]
    assert tracker.expected == 1
    assert [tracker.feed(seq, replayed=True) for seq in (1, 2, 3)] == [NEXT] * 3
    assert tracker.feed(3) is DUPLICATE
    assert tracker.feed(4) is NEXT


def test_a_gap_that_cannot_be_filled_is_given_up() -> None:
    tracker = SequenceTracker()
    tracker.feed(0)
    assert tracker.feed(9, replayed=True) is GAP
    tracker.resync(9)
    assert tracker.feed(9, replayed=True) is NEXT
    assert tracker.expected == 10


def test_live_messages_that_a_replay_already_brought_are_duplicates() -> None:
    tracker = SequenceTracker()
    replayed = [tracker.feed(seq, ts_s=100.0 + seq, replayed=True) for seq in range(4)]
    assert replayed == [FIRST, NEXT, NEXT, NEXT]
    assert [tracker.feed(seq, ts_s=100.0 + seq) for seq in (2, 3, 4)] == [
        DUPLICATE,
        DUPLICATE,
        NEXT,
    ]
    assert tracker.feed(0, replayed=True) is DUPLICATE


@pytest.mark.parametrize("back_to", [0, 1, 4])
def test_a_live_number_that_does_not_rise_is_a_restart(back_to: int) -> None:
    tracker = SequenceTracker()
    for seq in range(5):
        tracker.feed(seq)
    assert tracker.feed(back_to) is RESTARTED
    assert tracker.expected == 0, "forgotten: a replay begins at 0"
    assert [tracker.feed(back_to), tracker.feed(back_to + 1)] == [FIRST, NEXT]


def test_a_restart_before_any_live_message_shows_in_the_time() -> None:
    tracker = SequenceTracker()
    for seq in range(5):
        tracker.feed(seq, ts_s=100.0 + seq, replayed=True)
    assert tracker.feed(0, ts_s=200.0) is RESTARTED


@given(st.integers(0, 30), st.sets(st.integers(0, 30)), st.integers(0, 5))
def test_whatever_is_lost_all_is_taken_once_and_in_order(
    count: int, lost: set[int], late: int
) -> None:
    """A consumer that replays on a gap, against a publisher that keeps everything."""
    tracker, taken = SequenceTracker(), []
    for live in (seq for seq in range(late, count) if seq not in lost):
        if tracker.expected == 0 or tracker.feed(live, ts_s=1.0 + live) is GAP:
            for old in range(tracker.expected, live + 1):
                assert tracker.feed(old, ts_s=1.0 + old, replayed=True) in (FIRST, NEXT)
                taken.append(old)
            assert tracker.feed(live, ts_s=1.0 + live) is DUPLICATE
        else:
            taken.append(live)
    assert taken == list(range(len(taken)))
