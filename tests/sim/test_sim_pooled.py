"""The oracle: the sum of the fleet in one engine, which no policy beats in the mean."""

from collections.abc import Sequence
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman.core.policies import catalog
from pointsman.engines.compute_model import PROFILES
from pointsman.sim import Scenario, pooled
from pointsman.sim.node import profile_of
from pointsman.sim.pooled import POLICY
from pointsman.sim.scenario import Fault, FaultKind, NodeGroup
from pointsman.traffic.generate import shared_prefix
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.sessions import chat
from tests.support.profiles import SMALL
from tests.support.simulation import ask, run, small

POLICIES = ["round_robin", "least_request", "marginal_cost", "jffc", "dynamo"]
TOLERANCE = 1.02
"""A step of the pooled engine is no shorter than its tokens: a lone request may wait for one."""


def means(replayed: ReplayedRun) -> tuple[float, float]:
    """TTFT and end-to-end, of a run in which all went well."""
    assert not any(record.failed for record in replayed.records)
    ttft_s = mean(record.ttft_s or 0.0 for record in replayed.records)
    return ttft_s, mean(record.e2e_s for record in replayed.records)


def beaten_by(
    scenario: Scenario, requests: Sequence[TrafficRequest], policies: Sequence[str]
) -> list[str]:
    """The policies that come below the oracle, with both sides' numbers."""
    best = means(run(pooled(scenario), requests, policy=POLICY))
    found = []
    for policy in policies:
        seen = means(run(scenario, requests, policy=policy))
        if any(own > TOLERANCE * other for own, other in zip(best, seen, strict=True)):
            found.append(f"{policy}: {seen} < {best}")
    return found


REQUESTS = st.tuples(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.02, 0.1, 0.5]),
    st.sampled_from([2, 3, 8]),
)


@settings(max_examples=12)
@given(REQUESTS)
def test_no_policy_beats_the_oracle(drawn: tuple[int, int, float, int]) -> None:
    seed, count, gap_s, nodes = drawn
    rng = Random(seed)
    requests, at_s = [], 0.0
    for _ in range(count):
        prompt, output = rng.choice([16, 64, 200, 500, 800]), rng.choice([1, 10, 60, 100])
        requests.append(ask(at_s, prompt, output, prefix=rng.randrange(4)))
        at_s += rng.expovariate(1 / gap_s) if gap_s else 0.0
    assert beaten_by(small(nodes), requests, POLICIES) == []


@pytest.mark.parametrize("rate_rps", [0.5, 8, 40])
def test_no_policy_beats_the_oracle_with_a_real_profile(rate_rps: float) -> None:
    scenario = Scenario(name="x", fleet=(NodeGroup(count=4, kv_tokens=60_000),))
    for requests in (
        chat(requests=50, rate_rps=rate_rps, rng=Random(1)),
        shared_prefix(requests=40, rate_rps=rate_rps, rng=Random(2)),
    ):
        assert beaten_by(scenario, requests, catalog.names()) == []


def test_a_mixed_fleet_is_pooled_too() -> None:
    fleet = (
        NodeGroup(count=2, kv_tokens=60_000),
        NodeGroup(count=1, profile="27b-4bit-a100", slowdown=2.0),
    )
    requests = chat(requests=100, rate_rps=6, rng=Random(1))
    assert beaten_by(Scenario(name="x", fleet=fleet), requests, POLICIES) == []


def profile_of_pooled(*fleet: NodeGroup) -> tuple[NodeGroup, Scenario]:
    scenario = pooled(Scenario(name="x", fleet=fleet, gateways=3))
    (group,) = scenario.fleet
    assert (group.count, scenario.gateways) == (1, 1)
    return group, scenario


def test_equal_engines_are_one_that_many_times_as_fast() -> None:
    group, _ = profile_of_pooled(NodeGroup(count=4, profile=SMALL))
    profile = profile_of(group, 16)
    assert profile.base_s == pytest.approx(SMALL.base_s / 4)
    assert profile.prefill_s_per_token == pytest.approx(SMALL.prefill_s_per_token / 4)
    assert profile.attention_s_per_token2 == pytest.approx(SMALL.attention_s_per_token2 / 4)
    assert profile.sequence_s == pytest.approx(SMALL.sequence_s / 4)
    assert profile.kv_token_s == pytest.approx(SMALL.kv_token_s / 4)
    assert profile.kv_blocks == 4 * SMALL.kv_blocks
    assert profile.max_num_seqs == 4 * SMALL.max_num_seqs
    assert profile.max_model_len == SMALL.max_model_len


def test_a_slow_engine_adds_its_speed() -> None:
    group, _ = profile_of_pooled(
        NodeGroup(profile=SMALL), NodeGroup(count=2, profile=SMALL, slowdown=4.0)
    )
    assert profile_of(group, 16).base_s == pytest.approx(SMALL.base_s / 1.5)


def test_short_steps_cost_no_more_a_token() -> None:
    group, _ = profile_of_pooled(NodeGroup(count=2))
    own, both = PROFILES["8b-h100"], profile_of(group, 16)
    assert both.max_num_batched_tokens == 1_024
    seconds = [p.prefill_s_per_token + p.base_s / p.max_num_batched_tokens for p in (own, both)]
    assert seconds[1] == pytest.approx(seconds[0] / 2)


def test_engines_that_are_good_at_different_things_are_pooled_at_their_best() -> None:
    decoder = replace(SMALL, prefill_s_per_token=9e-4, base_s=0.001)
    prefiller = replace(SMALL, prefill_s_per_token=1e-4, base_s=0.009)
    group, _ = profile_of_pooled(NodeGroup(profile=decoder), NodeGroup(profile=prefiller))
    profile = profile_of(group, 16)
    assert profile.base_s == pytest.approx(0.0009 / 1.8)
    assert profile.prefill_s_per_token == pytest.approx(9e-5 / 1.8)


def test_no_context_is_longer_than_that_of_the_best_node() -> None:
    """What every node refuses, the oracle refuses as well: else it would have more to do."""
    requests = [ask(0.0, 64, 4), ask(1.0, 1_100, 4)]
    for scenario in (small(4), pooled(small(4))):
        statuses = [record.http_status for record in run(scenario, requests).records]
        assert statuses == [200, 400]


def test_it_knows_no_faults_and_no_queue_at_the_gateway() -> None:
    down = (Fault(kind=FaultKind.CRASH, at_s=0.0, duration_s=1e3),)
    replayed = run(pooled(small(2, faults=down)), [ask(0.5, 400, 50) for _ in range(400)])
    assert not any(record.failed for record in replayed.records)
    assert replayed.held == 0


def test_short_prompts_do_not_wait_for_long_ones() -> None:
    requests = [ask(0.0, 1_000, 4) for _ in range(20)] + [ask(0.1, 16, 1)]
    records = run(pooled(small(2)), requests).records
    assert records[-1].ttft_s is not None
    assert records[-1].ttft_s < 0.05
