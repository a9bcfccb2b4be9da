"""Tuning against a full scan, the paper's choices for BLOOM, replicas for a response time."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.planner.allocation import allocate_cache
from pointsman.planner.bounds import response_bounds
from pointsman.planner.model import Server, Service
from pointsman.planner.placement import place_layers
from pointsman.planner.plan import Goal, NoPlan, Plan, copies, plan, replicas_for
from tests.planner.instances import BLOOM_SERVERS, BLOOM_SERVICE, clusters, services
from tests.planner.queueing import Dispatch, simulate
from tests.planner.slow_twins import place_as_published

RATE_PER_S = 0.2
ENGINE = [Server(name="engine", memory_gb=40, job_s=0.5, layer_s=0.05)]
MODEL = Service(layers=32, layer_gb=0.4375, cache_gb=0.0336)


def test_the_published_choice_for_bloom() -> None:
    """With the paper's early stop: 8 by the lower bound, not its surrogate's 3."""
    lower_s = {c: published_lower_s(c) for c in range(1, 352)}
    assert min(lower_s, key=lower_s.__getitem__) == 8
    assert lower_s[8] == pytest.approx(10.673, abs=5e-4)
    assert lower_s[7] == pytest.approx(10.685, abs=5e-4)
    assert lower_s[3] == pytest.approx(14.155, abs=5e-4)


def published_lower_s(c: int) -> float:
    placement = place_as_published(BLOOM_SERVERS, BLOOM_SERVICE, c=c, rate_per_s=RATE_PER_S)
    bounds = response_bounds(allocate_cache(placement), rate_per_s=RATE_PER_S)
    return bounds.lower_s if bounds else float("inf")


@pytest.mark.parametrize("rate_per_s", [0.2, 0.6, 1.2])
def test_filled_servers_serve_better(rate_per_s: float) -> None:
    found = plan(BLOOM_SERVERS, BLOOM_SERVICE, rate_per_s=rate_per_s)
    assert isinstance(found, Plan)
    assert 0 < found.load < 1
    assert found.job_slots == sum(chain.job_slots for chain in found.chains)
    assert len(found.placement.stages) == len(BLOOM_SERVERS)
    assert found.bounds.lower_s <= 1.03 * simulated_s(found) <= 1.06 * found.bounds.upper_s
    for c in (3, 7, 8):
        fixed = plan(BLOOM_SERVERS, BLOOM_SERVICE, rate_per_s=rate_per_s, jobs_reserved=c)
        if isinstance(fixed, Plan):
            assert found.bounds.lower_s <= fixed.bounds.lower_s


def simulated_s(found: Plan) -> float:
    responses = simulate(
        found.chains,
        rate_per_s=found.rate_per_s,
        dispatch=Dispatch.JFFC,
        jobs=20_000,
        rng=Random(1),
    )
    return sum(responses) / len(responses)


def test_what_servers_cannot_carry() -> None:
    too_much = plan(BLOOM_SERVERS, BLOOM_SERVICE, rate_per_s=20)
    assert isinstance(too_much, NoPlan)
    below = too_much.service_rate_per_s * 0.999
    assert isinstance(plan(BLOOM_SERVERS, BLOOM_SERVICE, rate_per_s=below), Plan)
    too_few = plan(BLOOM_SERVERS[:2], BLOOM_SERVICE, rate_per_s=RATE_PER_S)
    assert too_few == NoPlan(service_rate_per_s=0.0)


@settings(max_examples=40)
@given(clusters(), services(), st.integers(1, 30), st.sampled_from(Goal))
def test_no_other_reserve_is_better(
    servers: list[Server], service: Service, tenths: int, goal: Goal
) -> None:
    """Against every number of jobs that any server has memory for."""
    rate_per_s = tenths / 10
    found = plan(servers, service, rate_per_s=rate_per_s, goal=goal)
    fixed = [
        response_bounds(allocate_cache(placement), rate_per_s=rate_per_s)
        for c in range(1, jobs_max(servers, service) + 1)
        for placement in [place_layers(servers, service, jobs_reserved=c)]
    ]
    best = min((b.lower_s if goal is Goal.LOWER else b.upper_s for b in fixed if b), default=None)
    if isinstance(found, Plan):
        reached = found.bounds.lower_s if goal is Goal.LOWER else found.bounds.upper_s
        assert reached == best
    else:
        assert best is None


def jobs_max(servers: list[Server], service: Service) -> int:
    return max(service.cache_slots(s.memory_gb, layers=1) for s in servers)


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("rate_per_s", [1.0, 40.0, 70.0, 110.0, 150.0])
def test_replicas_suffice_and_one_less_does_not(goal: Goal, rate_per_s: float) -> None:
    count = replicas_for(ENGINE, MODEL, rate_per_s=rate_per_s, response_s=2.2, goal=goal)
    assert count is not None
    assert best_s(count, rate_per_s, goal) <= 2.2
    assert best_s(count - 1, rate_per_s, goal) > 2.2


def best_s(count: int, rate_per_s: float, goal: Goal) -> float:
    found = plan(copies(ENGINE, count), MODEL, rate_per_s=rate_per_s, goal=goal)
    if isinstance(found, NoPlan):
        return float("inf")
    return found.bounds.lower_s if goal is Goal.LOWER else found.bounds.upper_s


def test_no_number_of_replicas_makes_a_job_faster() -> None:
    assert replicas_for(ENGINE, MODEL, rate_per_s=1, response_s=2.0, replicas_max=5) is None
    assert replicas_for(ENGINE, MODEL, rate_per_s=40, response_s=9.0, replicas_max=2) is None


def test_copies_are_numbered() -> None:
    assert [s.name for s in copies(ENGINE, 2)] == ["engine-1", "engine-2"]
    assert copies(ENGINE, 0) == []
