"""What the live cross-check stands on: the simulator's twin, and what is said of the numbers."""

from pathlib import Path

import msgspec
import pytest

from bench.live_table import Contender, Cores, Turn, twin_verdicts, verdicts, warnings
from bench.live_twin import (
    LOOPBACK_S,
    WOBBLE_S,
    Twin,
    network,
    prefill_load,
    scenario,
    ttft_s_without_delays,
    wobbled,
)
from bench.peers.fleet import FleetPlan
from bench.peers.gateways import TOKEN_IDS, Site, router
from pointsman.engines.compute_model import PROFILES
from pointsman.report.run import Load, LoadMode, Run, Workload
from pointsman.report.summary import Summary
from pointsman.sim.scenario import Index
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.request import TrafficRequest, summarize
from pointsman.traffic.slo import Slo

FLEET = FleetPlan(engines=3, profile="8b-h100", kv_blocks=1_000, speed=2.0)
QUIET = Cores(cores=2, client=0.1, router=0.1, engines=0.3, machine=0.6)


def test_the_twin_waits_for_a_first_token_as_long_as_was_measured() -> None:
    delays = network(0.009)
    there_and_back = 2 * (delays.client_s + delays.engine_s)
    assert there_and_back + delays.dispatch_s == pytest.approx(0.009)
    assert network(2 * LOOPBACK_S).dispatch_s == 0.0


def test_the_twin_has_the_engines_of_the_live_run() -> None:
    (group,) = scenario(FLEET, network(0.0)).fleet
    assert (group.count, group.kv_tokens, group.block_tokens) == (3, 16_000, 16)
    profile = PROFILES["8b-h100"]
    step_s = profile.base_s + profile.prefill_s_per_token * 1_000
    step_s += profile.attention_s_per_token2 * 1_000**2
    assert ttft_s_without_delays(FLEET, _request(at_s=0.0)) == pytest.approx(step_s / FLEET.speed)


def test_prefill_load_is_of_all_engines_while_requests_arrive() -> None:
    step_s = ttft_s_without_delays(FLEET, _request(at_s=0.0)) - PROFILES["8b-h100"].base_s / 2
    assert prefill_load(FLEET, [_request(at_s=1.0), _request(at_s=3.0)]) == pytest.approx(
        2 * step_s / (3 * 2.0)
    )
    assert prefill_load(FLEET, [_request(at_s=1.0)]) == 0.0


def test_arrivals_wobble_a_little_and_stay_in_order() -> None:
    requests = [
        TrafficRequest(at_s=n * WOBBLE_S / 3, input_tokens=n + 1, output_tokens=1)
        for n in range(50)
    ]
    assert wobbled(requests, seed=0) == requests
    moved = wobbled(requests, seed=1)
    assert [one.at_s for one in moved] == sorted(one.at_s for one in moved)
    by_name = {one.input_tokens: one.at_s for one in moved}
    later_s = [by_name[one.input_tokens] - one.at_s for one in requests]
    assert 0.0 <= min(later_s) < max(later_s) <= WOBBLE_S
    assert moved == wobbled(requests, seed=1) != wobbled(requests, seed=2)


def test_token_ids_are_an_option_of_ours_and_the_precise_index_of_the_twin() -> None:
    ours = router("pointsman", f"marginal_cost{TOKEN_IDS}")
    site = Site(1, 2, ["http://127.0.0.1:3"], Path("/nowhere"))
    words = [str(word) for word in ours.command(site)]
    assert words[words.index("--policy") + 1] == "marginal_cost"
    assert "--tokenizer" in words
    assert "--tokenizer" not in map(str, router("pointsman", "lmetric").command(site))
    assert _contender(kind=f"lmetric{TOKEN_IDS}").twin == Twin("lmetric", Index.PRECISE)
    assert _contender(kind="lmetric").twin == Twin("lmetric", Index.APPROXIMATE)
    assert _contender(router="smg", kind="cache_aware").twin == Twin("smg_cache_aware")
    assert _contender(router="smg", kind="round_robin").twin == Twin("round_robin")


