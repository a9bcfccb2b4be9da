"""A whole run: the same bytes every time, and the times that arithmetic gives."""

import hashlib
import os
import subprocess
import sys
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.policies import catalog
from pointsman.sim import Scenario, simulate
from pointsman.sim.scenario import (
    Clients,
    Fault,
    FaultKind,
    Index,
    Knowledge,
    Network,
    NodeGroup,
)
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.sessions import chat
from tests.support.profiles import SMALL
from tests.support.simulation import NO_DELAYS, ask, in_order, run, small


def busy(policy: str = "marginal_cost", seed: int = 0) -> ReplayedRun:
    """A run in which everything has its hand: faults, lots, losses, retries, several gateways."""
    requests = chat(requests=40, rate_rps=12, rng=Random(1), system_tokens=64, turns_mean=3)
    scenario = small(
        3,
        gateways=2,
        knowledge=Knowledge(index=Index.PRECISE, event_loss=0.2),
        clients=Clients(closed_loop=True, retries_max=2, timeout_s=5.0),
        faults=(
            Fault(kind=FaultKind.CRASH, at_s=3.0, duration_s=2.0, nodes=("node-1",)),
            Fault(kind=FaultKind.FLAP, at_s=5.0, duration_s=3.0, nodes=("node-0",)),
        ),
    )
    return run(scenario, requests, policy=policy, seed=seed)


def digest(replayed: ReplayedRun) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(replayed)).hexdigest()


@pytest.mark.parametrize("policy", catalog.names())
def test_the_same_seed_gives_the_same_bytes(policy: str) -> None:
    assert digest(busy(policy)) == digest(busy(policy))


def test_another_process_gives_the_same_bytes_and_another_seed_others() -> None:
    script = "from tests.sim.test_sim_world import *; print(digest(busy('power_of_two', 7)))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert digests == {digest(busy("power_of_two", 7))}
    assert digest(busy("power_of_two", 8)) not in digests


def test_a_stopwatch_changes_nothing_but_what_it_measures() -> None:
    ticks = iter(range(10**6))
    requests = [ask(at_s / 10, 64, 4, prefix=1) for at_s in range(30)]
    timed = simulate(
        small(), requests, policy="marginal_cost", stopwatch=lambda: float(next(ticks))
    )
    assert len(timed.decision_s) == 30
    assert timed.wall_s > 0
    untimed = msgspec.structs.replace(timed, decision_s=(), wall_s=0.0)
    assert untimed == run(small(), requests)


# --- times by hand ----------------------------------------------------------------------


def prefill_s(tokens: int, *, cached: int = 0) -> float:
    """In one step of its own, by the formula of the profile."""
    attention = SMALL.attention_s_per_token2 * (tokens**2 - cached**2)
    return SMALL.base_s + SMALL.prefill_s_per_token * (tokens - cached) + attention


def decode_s(prompt: int, output: int, *, batch: int = 1) -> float:
    """All steps after the first token."""
    steps = output - 1
    kv_tokens = steps * prompt + steps * output / 2
    fixed_s = SMALL.base_s + SMALL.sequence_s * batch
    return steps * fixed_s + SMALL.kv_token_s * batch * kv_tokens


@settings(max_examples=30)
@given(prompt=st.integers(1, 256), output=st.integers(1, 200))
def test_a_lone_request_takes_what_the_formula_says(prompt: int, output: int) -> None:
    network = Network(client_s=0.001, engine_s=0.0003, dispatch_s=0.007)
    (record,) = run(small(1, network=network), [ask(3.0, prompt, output)]).records
    way_s = 2 * 0.001 + 2 * 0.0003 + 0.007
    assert record.ttft_s == pytest.approx(way_s + prefill_s(prompt), abs=1e-9)
    e2e_s = way_s + prefill_s(prompt) + decode_s(prompt, output)
    assert record.e2e_s == pytest.approx(e2e_s, abs=1e-9)
    if output > 1:
        assert record.tpot_s == pytest.approx(decode_s(prompt, output) / (output - 1), abs=1e-9)


def test_a_long_prompt_is_cut_into_steps() -> None:
    (record,) = run(small(1, network=NO_DELAYS), [ask(0.0, 700, 1)]).records
    in_one_s = prefill_s(700)
    assert record.ttft_s == pytest.approx(in_one_s + 2 * SMALL.base_s, abs=1e-9)


