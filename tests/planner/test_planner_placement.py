"""GBP-CR: the paper's example, its pseudo-code as a twin, theorem 2."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.bounds import service_rate_per_s
from pointsman.planner.model import Server, Service
from pointsman.planner.placement import LayerPlacement, place_layers
from tests.planner.instances import (
    BLOOM_SERVERS,
    BLOOM_SERVICE,
    WORKED_SERVERS,
    WORKED_SERVICE,
    clusters,
    services,
    tenths,
)
from tests.planner.slow_twins import disjoint_chains, place_as_published


def test_worked_example() -> None:
    placement = place_layers(WORKED_SERVERS, WORKED_SERVICE, jobs_reserved=1)
    assert [(s.server.name, s.start, s.stop) for s in placement.stages] == [
        ("j1", 0, 1),
        ("j2", 1, 3),
        ("j3", 0, 1),
        ("j4", 1, 2),
        ("j5", 2, 3),
    ]
    chains = disjoint_chains(placement)
    assert [len(chain.stages) for chain in chains] == [2, 3]
    assert service_rate_per_s(chains) == pytest.approx(0.648382, abs=5e-7)


def test_bloom() -> None:
    chains = disjoint_chains(place_layers(BLOOM_SERVERS, BLOOM_SERVICE, jobs_reserved=7))
    assert [chain.service_s for chain in chains] == pytest.approx([11.324, 18.68, 18.68])


def test_one_job_at_least_is_reserved_for() -> None:
    with pytest.raises(ValueError, match="jobs_reserved"):
        place_layers(BLOOM_SERVERS, BLOOM_SERVICE, jobs_reserved=0)


@given(clusters(), services(), st.integers(1, 12), tenths)
def test_the_paper_stops_early_with_the_same_placement(
    servers: list[Server], service: Service, c: int, rate_per_s: float
) -> None:
    ours = place_layers(servers, service, jobs_reserved=c)
    published = place_as_published(servers, service, c=c, rate_per_s=rate_per_s)
    assert ours.stages[: len(published.stages)] == published.stages


@given(clusters(), services(), st.integers(1, 12))
def test_every_able_server_holds_what_it_can(
    servers: list[Server], service: Service, c: int
) -> None:
    placement = place_layers(servers, service, jobs_reserved=c)
    held = {s.name: service.layers_held(s.memory_gb, jobs=c) for s in servers}
    assert {s.server.name: s.layers for s in placement.stages} == {
        name: layers for name, layers in held.items() if layers
    }
    for stage in placement.stages:
        assert 0 <= stage.start < stage.stop <= service.layers
        assert service.cache_slots(stage.server.memory_gb, layers=stage.layers) >= c * stage.layers


@given(clusters(), services(), st.integers(1, 12))
def test_chains_cover_all_layers(servers: list[Server], service: Service, c: int) -> None:
    placement = place_layers(servers, service, jobs_reserved=c)
    chains = disjoint_chains(placement)
    enough = sum(stage.layers for stage in placement.stages) >= service.layers
    assert bool(chains) == enough
    for chain in chains:
        behind = 0
        for stage in chain.stages:
            assert stage.start <= behind < stage.stop
            behind = stage.stop
        assert behind == service.layers


@given(
    st.lists(st.tuples(tenths, tenths), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_equal_memory_makes_the_greedy_optimal(
    times: list[tuple[float, float]], layers: int, held: int
) -> None:
    """Theorem 2: no K disjoint sets that hold all layers have a higher total rate."""
    service = Service(layers=layers, layer_gb=1, cache_gb=1)
    servers = [
        Server(name=f"s{n}", memory_gb=2 * held, job_s=job_s, layer_s=layer_s)
        for n, (job_s, layer_s) in enumerate(times)
    ]
    placement = place_layers(servers, service, jobs_reserved=1)
    best: dict[int, float] = {}
    for groups in _groupings(_stage_times(placement)):
        whole = [sum(g) for g in groups if len(g) * min(held, layers) >= layers]
        rate = sum(1 / total_s for total_s in whole)
        best[len(whole)] = max(best.get(len(whole), 0.0), rate)
    chains = disjoint_chains(placement)
    for count in range(1, len(chains) + 1):
        assert service_rate_per_s(chains[:count]) >= best[count] * (1 - 1e-12)
    assert max(best) == len(chains)


def _stage_times(placement: LayerPlacement) -> list[float]:
    return [stage.service_s for stage in placement.stages]


def _groupings(items: Sequence[float]) -> Iterator[list[list[float]]]:
    """Every partition of `items` into sets."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in _groupings(rest):
        yield [[first], *groups]
        for index, group in enumerate(groups):
            yield [*groups[:index], [first, *group], *groups[index + 1 :]]
