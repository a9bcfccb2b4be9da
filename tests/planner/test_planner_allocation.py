"""GCA: published allocations, and the claims of algorithm 2 against all paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.allocation import allocate_cache
from pointsman.planner.bounds import service_rate_per_s
from pointsman.planner.model import Server, ServerChain, Service
from pointsman.planner.placement import place_layers
from tests.planner.instances import (
    EPS_S,
    LLAMA_SERVERS,
    LLAMA_SERVICE,
    WORKED_SERVERS,
    WORKED_SERVICE,
    bloom_chains,
    clusters,
    services,
)
from tests.planner.slow_twins import all_paths


def test_worked_example() -> None:
    chains = allocate_cache(place_layers(WORKED_SERVERS, WORKED_SERVICE, jobs_reserved=1))
    assert [names(chain) for chain in chains] == ["j1 j2", "j1 j4 j5", "j3 j4 j5"]
    assert [chain.job_slots for chain in chains] == [5, 5, 5]
    expected_s = [3 + 5 * EPS_S, 3 + 10 * EPS_S, 3 + 12 * EPS_S]
    assert [chain.service_s for chain in chains] == pytest.approx(expected_s)
    assert service_rate_per_s(chains) == pytest.approx(4.854812, abs=5e-7)


def test_bloom() -> None:
    chains = bloom_chains()
    assert len(chains) == 7
    assert [stage.layers for stage in chains[0].stages] == [19, 19, 19, 13]
    assert chains[0].job_slots == 7
    assert chains[0].service_s == pytest.approx(10.670)
    assert sum(chain.job_slots for chain in chains) == 23
    assert service_rate_per_s(chains) == pytest.approx(1.54234, abs=5e-6)


@pytest.mark.parametrize(("reserved", "slots"), [(5, 102), (20, 132), (35, 144), (40, 164)])
def test_llama(reserved: int, slots: int) -> None:
    placement = place_layers(LLAMA_SERVERS, LLAMA_SERVICE, jobs_reserved=reserved)
    assert sum(chain.job_slots for chain in allocate_cache(placement)) == slots


@given(clusters(), services(), st.integers(1, 8))
def test_each_round_takes_the_fastest_path_and_exhausts_a_hop(
    servers: list[Server], service: Service, reserved: int
) -> None:
    placement = place_layers(servers, service, jobs_reserved=reserved)
    stages = placement.stages
    slots = [service.cache_slots(s.server.memory_gb, layers=s.layers) for s in stages]
    number = {stage.server.name: index for index, stage in enumerate(stages)}
    for chain in allocate_cache(placement):
        paths = [seconds for seconds, _ in all_paths(stages, slots, service.layers)]
        assert chain.service_s == pytest.approx(min(paths))
        for stage in chain.stages:
            slots[number[stage.server.name]] -= stage.layers * chain.job_slots
        left = [slots[number[stage.server.name]] - stage.layers for stage in chain.stages]
        assert min(slots) >= 0
        assert min(left) < 0
    assert not list(all_paths(stages, slots, service.layers))


@given(clusters(), services(), st.integers(1, 8))
def test_chains_compute_every_layer_once(
    servers: list[Server], service: Service, reserved: int
) -> None:
    placement = place_layers(servers, service, jobs_reserved=reserved)
    chains = allocate_cache(placement)
    held = {stage.server.name: stage for stage in placement.stages}
    assert len(chains) <= sum(stage.layers for stage in placement.stages)
    for chain in chains:
        assert [0, *(s.stop for s in chain.stages)] == [
            *(s.start for s in chain.stages),
            service.layers,
        ]
        for stage in chain.stages:
            assert held[stage.server.name].start <= stage.start
            assert held[stage.server.name].stop == stage.stop


@given(clusters(), services(), st.integers(1, 8))
def test_chains_come_fastest_first(servers: list[Server], service: Service, reserved: int) -> None:
    chains = allocate_cache(place_layers(servers, service, jobs_reserved=reserved))
    times_s = [chain.service_s for chain in chains]
    assert times_s == pytest.approx(sorted(times_s))


def names(chain: ServerChain) -> str:
    return " ".join(stage.server.name for stage in chain.stages)