def test_a_prefix_saves_its_tokens_and_their_attention() -> None:
    requests = [ask(0.0, 160, 1, prefix=1), ask(1.0, 200, 1, prefix=1), ask(2.0, 160, 1, prefix=1)]
    records = run(small(1, network=NO_DELAYS), requests).records
    assert [record.cached_tokens for record in records] == [0, 160, 144]  # never the last block
    assert records[1].ttft_s == pytest.approx(prefill_s(200, cached=160), abs=1e-9)
    assert records[2].ttft_s == pytest.approx(prefill_s(160, cached=144), abs=1e-9)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20))
def test_equal_prompts_queue_one_behind_the_other(whens: list[int]) -> None:
    """Each prompt fills a step, so it is Lindley's recursion: M/D/1 with any arrivals."""
    arrivals_s = sorted(when * 0.017 + 1e-5 * number for number, when in enumerate(whens))
    requests = [ask(at_s, 256, 1) for at_s in arrivals_s]
    records = run(small(1, network=NO_DELAYS), requests, policy="round_robin").records
    free_s = 0.0
    for at_s, record in zip(arrivals_s, records, strict=True):
        free_s = max(free_s, at_s) + prefill_s(256)
        assert record.ttft_s == pytest.approx(free_s - at_s, abs=1e-9)


def test_a_batch_decodes_together() -> None:
    """All come while the engine stands still, and then are prefilled in one step."""
    stands = Fault(kind=FaultKind.HANG, at_s=0.0, duration_s=1.0)
    requests = [ask(0.5, 32, 11) for _ in range(4)]
    scenario = small(1, network=NO_DELAYS, faults=(stands,), clients=Clients(bounds_output=True))
    together_s = SMALL.base_s + 4 * (prefill_s(32) - SMALL.base_s)
    for record in run(scenario, requests, policy="round_robin").records:
        assert record.ttft_s == pytest.approx(0.5 + together_s, abs=1e-9)
        assert record.e2e_s == pytest.approx(0.5 + together_s + decode_s(32, 11, batch=4), abs=1e-9)


def test_a_slow_group_is_slower_by_its_factor() -> None:
    fleet = (NodeGroup(profile=SMALL, slowdown=2.5),)
    scenario = Scenario(name="slow", fleet=fleet, network=NO_DELAYS)
    (record,) = run(scenario, [ask(0.0, 100, 20)]).records
    assert record.e2e_s == pytest.approx(2.5 * (prefill_s(100) + decode_s(100, 20)), abs=1e-9)


# --- fleets and streams -----------------------------------------------------------------


STREAM = in_order(
    [ask(i * 0.11, 64 + 16 * (i % 9), 4 + i % 7, prefix=1 + i % 3) for i in range(60)]
)


@pytest.mark.parametrize("policy", catalog.names())
def test_every_policy_serves_mixed_block_sizes(policy: str) -> None:
    fleet = tuple(
        NodeGroup(profile=SMALL, block_tokens=size, kv_tokens=kv_tokens)
        for size, kv_tokens in ((16, 1_024), (8, 2_048), (4, 512))
    )
    scenario = Scenario(
        name="mixed", fleet=fleet, knowledge=Knowledge(index=Index.PRECISE), gateways=2
    )
    replayed = run(scenario, STREAM, policy=policy)
    assert not any(record.failed for record in replayed.records)
    assert sum(record.cached_tokens or 0 for record in replayed.records) > 0


def test_smaller_engine_blocks_share_what_larger_ones_share_and_more() -> None:
    requests = [ask(0.0, 160, 1, prefix=1), ask(1.0, 160, 1, prefix=1)]
    cached = []
    for size in (16, 8, 2):
        fleet = (NodeGroup(profile=SMALL, block_tokens=size),)
        records = run(Scenario(name="x", fleet=fleet), requests).records
        cached.append(records[1].cached_tokens)
    assert cached == [144, 152, 158]  # all but the last block


def test_blocks_that_do_not_divide_the_traffic_are_an_error() -> None:
    fleet = (NodeGroup(profile=SMALL, block_tokens=12),)
    with pytest.raises(ValueError, match=r"blocks of 12 tokens do not divide .* 16 is best"):
        run(Scenario(name="x", fleet=fleet), STREAM)


def test_traffic_of_two_block_sizes_is_an_error() -> None:
    other = msgspec.structs.replace(STREAM[-1], block_tokens=8)
    with pytest.raises(ValueError, match="blocks of 8, 16 tokens"):
        run(small(), [*STREAM, other])


