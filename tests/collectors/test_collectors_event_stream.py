"""A stream of KV events is complete, or says that it is not."""

from collections.abc import Sequence

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from pointsman.collectors import event_stream
from pointsman.collectors.event_stream import EventStream
from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheChange,
)
from pointsman.core.events import IndexTrust
from pointsman.core.ids import NodeName
from pointsman.telemetry.collector_metrics import CollectorMetrics

END = (b"", b"", (2**64 - 1).to_bytes(8), b"")
TOPIC = "kv@127.0.0.1:8000@m"


def stored(block: int, parent: int | None = None, **more: object) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": [block], "token_ids": [block] * 16}
    return {**event, "block_size": 16, "parent_block_hash": parent, **more}


def message(seq: int, *events: dict[str, object], topic: str = TOPIC) -> list[bytes]:
    payload = msgspec.msgpack.encode([100.0 + seq, list(events) or [stored(seq)], 0])
    return [topic.encode(), seq.to_bytes(8), payload]


class Recorder:
    """A stream, and what it told."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.told: list[CacheChange | IndexTrust] = []
        self.stream = EventStream(
            CollectorMetrics(self.registry).node(NodeName("n")),
            is_ours=lambda topic: topic == TOPIC,
            changes=self.told.extend,
            trust=self.told.append,
        )

    def live(self, *messages: list[bytes]) -> None:
        for each in messages:
            self.stream.live(each)

    def replay(self, *messages: Sequence[bytes]) -> None:
        for each in messages:
            self.stream.replayed([b"", *each])
        self.stream.replayed(list(END))
        self.stream.replay_ended()

    def blocks(self) -> list[object]:
        stored = [change for change in self.told if isinstance(change, BlockStored)]
        return [change.block_hashes[0] for change in stored]

    def trust(self) -> IndexTrust:
        told = [each for each in self.told if isinstance(each, IndexTrust)]
        return told[-1] if told else IndexTrust.HISTORY

    def count(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(
            f"pointsman_kv_event_{name}_total", {"node": "n", **labels}
        )
        assert value is not None
        return value


def test_a_join_replays_from_the_start_and_drops_what_came_twice() -> None:
    recorder = Recorder()
    assert recorder.stream.replay_from == 0
    recorder.live(message(2), message(3))
    recorder.replay(message(0), message(1), message(2))
    assert recorder.blocks() == [0, 1, 2, 3]
    assert recorder.trust() is IndexTrust.EXACT
    assert recorder.stream.is_live
    assert recorder.count("messages", result="duplicate") == 1


def test_an_engine_that_stored_nothing_yet_is_known_exactly() -> None:
    recorder = Recorder()
    recorder.replay()
    assert recorder.trust() is IndexTrust.EXACT
    recorder.live(message(0))
    assert recorder.blocks() == [0]
    assert recorder.stream.is_live


def test_a_replay_that_does_not_reach_the_start_is_never_called_exact() -> None:
    """vllm#40363: the buffer keeps 10,000 batches, a long-running engine has made more."""
    recorder = Recorder()
    recorder.replay(message(7), message(8))
    assert recorder.trust() is IndexTrust.DEGRADED
    assert recorder.blocks() == [7, 8]
    recorder.live(message(9))
    assert recorder.trust() is IndexTrust.DEGRADED


def test_a_replay_that_breaks_off_claims_nothing_until_the_next_message() -> None:
    recorder = Recorder()
    recorder.stream.replayed([b"", *message(0)])
    recorder.stream.replay_ended()
    assert recorder.trust() is IndexTrust.HISTORY
    recorder.live(message(1))
    assert recorder.trust() is IndexTrust.EXACT


def test_a_gap_is_filled_by_a_replay() -> None:
    """llm-d-router#1737, and Mooncake#3616 for a replay that asks for the right number."""
    recorder = Recorder()
    recorder.replay(message(0))
    recorder.live(message(1), message(4))
    assert recorder.stream.replay_from == 2
    assert recorder.blocks() == [0, 1]
    recorder.live(message(5))
    recorder.replay(message(2), message(3), message(4), message(5))
    assert recorder.blocks() == [0, 1, 2, 3, 4, 5]
    assert recorder.trust() is IndexTrust.EXACT
    assert recorder.count("gaps") == 1
    assert recorder.count("losses") == 0


def test_a_gap_that_no_replay_covers_degrades() -> None:
    recorder = Recorder()
    recorder.replay(message(0))
    recorder.live(message(4))
    recorder.replay(message(3), message(4))
    assert recorder.blocks() == [0, 3, 4]
    assert recorder.trust() is IndexTrust.DEGRADED
    assert recorder.count("losses") == 1


