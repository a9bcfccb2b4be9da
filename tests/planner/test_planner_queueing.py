"""Dispatch rules on the BLOOM chains, and JFFC against exact values and bounds."""

from random import Random

import pytest

from pointsman.planner.bounds import response_bounds, service_rate_per_s
from pointsman.planner.model import ServerChain
from tests.planner.instances import TWO_CHAINS, bloom_chains, measured
from tests.planner.queueing import Dispatch, simulate
from tests.planner.slow_twins import exact_response_s

PUBLISHED_S = {  # mean response by load and rule; JIQ at 0.9 grows for as long as one looks
    0.1: {"jffc": 10.71, "sa_jsq": 14.96, "sed": 10.70, "jsq": 16.66, "jiq": 16.72},
    0.5: {"jffc": 12.95, "sa_jsq": 16.01, "sed": 14.59, "jsq": 19.31, "jiq": 16.05},
    0.7: {"jffc": 14.22, "sa_jsq": 15.85, "sed": 16.78, "jsq": 23.56, "jiq": 16.14},
    0.9: {"jffc": 17.96, "sa_jsq": 18.71, "sed": 20.99, "jsq": 32.54},
}


def mean_s(chains: list[ServerChain], *, load: float, rule: Dispatch, jobs: int) -> float:
    responses = simulate(
        chains,
        rate_per_s=load * service_rate_per_s(chains),
        dispatch=rule,
        jobs=jobs,
        rng=Random(1),
    )
    assert len(responses) == jobs
    return sum(responses) / jobs


def compare_rules(load: float, *, jobs: int, noise: float) -> None:
    chains = list(bloom_chains())
    means_s = {r: mean_s(chains, load=load, rule=r, jobs=jobs) for r in Dispatch}
    bounds = response_bounds(chains, rate_per_s=load * service_rate_per_s(chains))
    assert bounds is not None
    assert bounds.lower_s * 0.97 <= means_s[Dispatch.JFFC] <= bounds.upper_s * 1.03
    if load >= 0.3:
        assert min(means_s, key=means_s.__getitem__) is Dispatch.JFFC
    for rule, published_s in PUBLISHED_S.get(load, {}).items():
        assert means_s[Dispatch(rule)] == pytest.approx(published_s, rel=noise), rule
    if load == 0.9:  # chains are chosen by lot, slow ones as often as fast ones
        assert means_s[Dispatch.JIQ] > 3 * means_s[Dispatch.JFFC]


@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
def test_rules_on_bloom(load: float) -> None:
    compare_rules(load, jobs=20_000, noise=0.06 if load > 0.8 else 0.03)


@pytest.mark.soak
@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
def test_rules_on_bloom_as_published(load: float) -> None:
    compare_rules(load, jobs=100_000, noise=0.015)


@pytest.mark.parametrize(("pairs", "rate_per_s"), [case[:2] for case in TWO_CHAINS])
def test_jffc_is_as_exact_as_its_markov_chain(
    pairs: list[tuple[float, int]], rate_per_s: float
) -> None:
    chains = measured(pairs)
    load = rate_per_s / service_rate_per_s(chains)
    simulated_s = mean_s(chains, load=load, rule=Dispatch.JFFC, jobs=200_000)
    assert simulated_s == pytest.approx(exact_response_s(chains, rate_per_s), rel=0.01)


@pytest.mark.parametrize("rule", Dispatch)
def test_runs_repeat(rule: Dispatch) -> None:
    chains = measured([(1, 2), (3, 3)])
    runs = [
        simulate(chains, rate_per_s=1.5, dispatch=rule, jobs=500, rng=Random(7)) for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_a_job_alone_takes_its_work() -> None:
    """Every rule gets the same work: so few jobs never meet, and chains of one speed are equal."""
    chains = measured([(2, 1), (2, 1)])
    runs = [
        simulate(chains, rate_per_s=1e-6, dispatch=rule, jobs=20, rng=Random(3))
        for rule in Dispatch
    ]
    for run in runs:
        assert run == pytest.approx(runs[0])
        assert 1.0 < sum(run) / len(run) < 3.5


def test_late_binding_needs_one_queue() -> None:
    """Jobs wait behind a slow chain under JSQ while the fast one is free; not under JFFC."""
    chains = measured([(1, 1), (20, 1)])
    jffc_s = mean_s(chains, load=0.6, rule=Dispatch.JFFC, jobs=20_000)
    jsq_s = mean_s(chains, load=0.6, rule=Dispatch.JSQ, jobs=20_000)
    assert jffc_s < jsq_s / 2


@pytest.mark.parametrize(("pairs", "rate_per_s"), [([], 1.0), ([(1, 1)], 0.0)])
def test_nothing_to_simulate(pairs: list[tuple[float, int]], rate_per_s: float) -> None:
    with pytest.raises(ValueError, match="nothing to simulate"):
        simulate(
            measured(pairs), rate_per_s=rate_per_s, dispatch=Dispatch.JFFC, jobs=1, rng=Random(1)
        )
