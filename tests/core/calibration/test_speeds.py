"""Speeds of one node, from the times that its requests took."""

import math
import random

import pytest

from pointsman.core.calibration import PRIOR, Calibration, Speeds

SLOW = Speeds(0.020, 4.0e-4, 4.0e-8, 0.031, 9.0e-4, 6.0e-7)


def observe(calibration: Calibration, truth: Speeds, count: int, rng: random.Random) -> None:
    for _ in range(count):
        new = 10 ** rng.uniform(1.5, 4.0)
        ahead = rng.choice([0.0, 0.0, 2_000.0])
        own_pairs, pairs_ahead = new * new / 2, ahead * ahead / 2
        calibration.observe_prefill(
            tokens_ahead=ahead,
            tokens_own=new,
            attention_ahead=pairs_ahead,
            attention_own=own_pairs,
            ttft_s=rng.gauss(1.0, 0.05)
            * (
                truth.dispatch_s
                + truth.prefill_s_per_token * (new + ahead)
                + truth.attention_s_per_token2 * (own_pairs + pairs_ahead)
            ),
        )
        batch, resident = rng.uniform(1, 64), rng.uniform(1e3, 2e5)
        calibration.observe_decode(
            batch_mean=batch,
            kv_tokens_mean=resident,
            step_s=rng.gauss(1.0, 0.05)
            * (truth.step_s + truth.sequence_s * batch + truth.kv_token_s * resident),
        )


def ttft_s(speeds: Speeds, tokens: float) -> float:
    return (
        speeds.dispatch_s
        + speeds.prefill_s_per_token * tokens
        + speeds.attention_s_per_token2 * tokens * tokens / 2
    )


def step_s(speeds: Speeds, batch: float, resident: float) -> float:
    return speeds.step_s + speeds.sequence_s * batch + speeds.kv_token_s * resident


def test_before_data_the_speeds_are_the_prior() -> None:
    calibration = Calibration()
    assert calibration.speeds() == PRIOR
    assert not calibration.calibrated
    assert calibration.prefill.error is None


def test_the_prior_is_the_published_fit() -> None:
    k = 8.0
    assert ttft_s(PRIOR, 1_000 * k) == pytest.approx(0.066 + 0.0570 * k + 0.00441 * k * k)
    assert step_s(PRIOR, 10, 1e5) == pytest.approx(0.01064 + 0.000419 * 10 + 1.42e-7 * 1e5)


@pytest.mark.parametrize("seed", range(3))
def test_it_learns_another_engine(seed: int) -> None:
    calibration = Calibration(PRIOR)
    observe(calibration, SLOW, 400, random.Random(seed))
    learned = calibration.speeds()
    for tokens in (100, 1_000, 10_000):
        assert ttft_s(learned, tokens) == pytest.approx(ttft_s(SLOW, tokens), rel=0.05)
    for batch, resident in ((1, 2e3), (16, 5e4), (60, 2e5)):
        assert step_s(learned, batch, resident) == pytest.approx(
            step_s(SLOW, batch, resident), rel=0.05
        )
    assert calibration.prefill.error == pytest.approx(0.04, abs=0.03)


def test_it_is_calibrated_after_eight_samples_of_each_kind() -> None:
    calibration = Calibration()
    rng = random.Random(0)
    verdicts = []
    for _ in range(9):
        observe(calibration, PRIOR, 1, rng)
        verdicts.append(calibration.calibrated)
    assert verdicts == [False] * 7 + [True] * 2
    assert (calibration.prefill.count, calibration.decode.count) == (9, 9)


def test_it_is_not_calibrated_while_nothing_fits() -> None:
    calibration = Calibration()
    for n in range(60):
        calibration.observe_decode(batch_mean=1, kv_tokens_mean=0, step_s=0.01)
        calibration.observe_prefill(
            tokens_ahead=0.0,
            tokens_own=1_000.0,
            attention_ahead=0.0,
            attention_own=5e5,
            ttft_s=0.001 * 1_000 ** (n % 2),
        )
    assert not calibration.calibrated


def test_prefills_alone_tell_how_fast_an_engine_probably_decodes() -> None:
    calibration, rng = Calibration(), random.Random(3)
    for _ in range(20):
        tokens = rng.uniform(500, 8_000)
        pairs = tokens * tokens / 2
        calibration.observe_prefill(
            tokens_ahead=0.0,
            tokens_own=tokens,
            attention_ahead=0.0,
            attention_own=pairs,
            ttft_s=3 * (PRIOR.prefill_s_per_token * tokens + PRIOR.attention_s_per_token2 * pairs),
        )
    assert calibration.calibrated
    assert calibration.speeds().step_s == pytest.approx(3 * PRIOR.step_s, rel=0.2)
    for _ in range(30):
        calibration.observe_decode(batch_mean=4, kv_tokens_mean=0, step_s=0.01)
    step_s = calibration.step_s(4, 0)
    assert step_s == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_teach_nothing(seconds: float) -> None:
    calibration = Calibration()
    calibration.observe_decode(batch_mean=1, kv_tokens_mean=0, step_s=seconds)
    assert (calibration.prefill.count, calibration.decode.count) == (0, 0)
    assert calibration.speeds() == PRIOR


def test_what_was_queued_ahead_counts_less_than_what_is_its_own() -> None:
    certain, vague = Calibration(), Calibration()
    for calibration, ahead in ((certain, 0.0), (vague, 50_000.0)):
        for _ in range(20):
            observe(calibration, PRIOR, 1, random.Random(1))
            own = 1_000.0
            calibration.observe_prefill(
                tokens_ahead=ahead,
                tokens_own=own,
                attention_ahead=0.0,
                attention_own=own * own / 2,
                ttft_s=1.5
                * (
                    PRIOR.dispatch_s
                    + PRIOR.prefill_s_per_token * (own + ahead)
                    + PRIOR.attention_s_per_token2 * own * own / 2
                ),
            )
    prior_s = ttft_s(PRIOR, 1_000)
    moved = [abs(ttft_s(c.speeds(), 1_000) - prior_s) for c in (certain, vague)]
    assert moved[0] > 2 * moved[1]
