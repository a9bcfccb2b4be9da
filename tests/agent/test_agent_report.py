"""What an agent tells of its engine's cache adds up to what the engine holds."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.registry import CollectorRegistry

from pointsman.agent import FrontOptions, report
from pointsman.agent.front import Front
from pointsman.agent.queue import Lane
from pointsman.agent.report import EngineReport
from pointsman.collectors.cadence import Cadence
from pointsman.collectors.link import NodeLink
from pointsman.core.block_set import BUCKETS, BlockSet
from pointsman.core.blocks import Prompt
from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheChange,
)
from pointsman.core.events import (
    CacheChanged,
    IndexTrust,
    IndexTrusted,
    ModelCard,
    NodeDescribed,
    NodeFacts,
    NodeProbed,
    NodeReported,
    NodeSignals,
    NodeSpec,
)
from pointsman.core.ids import ModelName, NodeId, NodeName
from pointsman.core.scheme import Namespace, Scheme, Unit
from pointsman.telemetry.collector_metrics import CollectorMetrics
from pointsman.wire.control import EngineBeat, Signals, unpack_hashes

SPEC = NodeSpec(name=NodeName("e"), url="http://e")
FACTS = NodeFacts(models=(ModelCard(ModelName("m")),), block_tokens=4)
NODE = NodeId(1)


class Fixture:
    """A report, and a scheduler's copy of what it has told."""

    def __init__(self, delta_blocks: int = 16) -> None:
        self.now_s = 0.0
        self.woken = 0
        self.report = EngineReport(
            0, SPEC, clock=lambda: self.now_s, wake=self.wake, delta_blocks=delta_blocks
        )
        tally = CollectorMetrics(CollectorRegistry()).node(SPEC.name)
        self.report.link = NodeLink(SPEC, self.report, tally, Random(0), cadence=Cadence())
        self.copy = BlockSet(1_000)
        self.report.link.join()
        self.report.submit(NodeDescribed(NODE, FACTS))

    def wake(self) -> None:
        self.woken += 1

    def change(self, *changes: CacheChange) -> None:
        self.report.submit(CacheChanged(NODE, changes))

    def beat(self, hashes_max: int = 1_000) -> EngineBeat:
        """Take a heartbeat as the scheduler does."""
        beat = self.report.beat(hashes_max)
        self.copy.remove(unpack_hashes(beat.removed))
        self.copy.add(unpack_hashes(beat.stored))
        return beat

    def agrees(self, beat: EngineBeat) -> bool:
        return (len(self.copy), self.copy.digest) == (beat.blocks, beat.digest)


def stored(name: int) -> BlockStored:
    """The first block of a prompt of its own."""
    return BlockStored((name,), None, (name, 0, 0, 0), 4)


def removed(name: int) -> BlockRemoved:
    return BlockRemoved((name,))


CHANGES = st.lists(
    st.one_of(
        st.builds(stored, st.integers(1, 9)),
        st.builds(removed, st.integers(1, 9)),
        st.builds(AllBlocksCleared),
        st.none(),  # a heartbeat
    ),
    max_size=40,
)


@given(CHANGES, st.integers(1, 5))
@settings(deadline=None)
def test_beats_add_up_however_they_fall(
    changes: Sequence[CacheChange | None], hashes_max: int
) -> None:
    fixture = Fixture()
    copies: dict[int, int] = {}
    for change in changes:
        match change:
            case None:
                assert fixture.agrees(fixture.beat(hashes_max)), "even what is told in part"
                continue
            case BlockStored():
                name = int(change.block_hashes[0])
                copies[name] = copies.get(name, 0) + 1
            case BlockRemoved():
                name = int(change.block_hashes[0])
                copies[name] = max(0, copies.get(name, 0) - 1)
            case AllBlocksCleared():
                copies.clear()
        fixture.change(change)
    for _ in range(20):
        beat = fixture.beat(hashes_max)
    assert fixture.agrees(beat)
    assert len(fixture.copy) == len([name for name, count in copies.items() if count])


def test_what_came_and_left_between_two_beats_is_not_told() -> None:
    fixture = Fixture()
    fixture.change(stored(1), stored(2), removed(1))
    beat = fixture.beat()
    assert (len(unpack_hashes(beat.stored)), beat.removed) == (1, b"")