def test_an_unknown_profile_and_no_requests_are_errors() -> None:
    with pytest.raises(ValueError, match="unknown profile 'x'; choose one of 8b-h100"):
        run(Scenario(name="x", fleet=(NodeGroup(profile="x"),)), STREAM)
    with pytest.raises(ValueError, match="no request to replay"):
        run(small(), [])


def test_a_prompt_beyond_the_context_is_the_engines_400() -> None:
    fleet = (NodeGroup(count=2, profile=SMALL, context_tokens=900),)
    requests = [ask(0.0, 2_000, 5), ask(0.1, 600, 5), ask(0.2, 100, 5), ask(0.3, 890, 50)]
    records = run(Scenario(name="x", fleet=fleet), requests).records
    assert [record.http_status for record in records] == [400, 200, 200, 400]
    assert records[0].cause == "bad_request"
    assert records[0].ttft_s is None
    assert records[0].e2e_s < 0.1


def test_nodes_that_start_later_are_used_from_then_on() -> None:
    fleet = (NodeGroup(profile=SMALL), NodeGroup(count=2, profile=SMALL, startup_s=3.0))
    records = run(Scenario(name="x", fleet=fleet), STREAM, policy="round_robin").records
    early = {record.node for record in records if record.due_s < 2.9}
    later = {record.node for record in records if record.due_s > 3.1}
    assert (early, later) == ({"node-0"}, {"node-0", "node-1", "node-2"})


def test_without_any_node_requests_are_refused_until_one_returns() -> None:
    down = Fault(kind=FaultKind.CRASH, at_s=1.0, duration_s=3.0)
    records = run(small(faults=(down,)), STREAM).records
    refused = [record for record in records if record.http_status in (502, 503)]
    assert refused
    assert all(0.9 < record.due_s < 6.0 for record in refused)
    assert not any(record.failed for record in records if record.due_s > 6.0)


def test_a_hang_of_hours_ends_in_the_gateways_time_limit() -> None:
    stands = Fault(kind=FaultKind.HANG, at_s=0.0, duration_s=1e5)
    (record,) = run(small(1, faults=(stands,)), [ask(1.0, 64, 4)]).records
    assert (record.outcome, record.http_status) == ("http_error", 504)
    assert record.cause == "first_token_timeout"
    assert record.e2e_s == pytest.approx(600, abs=2)


def test_far_apart_arrivals_are_no_stall() -> None:
    requests = [ask(0.0, 64, 4), ask(40_000.0, 64, 4), ask(200_000.0, 64, 4)]
    assert not any(record.failed for record in run(small(1), requests).records)


def test_the_samples_are_even_and_few() -> None:
    requests = [ask(at_s / 2, 64, 40) for at_s in range(400)]
    series = run(small(3, faults=()), requests).series
    times_s = series.times_s
    assert 100 < len(times_s) <= 240
    gap_s = times_s[1] - times_s[0]
    assert all(
        after - before == pytest.approx(gap_s, abs=1e-5) for before, after in pairwise(times_s)
    )
    assert [node.node for node in series.nodes] == ["node-0", "node-1", "node-2"]
    for node in series.nodes:
        assert len(node.running) == len(node.remaining_s) == len(times_s)
        assert max(node.running) > 0
        assert max(node.remaining_s) > 0


def test_of_many_nodes_some_are_sampled() -> None:
    fleet = (NodeGroup(count=130, profile=SMALL),)
    series = run(Scenario(name="x", fleet=fleet), STREAM[:10]).series
    assert [node.node for node in series.nodes[:3]] == ["node-0", "node-3", "node-6"]
    assert len(series.nodes) == 44


@settings(max_examples=10)
@given(seed=st.integers(0, 1_000), gateways=st.sampled_from([1, 2, 4]))
def test_gateways_share_the_work_and_the_nodes(seed: int, gateways: int) -> None:
    replayed = run(small(3, gateways=gateways), STREAM, policy="random", seed=seed)
    assert not any(record.failed for record in replayed.records)
    assert len({record.node for record in replayed.records}) == 3


def test_progress_goes_up_to_the_end() -> None:
    shares: list[float] = []
    simulate(small(), STREAM, policy="round_robin", on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[0] == 0.0


def test_order_of_equal_arrivals_is_that_of_the_stream() -> None:
    requests: list[TrafficRequest] = [ask(1.0, 256, 1) for _ in range(5)]
    records = run(small(1, network=NO_DELAYS), requests).records
    waits_s = [record.ttft_s or 0.0 for record in records]
    assert waits_s == sorted(waits_s)
