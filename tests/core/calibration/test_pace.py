"""Nodes of one class learn together; one that is slower or faster goes by itself."""

from random import Random

import pytest

from pointsman.core.calibration import Calibration, Pace, Speeds
from pointsman.core.health_limits import TRIAL_AFTER_S
from pointsman.core.rules import HealthRules

STEP_S = 0.01
PER_TOKEN_S = 5e-5


def observe(pace: Pace, rng: Random, *, factor: float = 1.0, noise: float = 0.1) -> None:
    """One request's times on an engine that is `factor` slower than its class."""
    tokens = rng.randint(100, 8_000)
    spread = factor * (1 + rng.uniform(-noise, noise))
    pace.observe_prefill(
        tokens_ahead=0,
        tokens_own=tokens,
        attention_ahead=0,
        attention_own=tokens * tokens / 2,
        ttft_s=spread * (0.005 + tokens * PER_TOKEN_S),
    )
    pace.observe_decode(batch_mean=4, kv_tokens_mean=20_000, step_s=spread * STEP_S)


def prefill_s(pace: Pace, tokens: int = 4_000) -> float:
    speeds = pace.speeds()
    return tokens * (speeds.prefill_s_per_token + tokens / 2 * speeds.attention_s_per_token2)


def decode_s(pace: Pace, now_s: float | None = None) -> float:
    speeds = pace.speeds() if now_s is None else speeds_at(pace, now_s)
    return speeds.step_s + 4 * speeds.sequence_s + 20_000 * speeds.kv_token_s


def speeds_at(pace: Pace, now_s: float, *, idle: bool = True, tokens: float = 100) -> Speeds:
    """Those that a prompt of so many new tokens is priced by."""
    attention = tokens * tokens / 2
    return pace.counted_on(now_s, idle=idle, tokens=tokens, attention=attention).speeds()


def grown_up(*factors: float, rounds: int = 40) -> tuple[list[Pace], Random]:
    """Nodes of one class that were all alike, and then became as slow as `factors` say."""
    shared, rng = Calibration(), Random(7)
    nodes = [Pace(shared) for _ in factors]
    for _ in range(rounds):
        for node in nodes:
            observe(node, rng)
    for _ in range(rounds):
        for node, factor in zip(nodes, factors, strict=True):
            observe(node, rng, factor=factor)
    for node in nodes:
        node.confirmed(0.0)
    return nodes, rng


def test_equal_engines_have_equal_speeds_whatever_their_noise() -> None:
    shared, rng = Calibration(), Random(1)
    nodes = [Pace(shared) for _ in range(4)]
    for _ in range(60):
        for node in nodes:
            observe(node, rng, noise=0.3)
    assert len({node.speeds() for node in nodes}) == 1


def test_a_new_node_of_a_known_class_knows_its_speeds_at_once() -> None:
    shared, rng = Calibration(), Random(2)
    veteran = Pace(shared)
    for _ in range(40):
        observe(veteran, rng)
    newcomer = Pace(shared)
    assert newcomer.calibrated
    assert newcomer.speeds() == veteran.speeds()


def test_a_node_found_slow_by_few_samples_of_its_own_goes_by_known_speeds_all_the_same() -> None:
    """Where one candidate's are unknown, no cost policy can compare any."""
    shared, rng = Calibration(), Random(3)
    veteran, newcomer = Pace(shared), Pace(shared)
    for _ in range(40):
        observe(veteran, rng)
    while newcomer.slowdown == 1.0:
        observe(newcomer, rng, factor=6.0)
    assert newcomer.calibrated
    assert decode_s(newcomer) > 1.2 * decode_s(veteran)
    for _ in range(20):
        observe(newcomer, rng, factor=6.0)
    assert decode_s(newcomer) / decode_s(veteran) == pytest.approx(6.0, rel=0.3)
    assert prefill_s(newcomer) / prefill_s(veteran) == pytest.approx(6.0, rel=0.3)


