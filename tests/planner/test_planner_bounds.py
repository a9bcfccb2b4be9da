"""Theorem 4 against published values, Erlang's formula, and the exact Markov chain."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.planner.bounds import response_bounds, service_rate_per_s
from pointsman.planner.model import ServerChain
from tests.planner.instances import TWO_CHAINS, bloom_chains, measured, small_chains, tenths
from tests.planner.slow_twins import bounds_one_by_one, exact_response_s


@pytest.mark.parametrize(("pairs", "rate_per_s", "lower_s", "exact_s", "upper_s"), TWO_CHAINS)
def test_two_chains(
    pairs: list[tuple[float, int]],
    rate_per_s: float,
    lower_s: float,
    exact_s: float,
    upper_s: float,
) -> None:
    chains = measured(pairs)
    bounds = response_bounds(chains, rate_per_s=rate_per_s)
    assert bounds is not None
    assert bounds.lower_s == pytest.approx(lower_s, abs=6e-7)
    assert bounds.upper_s == pytest.approx(upper_s, abs=6e-7)
    assert exact_response_s(chains, rate_per_s) == pytest.approx(exact_s, abs=6e-7)


@pytest.mark.parametrize(
    ("load", "lower_s", "upper_s"),
    [(0.1, 10.67, 18.33), (0.5, 12.06, 17.75), (0.7, 13.60, 16.76), (0.9, 17.67, 19.15)],
)
def test_bloom(load: float, lower_s: float, upper_s: float) -> None:
    chains = bloom_chains()
    bounds = response_bounds(chains, rate_per_s=load * service_rate_per_s(chains))
    assert bounds is not None
    assert bounds.lower_s == pytest.approx(lower_s, abs=0.006)
    assert bounds.upper_s == pytest.approx(upper_s, abs=0.006)


@settings(max_examples=60)
@given(small_chains, st.integers(1, 99).map(lambda percent: percent / 100))
def test_the_truth_lies_between(chains: list[ServerChain], load: float) -> None:
    rate_per_s = load * service_rate_per_s(chains)
    bounds = response_bounds(chains, rate_per_s=rate_per_s)
    assert bounds is not None
    exact_s = exact_response_s(chains, rate_per_s)
    assert bounds.lower_s <= exact_s * (1 + 1e-9)
    assert exact_s <= bounds.upper_s * (1 + 1e-9)


@given(
    st.lists(st.tuples(tenths, st.integers(1, 40)), min_size=1, max_size=4).map(measured),
    st.integers(1, 999).map(lambda permille: permille / 1_000),
)
def test_where_sums_begin_and_end_does_not_matter(chains: list[ServerChain], load: float) -> None:
    rate_per_s = load * service_rate_per_s(chains)
    bounds = response_bounds(chains, rate_per_s=rate_per_s)
    assert bounds is not None
    wanted = bounds_one_by_one(chains, rate_per_s)
    assert (bounds.lower_s, bounds.upper_s) == pytest.approx(wanted, rel=1e-9)


@given(small_chains, st.integers(1, 99).map(lambda percent: percent / 100))
def test_the_order_of_chains_does_not_matter(chains: list[ServerChain], load: float) -> None:
    rate_per_s = load * service_rate_per_s(chains)
    assert response_bounds(chains, rate_per_s=rate_per_s) == response_bounds(
        chains[::-1], rate_per_s=rate_per_s
    )


@pytest.mark.parametrize(("slots", "load"), [(1, 0.5), (8, 0.9), (500, 0.99), (20_000, 0.999)])
def test_one_chain_is_exact(slots: int, load: float) -> None:
    """M/M/c by Erlang's formula; with many slots the weights are beyond the range of floats."""
    bounds = response_bounds(measured([(2.0, slots)]), rate_per_s=load * slots / 2.0)
    offered = load * slots
    blocked = 1.0
    for count in range(1, slots + 1):
        blocked = offered * blocked / (count + offered * blocked)
    waits = blocked / (1 - load * (1 - blocked))
    expected_s = 2.0 + waits * 2.0 / (slots * (1 - load))
    assert bounds is not None
    assert bounds.lower_s == pytest.approx(expected_s, rel=1e-9)
    assert bounds.upper_s == pytest.approx(expected_s, rel=1e-9)


def test_what_cannot_be_carried_has_no_bounds() -> None:
    chains = measured([(1, 1), (2, 1)])
    assert service_rate_per_s(chains) == 1.5
    assert response_bounds(chains, rate_per_s=1.5) is None
    assert response_bounds([], rate_per_s=0.1) is None


@given(small_chains)
def test_just_below_the_service_rate_bounds_are_finite(chains: list[ServerChain]) -> None:
    """Sums in another order may differ in their last digit: that must not divide by zero."""
    for step in range(1, 40):
        rate_per_s = service_rate_per_s(chains) * (1 - step * 2**-53)
        bounds = response_bounds(chains, rate_per_s=rate_per_s)
        assert bounds is None or 0 < bounds.lower_s < math.inf


def test_a_rate_is_above_zero() -> None:
    with pytest.raises(ValueError, match="rate_per_s"):
        response_bounds(measured([(1, 1)]), rate_per_s=0)
