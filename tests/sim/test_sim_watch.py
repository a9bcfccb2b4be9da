"""What a gateway gets to know: an exact index is the engine's cache, whatever was lost."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.cache_events import ChainStored
from pointsman.core.ids import BlockHash, NodeName
from pointsman.core.options import SchedulerOptions
from pointsman.core.views import NodeView
from pointsman.engines.compute_model import Job
from pointsman.sim import watch as watching
from pointsman.sim.clock import Clock
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import SimulatedNode, profile_of
from pointsman.sim.scenario import Index, Knowledge, Network, NodeGroup
from pointsman.sim.watch import Watch
from tests.support.profiles import SMALL


class Nobody:
    """Sends jobs by hand and does not care."""

    def first_token(self, job_id: str) -> None: ...

    def finished(self, job_id: str, cached_tokens: int) -> None: ...

    def broken(self, job_id: str) -> None: ...


class Pair:
    """A gateway with one node that it watches. Time goes on by `until`."""

    def __init__(self, seed: int = 0, **knowledge: object) -> None:
        known = Knowledge(index=Index.PRECISE)
        self.clock = Clock()
        group = NodeGroup(profile=SMALL, kv_tokens=640)
        self.node = SimulatedNode(self.clock, "node-0", group, profile_of(group, 16))
        self.gateway = SimulatedGateway(
            self.clock,
            {self.node.name: self.node},
            SchedulerOptions(policy="round_robin"),
            network=Network(),
            knowledge=known,
        )
        known = msgspec.structs.replace(known, **knowledge)
        self.watch = Watch(self.clock, self.gateway, self.node, known, Random(seed))
        self.clock.at(0.0, self.node.start)
        self.clock.at(0.0, self.watch.join)
        self._jobs: Iterator[int] = iter(range(10**6))

    def until(self, now_s: float) -> "Pair":
        self.clock.at(now_s, self.clock.stop)
        self.clock.run()
        return self

    def prompt(self, *blocks: int) -> None:
        """The node computes a prompt of these blocks, if it is up."""
        if self.node.up:
            job = Job(str(next(self._jobs)), 16 * len(blocks), 1, blocks)
            self.node.submit(job, Nobody())

    @property
    def cached(self) -> frozenset[int]:
        assert self.node.engine is not None
        return self.node.engine.model.pool.cached

    @property
    def view(self) -> NodeView:
        (view,) = self.gateway.scheduler.nodes(self.clock.now_s)
        return view

    @property
    def health(self) -> str:
        return str(self.view.health)

    @property
    def trust(self) -> str:
        return str(self.view.index_trust)

    def in_sync(self) -> bool:
        return self.watch.in_sync

    def agree(self) -> bool:
        """Whether the index holds the very blocks that the engine has."""
        scheduler = self.gateway.scheduler
        node = scheduler._cluster.named(NodeName("node-0"))  # no view shows single blocks
        assert node is not None
        holders = map(scheduler._residency.holders, map(BlockHash, self.cached))
        known = all(mask >> node.slot & 1 for mask in holders)
        return known and self.view.index_blocks == len(self.cached)


def test_what_the_engine_stores_and_evicts_is_known_after_the_lag() -> None:
    pair = Pair(event_lag_s=0.5).until(1.0)
    pair.prompt(1, 2, 3)
    pair.until(1.4)
    assert (len(pair.cached), pair.view.index_blocks) == (3, 0)
    assert not pair.in_sync()
    pair.until(2.0)
    assert pair.agree()
    assert pair.in_sync()
    for first in range(100, 500, 10):  # 400 blocks, of which 40 fit
        pair.prompt(*range(first, first + 10))
        pair.until(pair.clock.now_s + 0.2)
    pair.until(pair.clock.now_s + 1)
    assert pair.agree()
    assert pair.view.index_blocks == len(pair.cached) <= 40
    assert 1 not in pair.cached


def test_a_lost_event_is_mended_with_the_next_one() -> None:
    pair = Pair().until(1.0)
    pair.watch.lose_events(1.0)
    pair.prompt(1, 2)
    pair.until(2.0)
    assert not pair.agree()
    pair.watch.lose_no_more(1.0)
    assert not pair.agree()  # nothing shows the gap before there is another message
    pair.prompt(1, 2, 3)
    pair.until(3.0)
    assert pair.agree()
    assert pair.trust == "exact"


def test_a_partition_hides_everything_and_is_mended_after_it() -> None:
    pair = Pair().until(15.0)
    pair.watch.partition()
    pair.watch.partition()
    pair.prompt(1, 2)
    pair.until(20.0)
    pair.watch.reconnect()
    pair.prompt(3)
    pair.until(25.0)
    assert pair.view.index_blocks == 0
    assert pair.health == "open"
    assert pair.view.signals_age_s is not None
    assert pair.view.signals_age_s > 9
    pair.watch.reconnect()
    pair.prompt(4)
    pair.until(30.0)
    assert pair.agree()
    assert pair.health == "warming"
    assert pair.view.signals_age_s < 1.1


def test_a_new_incarnation_starts_with_nothing() -> None:
    pair = Pair().until(1.0)
    pair.prompt(1, 2, 3)
    pair.until(2.0)
    before = pair.view
    pair.node.crash()
    pair.node.recover()
    pair.prompt(7)
    pair.until(2.05)
    assert pair.view.incarnation == before.incarnation  # nobody has noticed
    assert pair.view.index_blocks == 3
    pair.until(20.0)
    assert pair.view.incarnation != before.incarnation
    assert pair.cached == {7}
    assert pair.agree()


def test_what_the_dead_have_told_is_not_credited_to_the_living() -> None:
    pair = Pair(event_lag_s=30.0).until(1.0)
    pair.prompt(1, 2, 3)
    pair.until(1.5)
    pair.node.crash()
    pair.node.recover()
    pair.until(100.0)
    assert pair.view.index_blocks == 0
    assert pair.agree()
    assert pair.in_sync()


def test_events_under_way_at_a_restart_stay_in_order() -> None:
    """Blocks 1 are stored, evicted and stored again before anybody knows the new incarnation."""
    pair = Pair(event_lag_s=0.01).until(15.0)
    pair.node.crash()
    pair.node.recover()
    for first in (1, 100, 1, 200, 100):
        pair.prompt(*range(first, first + 39))
        pair.until(pair.clock.now_s + 0.15)
    assert pair.view.index_blocks == 0
    pair.until(40.0)
    assert pair.agree()


def test_what_no_replay_reaches_leaves_the_index_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REPLAYED_MAX", 4)
    pair = Pair().until(1.0)
    pair.watch.partition()
    for block in range(10):
        pair.prompt(block)
        pair.until(pair.clock.now_s + 0.1)
    pair.watch.reconnect()
    pair.prompt(10)
    pair.until(5.0)
    assert pair.trust == "degraded"
    assert pair.view.index_blocks == 4
    assert not pair.in_sync()
    pair.node.crash()
    pair.node.recover()
    pair.until(30.0)
    assert pair.trust == "exact"
    assert pair.agree()


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("prompt"), st.integers(0, 5), st.integers(1, 20)),
        st.sampled_from([("crash",), ("partition",), ("reconnect",), ("lose",), ("find",)]),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 4.0, 12.0])),
    ),
    max_size=40,
)


@settings(max_examples=50)
@given(acts=ACTS, lag_s=st.sampled_from([0.0, 0.01, 2.0]), seed=st.integers(0, 100))
def test_in_the_end_the_index_is_the_cache(
    acts: list[tuple[str, int, int]], lag_s: float, seed: int
) -> None:
    pair = Pair(seed, event_lag_s=lag_s, event_loss=0.2).until(1.0)
    partitions = losses = 0
    for name, *values in acts:
        match name:
            case "prompt":
                pair.prompt(*range(100 * values[0], 100 * values[0] + values[1]))
            case "crash":
                pair.node.crash()
                pair.node.recover()
            case "partition":
                pair.watch.partition()
                partitions += 1
            case "reconnect" if partitions:
                pair.watch.reconnect()
                partitions -= 1
            case "lose":
                pair.watch.lose_events(1.0)
                losses += 1
            case "find" if losses:
                pair.watch.lose_no_more(1.0)
                losses -= 1
            case "wait":
                pair.until(pair.clock.now_s + values[0])
        pair.gateway.scheduler.check()
    for _ in range(partitions):
        pair.watch.reconnect()
    for _ in range(losses):
        pair.watch.lose_no_more(1.0)
    for block in range(9_000, 9_100):  # one of them gets through
        pair.prompt(block)
        pair.until(pair.clock.now_s + 0.3)
        if pair.in_sync():
            break
    pair.until(pair.clock.now_s + 30.0)
    assert pair.agree() or not pair.in_sync()
    assert pair.trust == "exact"


def test_an_approximate_index_is_told_nothing() -> None:
    pair = Pair(index=Index.APPROXIMATE).until(1.0)
    pair.prompt(1, 2)
    pair.until(5.0)
    assert pair.view.index_blocks == 0
    assert pair.trust == "history"
    assert pair.in_sync()


def test_frozen_reports_repeat_the_last_one() -> None:
    pair = Pair(report_interval_s=0.5).until(5.0)
    pair.watch.freeze()
    pair.node.submit(Job("long", 16, 600, ()), Nobody())
    pair.until(8.0)
    assert pair.view.signals.running == 0
    assert pair.view.signals_age_s is not None
    assert pair.view.signals_age_s < 1.0  # it looks fresh: that is the fault
    pair.watch.thaw()
    pair.until(9.0)
    assert pair.view.signals.running == 1


def test_three_bad_probes_take_a_node_out_and_two_good_ones_bring_it_back() -> None:
    pair = Pair().until(15.0)
    pair.watch.fail_probes()
    pair.until(16.5)
    assert pair.health == "suspect"
    pair.until(17.5)
    assert pair.health == "open"
    pair.watch.pass_probes()
    pair.until(18.5)
    assert pair.health == "open"
    pair.until(20.5)
    assert pair.health == "warming"


def test_failed_requests_hurry_one_probe_not_many() -> None:
    pair = Pair().until(15.0)
    pair.node.crash()
    for _ in range(20):
        pair.watch.probe_soon()
    pair.until(15.5)
    assert pair.health == "ready"  # one probe has failed so far
    pair.until(18.0)
    assert pair.health == "open"


def test_a_report_under_way_at_a_restart_is_about_the_dead() -> None:
    pair = Pair(report_interval_s=0.5, report_lag_s=5.0).until(14.9)
    pair.node.submit(Job("long", 16, 600, ()), Nobody())
    pair.until(16.0)
    pair.node.crash()
    pair.node.recover()
    pair.watch.probe_soon()
    pair.until(17.0)
    stale = pair.gateway.scheduler.stats.stale_events
    pair.until(20.5)
    assert pair.gateway.scheduler.stats.stale_events > stale
    assert pair.view.signals.running is None


def test_chains_are_told_under_our_own_hashes() -> None:
    """The simulated engine's hashes are ours already."""
    pair = Pair().until(1.0)
    seen: list[object] = []
    pair.node.on_changes.append(seen.extend)
    pair.prompt(5, 6)
    pair.until(2.0)
    assert seen == [ChainStored((BlockHash(5), BlockHash(6)))]