@pytest.mark.parametrize("factor", [4.0, 2.5])
def test_a_node_that_becomes_slower_is_found_out_alone(factor: float) -> None:
    (odd, *others), _ = grown_up(factor, 1, 1, 1)
    assert prefill_s(odd) / prefill_s(others[0]) == pytest.approx(factor, rel=0.3)
    assert decode_s(odd) / decode_s(others[0]) == pytest.approx(factor, rel=0.3)
    assert prefill_s(others[0]) == pytest.approx(4_000 * PER_TOKEN_S, rel=0.25)


def test_equal_nodes_that_become_faster_stay_equal_when_only_one_is_seen() -> None:
    """All work of a quiet time may go to one of them; the class follows it."""
    (seen, idle), rng = grown_up(1, 1)
    for _ in range(30):
        observe(seen, rng, factor=0.5)
        assert seen.speeds() == idle.speeds()
    assert prefill_s(idle) == pytest.approx(0.5 * 4_000 * PER_TOKEN_S, rel=0.3)


def test_half_of_a_class_may_be_slow_from_the_start() -> None:
    shared, rng = Calibration(), Random(4)
    nodes = [Pace(shared) for _ in range(8)]
    for _ in range(120):
        for index, node in enumerate(nodes):
            observe(node, rng, factor=2.5 if index % 2 else 1.0)
    assert prefill_s(nodes[1]) / prefill_s(nodes[0]) == pytest.approx(2.5, rel=0.3)


def test_who_is_alone_in_a_class_is_not_slower_than_it() -> None:
    """Nobody else would ever teach the class what it has become, or was all along."""
    [node], rng = grown_up(1.0)
    for _ in range(60):
        observe(node, rng, factor=4.0)
    assert node.slowdown == 1.0
    assert decode_s(node) == pytest.approx(4 * STEP_S, rel=0.3)


def test_a_whole_class_that_becomes_slower_stays_one() -> None:
    nodes, rng = grown_up(1.0, 1.0, 1.0)
    for _ in range(60):
        for node in nodes:
            observe(node, rng, factor=4.0)
    assert {node.slowdown for node in nodes} == {1.0}
    assert len({decode_s(node) for node in nodes}) == 1


@pytest.mark.parametrize("factors", [(2.5, 2.5), (10.0, 10.0, 10.0)])
def test_a_class_whose_nodes_all_became_slower_is_taught_again(factors: tuple[float, ...]) -> None:
    nodes, _ = grown_up(*factors, rounds=60)
    newcomer = Pace(nodes[0].in_force)
    assert decode_s(newcomer) == pytest.approx(factors[0] * STEP_S, rel=0.1)
    assert {node.slowdown for node in nodes} == {1.0}
    assert len({node.speeds() for node in nodes}) == 1, "equal engines"


def test_a_class_whose_nodes_become_slower_one_after_the_other_is_taught_again() -> None:
    nodes, rng = grown_up(1, 1, 1)
    for slow in (1, 2, 3):
        for _ in range(60):
            for number, node in enumerate(nodes):
                observe(node, rng, factor=3.0 if number < slow else 1.0)
        assert [node.slowdown > 2 for node in nodes] == [number < slow < 3 for number in range(3)]


def test_a_class_is_not_taught_by_the_slow_while_one_of_it_is_as_it_was() -> None:
    nodes, rng = grown_up(3, 3, 3, 1)
    for _ in range(60):
        for node in nodes[:3]:
            observe(node, rng, factor=3.0)
        observe(nodes[3], rng)
    assert decode_s(nodes[3]) == pytest.approx(STEP_S, rel=0.1)


def test_a_node_keeps_what_it_learned_itself_in_another_class() -> None:
    (slow, _), _ = grown_up(3, 1)
    moved = slow.within(Calibration())
    assert moved.within(Calibration()) is not moved
    moved.in_force = moved._own
    assert moved.speeds() == slow.speeds()


def test_a_slow_node_that_nothing_confirms_gets_one_trial_at_a_time() -> None:
    (slow, fast), _ = grown_up(3, 1)
    assert decode_s(slow, 1.0) > 2 * decode_s(fast, 1.0)
    later_s = TRIAL_AFTER_S + 1
    assert decode_s(slow, later_s) == decode_s(fast, later_s)
    slow.tried(later_s, idle=True)
    assert decode_s(slow, later_s) > 2 * decode_s(fast, later_s)


