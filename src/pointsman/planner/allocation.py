"""Which chains to run, with how many job slots: greedy cache allocation (algorithm 2)."""

from math import inf

from pointsman.planner.model import ServerChain, Stage, chain_of
from pointsman.planner.placement import LayerPlacement


def allocate_cache(placement: LayerPlacement) -> tuple[ServerChain, ...]:
    """GCA: the fastest chain gets as many job slots as fit, then the next; fastest first.

    A chain goes from server to server as long as the next one holds the next layer; each layer is
    computed at the first server that has it. Every round exhausts a hop, so there are at
    most as many chains as layers held. For jobs that go to the fastest free chain, no other
    chains of this placement serve better (theorem 3). Empty if no chain holds all layers.
    """
    service = placement.service
    stages, slots = _stages_and_slots(placement)
    chains = []
    while path := _fastest_path(stages, slots, service.layers):
        used = [(index, Stage(stages[index].server, start, stop)) for index, start, stop in path]
        job_slots = min(slots[index] // stage.layers for index, stage in used)
        for index, stage in used:
            slots[index] -= stage.layers * job_slots
        chains.append(chain_of(tuple(stage for _, stage in used), job_slots=job_slots))
    return tuple(chains)


def fastest_chain_s(placement: LayerPlacement) -> float:
    """Service time of the first of these chains, which is a pass instead of one for each; infinite
    if no chain holds all layers."""
    stages, slots = _stages_and_slots(placement)
    path = _fastest_path(stages, slots, placement.service.layers)
    if path is None:
        return inf
    return sum(stages[index].server.stage_s(stop - start) for index, start, stop in path)


def job_slots_max(placement: LayerPlacement) -> int:
    """More the chains cannot have: a job takes room for its cache on each layer."""
    return sum(_stages_and_slots(placement)[1]) // placement.service.layers


def _stages_and_slots(placement: LayerPlacement) -> tuple[list[Stage], list[int]]:
    """In the order of their last layer, with room for so many jobs times layers on each."""
    stages = sorted(placement.stages, key=lambda stage: stage.stop)
    cache_slots = placement.service.cache_slots
    return stages, [cache_slots(s.server.memory_gb, layers=s.layers) for s in stages]


def _fastest_path(
    stages: list[Stage], slots: list[int], layers: int
) -> list[tuple[int, int, int]] | None:
    """The fastest way through all layers: (index of the stage, first layer, layer behind the last).

    What a hop costs and takes depends on the number of layers done before it, not on the server
    that did them. So the graph's nodes are these numbers, which only grow along a path: with
    `stages` in the order of their `stop`, one pass is Dijkstra's algorithm.
    """
    reached_s = {0: 0.0}
    came: dict[int, tuple[int, int, int]] = {}
    for index, stage in enumerate(stages):
        stop, job_s, layer_s = stage.stop, stage.server.job_s, stage.server.layer_s
        lowest = max(stage.start, stop - slots[index])  # one slot for each layer computed
        if lowest == stop:
            continue  # it is full
        best_s, best = reached_s.get(stop, inf), -1
        for done, done_s in reached_s.items():
            if (
                lowest <= done < stop
                and (at_s := done_s + (job_s + layer_s * (stop - done))) < best_s
            ):
                best_s, best = at_s, done
        if best >= 0:
            reached_s[stop], came[stop] = best_s, (index, best, stop)
    return _walk_back(came, layers) if layers in came else None


def _walk_back(came: dict[int, tuple[int, int, int]], layers: int) -> list[tuple[int, int, int]]:
    path = [came[layers]]
    while path[-1][1] > 0:
        path.append(came[path[-1][1]])
    return path[::-1]