def test_ours_is_judged_against_the_better_of_the_peers() -> None:
    found = [
        _contender(kind="first", ttft_s=0.8),
        _contender(kind="second", ttft_s=0.1),
        _contender(router="smg", kind="bad", ttft_s=4.0),
        _contender(router="vllm-router", kind="good", ttft_s=1.0),
    ]
    mean, p95 = verdicts(found)
    assert "pointsman first 0.80 (turns 0.80-0.80) of vllm-router good, within" in mean
    assert "pointsman first 0.80 (turns 0.80-0.80) of vllm-router good, within" in p95
    slower = [_contender(kind="first", ttft_s=0.95), *found[1:]]
    assert all("(turns 0.95-0.95) of vllm-router good, OVER" in line for line in verdicts(slower))
    assert not list(verdicts(found[:2]))


def test_of_several_turns_the_mean_is_judged_and_the_range_is_told() -> None:
    ours, peer = _contender(ttft_s=0.7), _contender(router="smg", ttft_s=1.0)
    again = msgspec.structs.replace(ours, turns=(*ours.turns, *_contender(ttft_s=1.0).turns))
    peer = msgspec.structs.replace(peer, turns=peer.turns * 2)
    mean, _ = verdicts([again, peer])
    assert "pointsman any 0.85 (turns 0.70-1.00) of smg any, within" in mean


def test_the_simulator_is_judged_by_time_and_hits_and_order() -> None:
    found = [_contender(kind="a", ttft_s=1.0), _contender(kind="b", ttft_s=2.0)]
    near = {Twin("a"): _summaries(1.05), Twin("b"): _summaries(1.95, 2.0)}
    told = list(twin_verdicts(found, near))
    assert sum("within the bar" in line for line in told) == 4
    assert told[-1].endswith("simulated: the same")
    far = {Twin("a"): _summaries(2.0), Twin("b"): _summaries(1.0)}
    told = list(twin_verdicts(found, far))
    assert sum("OVER the bar" in line for line in told) == 2
    assert told[-1].endswith("ANOTHER: pointsman b before pointsman a")


def test_what_the_live_run_does_not_tell_apart_may_be_in_either_order() -> None:
    found = [_contender(kind="a", ttft_s=1.0), _contender(kind="b", ttft_s=1.04)]
    twins = {Twin("a"): _summaries(1.03), Twin("b"): _summaries(1.01)}
    assert list(twin_verdicts(found, twins))[-1].endswith("the same")


def test_a_busy_machine_a_late_client_and_errors_are_told() -> None:
    assert not list(warnings([_contender()]))
    busy = _contender(cores=msgspec.structs.replace(QUIET, machine=1.9))
    assert "1.9 of 2 cores" in next(warnings([busy]))
    assert "lagged by 50 ms" in next(warnings([_contender(lag_s=0.05)]))
    assert "1 of 1 failed: 503 x1" in next(warnings([_contender(outcome=Outcome.HTTP_ERROR)]))


def _request(*, at_s: float) -> TrafficRequest:
    return TrafficRequest(at_s=at_s, input_tokens=1_000, output_tokens=1)


def _summaries(*ttfts_s: float) -> list[Summary]:
    return [_contender(ttft_s=ttft_s).turns[0].summary for ttft_s in ttfts_s]


def _contender(
    *,
    router: str = "pointsman",
    kind: str = "any",
    ttft_s: float = 1.0,
    lag_s: float = 0.0,
    outcome: Outcome = Outcome.OK,
    cores: Cores = QUIET,
) -> Contender:
    record = RequestRecord(
        index=0,
        due_s=0.0,
        sent_s=lag_s,
        outcome=outcome,
        e2e_s=ttft_s * 2,
        ttft_s=ttft_s,
        prompt_tokens=100,
        cached_tokens=20,
        cause="" if outcome is Outcome.OK else "503",
    )
    run = Run(
        label=f"{router} {kind}",
        target="",
        model="",
        policy=kind,
        started_at="",
        duration_s=1.0,
        slo=Slo(),
        workload=Workload(name="", seed=0, traffic=summarize(()), ideal_hit_ratio=None),
        load=Load(mode=LoadMode.OPEN),
        records=(record,),
    )
    turn = Turn(run=run, summary=run.summary(), cores=cores, overhead_s=0.01)
    return Contender(router=router, kind=kind, turns=(turn,))