def test_blocks_are_told_under_the_hashes_that_prompts_have() -> None:
    fixture = Fixture()
    fixture.change(BlockStored((7, 8), None, tuple(range(8)), 4))
    chain = Prompt(Namespace("m"), tokens=range(8)).chain(Scheme(Unit.TOKENS, 4))
    assert unpack_hashes(fixture.beat().stored) == chain


def test_many_changes_do_not_wait_and_few_do() -> None:
    fixture = Fixture(delta_blocks=3)
    fixture.beat()
    woken = fixture.woken
    fixture.change(stored(1), stored(2))
    assert fixture.woken == woken
    fixture.change(stored(3))
    assert fixture.woken == woken + 1
    assert fixture.report.has_more
    fixture.beat()
    assert not fixture.report.has_more


def test_with_a_front_it_is_idle_when_nothing_runs_or_waits_there() -> None:
    report = Fixture().report
    report.front = Front(SPEC.url, FrontOptions())
    idle = [report.is_idle]
    ticket = report.front.queue.enter(0, Lane.SHORT)
    assert ticket is not None
    idle.append(report.is_idle)
    assert report.front.queue.next() is ticket
    idle.append(report.is_idle)
    report.front.queue.leave(ticket)
    idle.append(report.is_idle)
    assert idle == [True, False, False, True]


def test_buckets_bring_a_stale_copy_up_to_date() -> None:
    fixture = Fixture()
    fixture.change(*map(stored, range(1, 200)))
    fixture.report.beat(1_000)  # lost on the way
    fixture.change(stored(300), removed(5))
    beat = fixture.beat()
    assert not fixture.agrees(beat)
    differing = fixture.report.differing(fixture.copy.bucket_digests())
    for number in differing:
        (frame,) = fixture.report.bucket(number)
        fixture.copy.replace(frame.bucket, unpack_hashes(frame.hashes))
    assert fixture.agrees(fixture.beat())
    assert fixture.report.differing(fixture.copy.bucket_digests()) == []
    assert len(differing) <= BUCKETS


def test_a_large_bucket_comes_in_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "BUCKET_HASHES", 2)
    fixture = Fixture()
    fixture.change(*map(stored, range(1, 400)))
    fixture.beat()
    number = next(n for n in range(BUCKETS) if len(fixture.copy.bucket(n)) > 3)
    parts = fixture.report.bucket(number)
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    told = [block for part in parts for block in unpack_hashes(part.hashes)]
    assert sorted(told) == sorted(fixture.copy.bucket(number))


def test_signals_are_as_old_as_they_are() -> None:
    fixture = Fixture()
    assert fixture.beat().signals is None
    fixture.report.submit(NodeReported(NODE, 1.0, NodeSignals(running=2)))
    fixture.now_s = 1.25
    beat = fixture.beat()
    assert (beat.signals, beat.age_ms) == (Signals(running=2), 250)
    fixture.report.observe(NodeSignals(gpu_busy=0.5))
    assert fixture.beat().signals == Signals(running=2, gpu_busy=0.5)


def test_signals_that_make_no_sense_are_not_passed_on() -> None:
    fixture = Fixture()
    fixture.report.submit(NodeReported(NODE, 1.0, NodeSignals(running=-1)))
    assert fixture.beat().signals is None


def test_a_probe_is_told_once_and_bad_news_at_once() -> None:
    fixture = Fixture()
    fixture.report.submit(NodeProbed(NODE, healthy=True))
    woken = fixture.woken
    fixture.report.submit(NodeProbed(NODE, healthy=False, detail="x" * 999))
    assert fixture.woken == woken + 1
    beat = fixture.beat()
    assert (beat.healthy, len(beat.detail)) == (False, 200)
    assert fixture.beat().healthy is None


def test_a_restart_begins_from_nothing() -> None:
    fixture = Fixture()
    fixture.change(stored(1))
    fixture.report.submit(IndexTrusted(NODE, IndexTrust.EXACT))
    first = fixture.report.announcement()
    assert first is not None
    assert first.facts == FACTS
    assert fixture.report.announcement() is None
    fixture.beat()
    assert fixture.report.link is not None
    fixture.report.link.join()
    second = fixture.report.announcement()
    assert second is not None
    assert (second.incarnation, second.facts) == (first.incarnation + 1, None)
    beat = fixture.report.beat(9)
    assert (beat.blocks, beat.trust) == (0, IndexTrust.HISTORY)


def test_who_connects_anew_is_told_who_the_engine_is() -> None:
    fixture = Fixture()
    assert fixture.report.announcement() is not None
    fixture.report.connected()
    assert fixture.report.announcement() is not None