def test_a_slow_node_with_work_is_on_no_trial() -> None:
    (slow, fast), _ = grown_up(3, 1)
    later_s = TRIAL_AFTER_S + 1
    assert speeds_at(slow, later_s, idle=False) != speeds_at(fast, later_s, idle=False)
    slow.tried(later_s, idle=False)
    assert slow.on_trial(later_s)


def test_each_trial_that_finds_a_node_slow_makes_the_next_one_rarer() -> None:
    (slow, _), rng = grown_up(3, 1)
    now_s, waits_s = 0.0, []
    for _ in range(7):
        wait_s = next(s for s in (5.5, 10.5, 20.5, 40.5, 80.5) if slow.on_trial(now_s + s))
        now_s += wait_s
        waits_s.append(wait_s)
        slow.tried(now_s, idle=True)
        observe(slow, rng, factor=3)
        slow.confirmed(now_s)
    assert waits_s == [5.5, 10.5, 20.5, 40.5, 80.5, 80.5, 80.5]


def test_when_and_by_what_a_slow_node_is_tried_is_configured() -> None:
    (slow, fast), _ = grown_up(10, 1)
    slow.rules = HealthRules(trial_after_s=30.0, trial_cost_share=1.0)
    assert speeds_at(slow, 29.0, tokens=100) != fast.speeds()
    assert speeds_at(slow, 31.0, tokens=100) == fast.speeds()
    assert speeds_at(slow, 31.0, tokens=8_000) == fast.speeds(), "its 4 s are less than 31"


@pytest.mark.parametrize(("factor", "recovered"), [(1.0, True), (3.0, False)])
def test_the_trial_decides_at_once(factor: float, recovered: bool) -> None:
    (slow, fast), rng = grown_up(3, 1)
    slow.tried(TRIAL_AFTER_S + 1, idle=True)
    observe(slow, rng, factor=factor)
    slow.confirmed(TRIAL_AFTER_S + 1)
    now_s = TRIAL_AFTER_S + 2
    assert (decode_s(slow, now_s) == decode_s(fast, now_s)) == recovered


def test_the_longer_nothing_was_heard_of_a_slow_node_the_longer_a_prompt_may_try_it() -> None:
    (slow, fast), _ = grown_up(10, 1)
    assert prefill_s(slow, 8_000) == pytest.approx(4.0, rel=0.3)
    for wait_s, long_tries in ((TRIAL_AFTER_S + 1, False), (60.0, True)):
        assert speeds_at(slow, wait_s, tokens=100) == fast.speeds()
        assert (speeds_at(slow, wait_s, tokens=8_000) == fast.speeds()) == long_tries


def test_a_node_that_is_found_slow_goes_by_that_at_once() -> None:
    (slow, fast), _ = grown_up(1, 1)
    slow.slowed(6.0, now_s=0.0)
    assert slow.slowdown == pytest.approx(6.0, rel=0.05)
    assert slow.calibrated
    assert prefill_s(slow) == pytest.approx(6 * prefill_s(fast))
    assert decode_s(slow, 1.0) == pytest.approx(6 * decode_s(fast))
    slow.slowed(2.0, now_s=0.0)
    assert decode_s(slow) == pytest.approx(12 * decode_s(fast))


def test_what_a_slow_node_was_found_to_be_gives_way_to_its_samples() -> None:
    (slow, fast), rng = grown_up(1, 1)
    slow.slowed(5.0, now_s=0.0)
    for _ in range(8):
        observe(slow, rng, factor=10)
    assert decode_s(slow) == pytest.approx(10 * decode_s(fast), rel=0.2)
    for _ in range(8):
        observe(slow, rng, factor=1)
    slow.slowed(5.0, now_s=0.0)
    for _ in range(8):
        observe(slow, rng, factor=1)
    assert slow.slowdown == 1.0, "it was slow for a moment"


def test_a_fast_node_needs_no_trial() -> None:
    (fast, _), _ = grown_up(0.4, 1)
    assert not fast.on_trial(1e6)


def test_times_that_cannot_be_are_ignored() -> None:
    pace = Pace(Calibration())
    before = pace.speeds()
    pace.observe_decode(batch_mean=1, kv_tokens_mean=0, step_s=0.0)
    assert pace.speeds() == before
