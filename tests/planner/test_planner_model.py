"""Sizes and times of servers and services."""

import math

import pytest
from msgspec.structs import replace

from pointsman.planner.model import Server, ServerChain, Service, Stage, chain_of, layer_time_s
from tests.planner.instances import BLOOM_SERVICE, LLAMA_SERVICE

SERVER = Server(name="a", memory_gb=2, job_s=1, layer_s=0.5)


def test_floors_are_exact() -> None:
    assert (2 - 1) // 0.1 == 9  # what floats make of it
    assert Service(layers=3, layer_gb=1, cache_gb=0.1).cache_slots(2, layers=1) == 10
    assert Service(layers=9, layer_gb=0.7, cache_gb=0.1).layers_held(2.4, jobs=1) == 3


def test_published_sizes() -> None:
    assert [BLOOM_SERVICE.layers_held(gb, jobs=7) for gb in (40, 20)] == [19, 9]
    assert BLOOM_SERVICE.layers_held(40, jobs=351) == 1
    assert BLOOM_SERVICE.layers_held(40, jobs=352) == 0
    assert [LLAMA_SERVICE.layers_held(gb, jobs=35) for gb in (40, 20)] == [24, 12]
    assert [LLAMA_SERVICE.cache_slots(gb, layers=32) // 32 for gb in (40, 20)] == [24, 5]


@pytest.mark.parametrize(("tflops", "gb_per_s", "milliseconds"), [(120, 1020, 109), (80, 510, 175)])
def test_published_layer_times(tflops: float, gb_per_s: float, milliseconds: int) -> None:
    layer_s = layer_time_s(
        input_tokens=2000,
        output_tokens=20,
        layer_gflop_per_token=5,
        layer_gb=1.32,
        tflops=tflops,
        bandwidth_gb_per_s=gb_per_s,
    )
    assert round(layer_s * 1000) == milliseconds


def test_a_chain_takes_what_its_stages_take() -> None:
    chain = chain_of((Stage(SERVER, 0, 2), Stage(SERVER, 2, 5)), job_slots=2)
    assert chain.service_s == (1 + 2 * 0.5) + (1 + 3 * 0.5)


@pytest.mark.parametrize(
    "change",
    [{"memory_gb": -1}, {"job_s": math.nan}, {"layer_s": math.inf}, {"job_s": 0, "layer_s": 0}],
)
def test_impossible_servers_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        replace(SERVER, **change)


@pytest.mark.parametrize("change", [{"layers": 0}, {"layer_gb": 0}, {"cache_gb": 0}])
def test_impossible_services_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        replace(BLOOM_SERVICE, **change)


@pytest.mark.parametrize(("service_s", "job_slots"), [(0, 1), (1, 0), (math.inf, 1)])
def test_impossible_chains_are_refused(service_s: float, job_slots: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        ServerChain(service_s=service_s, job_slots=job_slots)
