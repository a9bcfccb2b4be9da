"""The regression: against a slow twin, and as what it is for: tracking an engine."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.calibration.fit import Fit, Triple, nnls

PRIOR = (0.05, 5e-5, 1e-8)
UNLIKE_PRIOR = (0.012, 4.1e-4, 2.3e-8)
PROBES: list[Triple] = [(1.0, n, n * n / 2) for n in (64.0, 512.0, 4_096.0, 32_768.0)]


def objective(matrix: list[list[float]], vector: list[float], x: Triple) -> float:
    quadratic = sum(x[i] * matrix[i][j] * x[j] for i in range(3) for j in range(3))
    return 0.5 * quadratic - sum(v * xi for v, xi in zip(vector, x, strict=True))


def slow_nnls(matrix: list[list[float]], vector: list[float]) -> Triple:
    """Cyclic coordinate descent on x ≥ 0: slow, and hard to get wrong."""
    x = [0.0, 0.0, 0.0]
    for _ in range(20_000):
        before = list(x)
        for i in range(3):
            others = sum(matrix[i][j] * x[j] for j in range(3) if j != i)
            x[i] = max(0.0, (vector[i] - others) / matrix[i][i])
        if x == before:
            break
    return (x[0], x[1], x[2])


@given(
    st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=1, max_size=6),
    st.tuples(*[st.floats(-5, 5)] * 3),
)
def test_nnls_equals_its_slow_twin(
    rows: list[tuple[float, float, float]], vector: tuple[float, float, float]
) -> None:
    matrix = [[sum(r[i] * r[j] for r in rows) for j in range(3)] for i in range(3)]
    for i in range(3):
        matrix[i][i] += 0.5
    fast, slow = nnls(matrix, list(vector)), slow_nnls(matrix, list(vector))
    assert min(fast) >= 0
    assert fast == pytest.approx(slow, abs=1e-6)
    assert objective(matrix, list(vector), fast) <= objective(matrix, list(vector), slow) + 1e-9


def test_before_data_the_prior_predicts() -> None:
    fit = Fit(PRIOR)
    assert fit.coefficients == PRIOR
    assert fit.error is None
    assert fit.predict((1.0, 1_000.0, 5e5)) == pytest.approx(0.05 + 0.05 + 0.005)


def value(truth: Triple, features: Triple) -> float:
    return sum(t * f for t, f in zip(truth, features, strict=True))


def prompt(rng: random.Random) -> Triple:
    tokens = 10 ** rng.uniform(1.5, 4.5)
    cached = rng.choice([0.0, 0.0, 0.9]) * tokens
    new = tokens - cached
    return (1.0, new, new * (tokens - new / 2))


def feed(
    fit: Fit,
    truth: Triple,
    count: int,
    noise: Callable[[], float],
    rng: random.Random,
    *,
    weight: float = 1.0,
) -> None:
    for _ in range(count):
        features = prompt(rng)
        fit.observe(features, value(truth, features) * noise(), weight)


def worst_error(fit: Fit, truth: Triple) -> float:
    return max(abs(fit.predict(probe) / value(truth, probe) - 1) for probe in PROBES)


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_coefficients_in_noise(seed: int) -> None:
    rng = random.Random(seed)
    fit = Fit(PRIOR)
    feed(fit, UNLIKE_PRIOR, 400, lambda: rng.gauss(1.0, 0.1), rng)
    assert worst_error(fit, UNLIKE_PRIOR) < 0.05
    assert fit.error == pytest.approx(0.08, abs=0.05)


def test_a_few_samples_are_enough_for_a_first_idea() -> None:
    rng = random.Random(1)
    fit = Fit(PRIOR)
    feed(fit, UNLIKE_PRIOR, 12, lambda: 1.0, rng)
    assert worst_error(fit, UNLIKE_PRIOR) < 0.35


def test_samples_that_count_little_make_little_of_the_others_forgotten() -> None:
    rng = random.Random(2)
    fit = Fit(PRIOR)
    feed(fit, UNLIKE_PRIOR, 200, lambda: 1.0, rng)
    feed(fit, UNLIKE_PRIOR, 1_000, lambda: rng.uniform(0.8, 1.4), rng, weight=0.01)
    assert worst_error(fit, UNLIKE_PRIOR) < 0.04


def test_where_samples_tell_no_terms_apart_all_are_scaled_alike() -> None:
    fit = Fit(PRIOR)
    for _ in range(100):
        fit.observe((1.0, 1_000.0, 5e5), 10 * value(PRIOR, (1.0, 1_000.0, 5e5)))
    assert fit.coefficients == pytest.approx([10 * c for c in PRIOR], rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_heavy_noise_is_not_taken_for_change(seed: int) -> None:
    rng = random.Random(seed)
    fit = Fit(PRIOR)
    feed(fit, UNLIKE_PRIOR, 400, lambda: math.exp(rng.gauss(0.0, 0.3)), rng)
    assert worst_error(fit, UNLIKE_PRIOR) < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_outliers_change_little(seed: int) -> None:
    rng = random.Random(seed)
    fit = Fit(PRIOR)
    feed(fit, UNLIKE_PRIOR, 100, lambda: rng.gauss(1.0, 0.1), rng)
    feed(
        fit,
        UNLIKE_PRIOR,
        300,
        lambda: rng.gauss(1.0, 0.1) * (20.0 if rng.random() < 0.05 else 1.0),
        rng,
    )
    assert worst_error(fit, UNLIKE_PRIOR) < 0.15


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_it_follows_an_engine_that_changes_threefold(factor: float, seed: int) -> None:
    rng = random.Random(seed)
    fit = Fit(PRIOR)
    feed(fit, UNLIKE_PRIOR, 500, lambda: rng.gauss(1.0, 0.1), rng)
    a, b, c = UNLIKE_PRIOR
    changed = (factor * a, factor * b, factor * c)
    feed(fit, changed, 30, lambda: rng.gauss(1.0, 0.1), rng)
    assert worst_error(fit, changed) < 0.15
    feed(fit, changed, 200, lambda: rng.gauss(1.0, 0.1), rng)
    assert worst_error(fit, changed) < 0.08


@given(
    st.lists(
        st.tuples(st.floats(0, 1e5), st.floats(0, 1e9), st.floats(1e-6, 1e4), st.floats(1e-4, 1.0)),
        max_size=60,
    )
)
def test_whatever_comes_no_coefficient_is_negative_or_lost(
    samples: list[tuple[float, float, float, float]],
) -> None:
    fit = Fit(PRIOR)
    for tokens, pairs, seconds, weight in samples:
        fit.observe((1.0, tokens, pairs), seconds, weight)
        assert all(0.0 <= c < 1e12 for c in fit.coefficients)
        assert fit.error is not None
