"""A machine with an engine on it: it serves, crashes and returns, and tells how it is."""

import pytest

from pointsman.engines.compute_model import PROFILES, Job
from pointsman.sim.clock import Clock
from pointsman.sim.node import NodeDownError, SimulatedNode, profile_of
from pointsman.sim.scenario import NodeGroup
from tests.support.profiles import SMALL


class Sender:
    """Notes what it is told, and when."""

    def __init__(self, clock: Clock) -> None:
        self.told: list[tuple[str, str, float]] = []
        self._clock = clock

    def first_token(self, job_id: str) -> None:
        self.told.append(("first", job_id, self._clock.now_s))

    def finished(self, job_id: str, cached_tokens: int) -> None:
        self.told.append((f"finished, {cached_tokens} cached", job_id, self._clock.now_s))

    def broken(self, job_id: str) -> None:
        self.told.append(("broken", job_id, self._clock.now_s))


def machine(**changes: object) -> tuple[Clock, SimulatedNode, Sender]:
    clock = Clock()
    group = NodeGroup(profile=SMALL, **changes)  # type: ignore[arg-type]  # a test's shorthand
    return clock, SimulatedNode(clock, "node-0", group, profile_of(group, 16)), Sender(clock)


def told(sender: Sender) -> list[tuple[str, str]]:
    return [(what, job_id) for what, job_id, _ in sender.told]


def test_a_job_is_told_of_once_at_its_first_token_and_once_at_its_end() -> None:
    clock, node, sender = machine()
    node.start()
    node.submit(Job("a", 32, 5, (1, 2)), sender)
    clock.run()
    node.submit(Job("b", 33, 1, (1, 2)), sender)
    clock.run()
    assert told(sender) == [
        ("first", "a"),
        ("finished, 0 cached", "a"),
        ("first", "b"),
        ("finished, 32 cached", "b"),
    ]
    assert sender.told[0][2] == pytest.approx(0.01 + 32e-4 + 32**2 * 1e-8)


def test_nothing_listens_before_the_start_and_after_a_crash() -> None:
    _, node, sender = machine()
    with pytest.raises(NodeDownError):
        node.submit(Job("a", 32, 5), sender)
    node.start()
    node.crash()
    with pytest.raises(NodeDownError):
        node.submit(Job("a", 32, 5), sender)
    assert node.signals() is None
    assert node.remaining_s() == 0.0
    node.abort("a")  # harmless


def test_a_crash_breaks_every_job_and_loses_the_cache() -> None:
    clock, node, sender = machine()
    node.start()
    node.submit(Job("a", 32, 100, (1, 2)), sender)
    node.submit(Job("b", 32, 100, (3, 4)), sender)
    clock.at(0.1, node.crash)
    clock.at(0.2, node.recover)
    clock.run()
    assert told(sender) == [("first", "a"), ("first", "b"), ("broken", "a"), ("broken", "b")]
    assert node.incarnation == 2
    assert node.engine is not None
    assert not node.engine.model.pool.cached


def test_every_crash_wants_its_own_recovery() -> None:
    _, node, _ = machine()
    node.start()
    node.crash()
    node.crash()
    node.recover()
    assert (node.up, node.incarnation) == (False, 1)
    node.recover()
    assert (node.up, node.incarnation) == (True, 2)
    with pytest.raises(AssertionError, match="has not crashed"):
        node.recover()


def test_it_starts_once_and_only_when_nothing_keeps_it_down() -> None:
    _, node, _ = machine()
    node.crash()
    node.start()
    assert (node.up, node.incarnation) == (False, 0)
    node.recover()
    assert (node.up, node.incarnation) == (True, 1)
    with pytest.raises(AssertionError, match="switched on"):
        node.start()


def test_an_abort_frees_the_blocks_and_nobody_is_told() -> None:
    clock, node, sender = machine()
    node.start()
    node.submit(Job("a", 100, 500), sender)
    clock.at(0.05, node.abort, "a")
    clock.run()
    assert told(sender) == [("first", "a")]
    signals = node.signals()
    assert signals is not None
    assert (signals.running, signals.waiting, signals.kv_usage) == (0, 0, 0.0)


def test_slow_downs_multiply_in_any_order() -> None:
    _, node, _ = machine(slowdown=2.0)
    node.slow_down(3.0)
    node.slow_down(5.0)
    node.start()
    assert node.slowdown == 30.0
    node.speed_up(3.0)
    assert node.slowdown == 10.0
    node.speed_up(5.0)
    assert node.slowdown == 2.0


def test_signals_are_what_a_scrape_would_show() -> None:
    clock, node, sender = machine()
    node.start()
    for number in range(10):
        node.submit(Job(str(number), 32, 200), sender)
    clock.at(0.1, clock.stop)
    clock.run()
    signals = node.signals()
    assert signals is not None
    assert (signals.running, signals.waiting) == (8, 2)  # SMALL runs 8 at once
    assert signals.prefix_queries == 8 * 32
    assert 0.2 < (signals.kv_usage or 0) < 0.5


def test_what_remains_shrinks_to_nothing_and_is_exact_for_one() -> None:
    clock, node, sender = machine()
    node.start()
    node.submit(Job("a", 32, 50), sender)
    at_first_s = node.remaining_s()
    clock.at(0.2, clock.stop)
    clock.run()
    assert 0 < node.remaining_s() < at_first_s
    clock.run()
    assert node.remaining_s() == 0.0
    assert at_first_s == pytest.approx(clock.now_s, rel=0.05)


def test_a_group_replaces_what_it_names() -> None:
    group = NodeGroup(
        profile="8b-h100", kv_tokens=10_000, block_tokens=32, context_tokens=5_000, sequences_max=9
    )
    profile = profile_of(group, 16)
    assert (profile.block_size, profile.kv_blocks) == (32, 312)
    assert (profile.max_model_len, profile.max_num_seqs) == (5_000, 9)
    own = PROFILES["8b-h100"]
    traffic = profile_of(NodeGroup(), 512)
    assert (traffic.block_size, traffic.kv_blocks) == (512, own.kv_tokens // 512)
    assert profile_of(NodeGroup(sequences_max=20_000), 16).max_num_batched_tokens == 20_000


def test_priorities_are_only_an_ideal_engines() -> None:
    clock, node, sender = machine(ideal=True)
    node.start()
    node.submit(Job("a", 32, 1, (1, 2)), sender)
    clock.run()
    assert node.priority(100, (1, 2, 3)) == 100 - 32
    assert node.priority(100, (7,)) == 100
    _, usual, _ = machine()
    usual.start()
    assert usual.priority(100, (1, 2, 3)) == 0
