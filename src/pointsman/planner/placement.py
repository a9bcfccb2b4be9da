"""Which layers each server holds: greedy block placement with cache reservation (algorithm 1)."""

from collections.abc import Sequence

import msgspec

from pointsman.planner.model import Server, Service, Stage


class LayerPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The layers that each server holds, in the order in which servers were chosen.

    Each server keeps room for `jobs_reserved` jobs on every layer it holds. Servers that cannot
    hold a single layer that way are in no stage.
    """

    service: Service
    jobs_reserved: int
    stages: tuple[Stage, ...]


def place_layers(
    servers: Sequence[Server], service: Service, *, jobs_reserved: int
) -> LayerPlacement:
    """GBP-CR: the fastest servers per layer come first and share a chain; O(J log J).

    A server holds m_j = floor(M_j / (s_m + s_c c)) layers, at most all. In the order of their
    time per layer at that size, servers continue where the last one stopped, and begin anew
    behind the last layer; ties go by the order of `servers`. For servers of equal memory no
    disjoint chains reach a rate with less (theorem 2).

    The paper stops as soon as the chains carry the load, which leaves servers empty that others
    could use. Here all are filled: the chains before that point are the same.
    """
    if jobs_reserved < 1:
        raise ValueError(f"jobs_reserved must be at least 1, not {jobs_reserved}")
    stages = []
    start = 0
    for server, layers in _by_speed(servers, service, jobs_reserved):
        first = min(start, service.layers - layers)
        stages.append(Stage(server, first, first + layers))
        start = (first + layers) % service.layers
    return LayerPlacement(service=service, jobs_reserved=jobs_reserved, stages=tuple(stages))


def _by_speed(
    servers: Sequence[Server], service: Service, jobs_reserved: int
) -> list[tuple[Server, int]]:
    held = [(s, service.layers_held(s.memory_gb, jobs=jobs_reserved)) for s in servers]
    able = [(server, layers) for server, layers in held if layers > 0]
    return sorted(able, key=lambda pair: pair[0].stage_s(pair[1]) / pair[1])
