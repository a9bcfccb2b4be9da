"""The simulator's twin of a live set-up: same engines, same requests, same delays, virtual time.

A live run is one draw of many: a request that comes 2 ms later may find another node idle, and
what follows differs. So the twin is simulated several times, with arrivals moved by up to
WOBBLE_S, and its mean and range stand beside the one live run.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random

import msgspec
from msgspec.structs import replace

from bench.peers.fleet import FleetPlan
from pointsman.engines.compute_model import PROFILES
from pointsman.report.summary import Summary, summarize_records
from pointsman.sim import Scenario, simulate
from pointsman.sim.scenario import Clients, Index, Knowledge, Network, NodeGroup
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.slo import Slo

SLO = Slo()
WOBBLE_S = 0.005
LOOPBACK_S = 0.0002
"""One way, between two processes of one machine."""

NO_DELAYS = Network(client_s=0.0, engine_s=0.0, dispatch_s=0.0)


class Twin(msgspec.Struct, frozen=True):
    """Under which policy of ours a contender is simulated, and by what knowledge of caches."""

    policy: str
    index: Index = Index.APPROXIMATE


TWINS = {
    "cache_aware": Twin("smg_cache_aware"),
    "kv_aware": Twin("dynamo", Index.PRECISE),  # of the same inputs: prefill and active tokens
}
"""Peers' policies that have another name here; the others are called alike."""


def network(overhead_s: float) -> Network:
    """Delays that add up to what the live path adds to a first token."""
    dispatch_s = max(0.0, overhead_s - 4 * LOOPBACK_S)
    return Network(client_s=LOOPBACK_S, engine_s=LOOPBACK_S, dispatch_s=dispatch_s)


def scenario(fleet: FleetPlan, delays: Network) -> Scenario:
    """The live set-up, as the simulator is told it."""
    block_tokens = PROFILES[fleet.profile].block_size
    group = NodeGroup(
        count=fleet.engines,
        profile=fleet.profile,
        slowdown=1 / fleet.speed,
        kv_tokens=fleet.kv_blocks * block_tokens,
        block_tokens=block_tokens,
    )
    clients = Clients(bounds_output=True)  # the live client sends max_tokens
    return Scenario(name="twin", fleet=(group,), network=delays, clients=clients)


def prefill_load(fleet: FleetPlan, requests: Sequence[TrafficRequest]) -> float:
    """Share of the engines' time that the prompts alone take, while they arrive, if nothing were
    cached."""
    profile = PROFILES[fleet.profile]
    tokens = sum(one.input_tokens for one in requests)
    squares = sum(one.input_tokens**2 for one in requests)
    work_s = profile.prefill_s(tokens, squares)
    span_s = requests[-1].at_s - requests[0].at_s
    return work_s / fleet.speed / (fleet.engines * span_s) if span_s > 0 else 0.0


def ttft_s_without_delays(fleet: FleetPlan, request: TrafficRequest) -> float:
    """Of a request that is alone there."""
    run = simulate(scenario(fleet, NO_DELAYS), [request], policy="round_robin")
    ttft_s = run.records[0].ttft_s
    assert ttft_s is not None, "a request that is alone is answered"
    return ttft_s


def simulated(
    cluster: Scenario, requests: Sequence[TrafficRequest], twins: Iterable[Twin], *, runs: int
) -> dict[Twin, list[Summary]]:
    """So many simulations of each, on all cores."""
    with ProcessPoolExecutor() as pool:
        futures = {
            twin: [
                pool.submit(_simulated, cluster, tuple(requests), twin, seed)
                for seed in range(runs)
            ]
            for twin in dict.fromkeys(twins)
        }
        return {twin: [one.result() for one in found] for twin, found in futures.items()}


def _simulated(
    cluster: Scenario, requests: tuple[TrafficRequest, ...], twin: Twin, seed: int
) -> Summary:
    cluster = replace(cluster, knowledge=Knowledge(index=twin.index))
    run = simulate(cluster, wobbled(requests, seed=seed), policy=twin.policy, seed=seed)
    return summarize_records(run.records, duration_s=run.duration_s, slo=SLO)


def wobbled(requests: Sequence[TrafficRequest], *, seed: int) -> list[TrafficRequest]:
    """Each arrival up to WOBBLE_S later, in order of arrival; under seed 0 as they are."""
    if not seed:
        return list(requests)
    later = partial(Random(seed).uniform, 0.0, WOBBLE_S)
    moved = (replace(one, at_s=one.at_s + later()) for one in requests)
    return sorted(moved, key=lambda one: one.at_s)