def test_a_gap_without_a_replay_degrades_and_goes_on() -> None:
    recorder = Recorder()
    recorder.replay(message(0))
    recorder.live(message(4))
    recorder.stream.replay_ended()
    recorder.live(message(5))
    assert recorder.blocks() == [0, 4, 5]
    assert recorder.trust() is IndexTrust.DEGRADED


def test_a_late_subscriber_without_replay_claims_nothing_it_missed() -> None:
    recorder = Recorder()
    recorder.stream.replay_ended()
    assert recorder.trust() is IndexTrust.HISTORY
    recorder.live(message(41))
    assert recorder.stream.replay_from == 0
    recorder.stream.replay_ended()
    assert recorder.blocks() == [41]
    assert recorder.trust() is IndexTrust.DEGRADED


def test_an_early_subscriber_without_replay_is_exact() -> None:
    recorder = Recorder()
    recorder.live(message(0))
    recorder.stream.replay_ended()
    assert recorder.trust() is IndexTrust.EXACT


def test_a_first_message_after_a_failed_replay_is_exact() -> None:
    recorder = Recorder()
    recorder.stream.replay_ended()
    recorder.live(message(0))
    assert recorder.trust() is IndexTrust.EXACT


def test_a_clear_makes_a_degraded_index_exact_again() -> None:
    recorder = Recorder()
    recorder.replay(message(7))
    recorder.live(message(8, {"type": "AllBlocksCleared"}, stored(80)))
    assert recorder.trust() is IndexTrust.EXACT


def test_a_sequence_that_starts_over_clears_and_replays() -> None:
    """llm-d-router#2853: the engine restarted in place; its old blocks are gone."""
    recorder = Recorder()
    recorder.replay(message(0), message(1))
    recorder.live(message(2))
    recorder.told.clear()
    recorder.live(message(0, stored(100)))
    assert recorder.told == [AllBlocksCleared()]
    assert recorder.stream.replay_from == 0
    assert recorder.stream.restarts == 1
    recorder.replay(message(0, stored(100)))
    recorder.live(message(1, stored(101)))
    assert recorder.blocks() == [100, 101]
    assert recorder.stream.is_live


def test_a_restart_heals_a_degraded_index() -> None:
    recorder = Recorder()
    recorder.replay(message(7))
    recorder.live(message(8), message(0))
    recorder.replay(message(0))
    assert recorder.trust() is IndexTrust.EXACT


def test_a_foreign_topic_is_ignored_and_counted() -> None:
    """dynamo#11239: one stray message must not wipe the index."""
    recorder = Recorder()
    recorder.replay(message(0))
    recorder.live(message(0, {"type": "AllBlocksCleared"}, topic="weather"))
    assert recorder.blocks() == [0]
    assert AllBlocksCleared() not in recorder.told
    assert recorder.count("messages", result="foreign_topic") == 1


def test_a_malformed_message_is_counted_and_shows_as_a_gap() -> None:
    recorder = Recorder()
    recorder.replay(message(0))
    recorder.live([TOPIC.encode(), (1).to_bytes(8), b"\xc1"], [b"x"])
    assert recorder.count("messages", result="malformed") == 2
    recorder.live(message(2))
    assert recorder.stream.replay_from == 1


@pytest.mark.parametrize(
    ("bound", "most"), [("WAITING_MAX", 2), ("WAITING_BYTES_MAX", 2 * sum(map(len, message(0))))]
)
def test_what_waits_for_a_replay_is_bounded(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, bound, most)
    recorder = Recorder()
    recorder.live(message(0), message(1), message(2), message(3))
    assert recorder.count("messages", result="dropped") == 2
    recorder.replay(message(0))
    assert recorder.blocks() == [0, 1]
    recorder.live(message(4))
    assert recorder.stream.replay_from == 2


def test_an_event_is_passed_on_whole() -> None:
    recorder = Recorder()
    event = stored(5, 4, lora_name="l", extra_keys=[["salt"]], medium="GPU")
    removed: dict[str, object] = {"type": "BlockRemoved", "block_hashes": [5], "medium": "CPU"}
    recorder.replay(message(0, event, removed))
    assert recorder.told[:2] == [
        BlockStored(
            block_hashes=(5,),
            parent_block_hash=4,
            token_ids=(5,) * 16,
            block_size=16,
            lora_name="l",
            extra_keys=(["salt"],),
            medium="GPU",
        ),
        BlockRemoved((5,), medium="CPU"),
    ]


def test_only_the_first_group_of_a_hybrid_model_counts() -> None:
    recorder = Recorder()
    sliding: dict[str, object] = {"type": "BlockRemoved", "block_hashes": [5], "group_idx": 1}
    recorder.replay(message(0, stored(5, group_idx=0), sliding))
    assert recorder.blocks() == [5]
    assert not any(isinstance(change, BlockRemoved) for change in recorder.told)
