"""Nodes of one class learn together, and each keeps its own pace."""

from random import Random

import pytest

from pointsman.core.calibration import Calibration, Pace

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


@pytest.mark.parametrize("factor", [2.5, 0.4])
def test_a_node_that_is_slower_or_faster_than_its_class_is_found_out(factor: float) -> None:
    shared, rng = Calibration(), Random(3)
    odd, *others = [Pace(shared) for _ in range(4)]
    for _ in range(120):
        observe(odd, rng, factor=factor)
        for other in others:
            observe(other, rng)
    assert prefill_s(odd) / prefill_s(others[0]) == pytest.approx(factor, rel=0.25)
    assert odd.speeds().step_s / others[0].speeds().step_s == pytest.approx(factor, rel=0.25)
    assert prefill_s(others[0]) == pytest.approx(4_000 * PER_TOKEN_S, rel=0.25)


def test_half_of_a_class_may_be_slow() -> None:
    shared, rng = Calibration(), Random(4)
    nodes = [Pace(shared) for _ in range(8)]
    for _ in range(120):
        for index, node in enumerate(nodes):
            observe(node, rng, factor=2.5 if index % 2 else 1.0)
    assert prefill_s(nodes[1]) / prefill_s(nodes[0]) == pytest.approx(2.5, rel=0.3)


def test_a_node_keeps_its_pace_in_another_class() -> None:
    shared, rng = Calibration(), Random(5)
    slow, fast = Pace(shared), Pace(shared)
    for _ in range(100):
        observe(slow, rng, factor=3)
        observe(fast, rng)
    moved = slow.within(Calibration())
    assert (moved.prefill, moved.decode) == (slow.prefill, slow.decode)


def test_times_that_cannot_be_are_ignored() -> None:
    pace = Pace(Calibration())
    before = pace.speeds()
    pace.observe_decode(batch_mean=1, kv_tokens_mean=0, step_s=0.0)
    assert pace.speeds() == before
