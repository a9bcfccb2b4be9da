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
    stages = sorted(placement.stages, key=lambda stage: stage.stop)
    slots = [service.cache_slots(s.server.memory_gb, layers=s.layers) for s in stages]
    chains = []
    while path := _fastest_path(stages, slots, service.layers):
        used = [(index, Stage(stages[index].server, start, stop)) for index, start, stop in path]
        job_slots = min(slots[index] // stage.layers for index, stage in used)
        for index, stage in used:
            slots[index] -= stage.layers * job_slots
        chains.append(chain_of(tuple(stage for _, stage in used), job_slots=job_slots))
    return tuple(chains)


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
        lowest = max(stage.start, stage.stop - slots[index])  # one slot for each layer computed
        for done in [d for d in reached_s if lowest <= d < stage.stop]:
            at_s = reached_s[done] + stage.server.stage_s(stage.stop - done)
            if at_s < reached_s.get(stage.stop, inf):
                reached_s[stage.stop] = at_s
                came[stage.stop] = (index, done, stage.stop)
    return _walk_back(came, layers) if layers in came else None


def _walk_back(came: dict[int, tuple[int, int, int]], layers: int) -> list[tuple[int, int, int]]:
    path = [came[layers]]
    while path[-1][1] > 0:
        path.append(came[path[-1][1]])
    return path[::-1]
