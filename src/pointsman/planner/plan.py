"""The best plan for a rate of requests, and how many replicas a response time takes.

What is tuned is the number of jobs that placement reserves cache for. Few: a server holds many
layers and chains are short and fast, but hold few jobs. Many: the other way round.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import floor, inf
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from pointsman.planner.allocation import allocate_cache, fastest_chain_s, job_slots_max
from pointsman.planner.bounds import Bounds, response_bounds, service_rate_per_s
from pointsman.planner.model import Server, ServerChain, Service, exact
from pointsman.planner.placement import LayerPlacement, place_layers

REPLICAS_MAX = 256
"""Beyond this a count of replicas is looked for no further: planning 256 takes seconds."""


class Goal(StrEnum):
    """Which bound of the mean response time a plan makes smallest."""

    LOWER = "lower"
    """The paper's choice: its simulations find their optimum where this bound has it."""
    UPPER = "upper"
    """What holds for certain. It reserves more than is best, as if slow chains came first."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds which layers, and the chains with their job slots, fastest first."""

    placement: LayerPlacement
    chains: tuple[ServerChain, ...]
    rate_per_s: float
    bounds: Bounds

    @property
    def job_slots(self) -> int:
        return sum(chain.job_slots for chain in self.chains)

    @property
    def service_rate_per_s(self) -> float:
        return service_rate_per_s(self.chains)

    @property
    def load(self) -> float:
        return self.rate_per_s / self.service_rate_per_s


class NoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The servers cannot carry the rate. What they can is below `service_rate_per_s`, which is 0
    if they cannot hold all layers and one job's cache."""

    service_rate_per_s: float


def plan(
    servers: Sequence[Server],
    service: Service,
    *,
    rate_per_s: float,
    goal: Goal = Goal.LOWER,
    jobs_reserved: int | None = None,
) -> Plan | NoPlan:
    """The plan with the smallest bound on the mean response time; the first of equals.

    `jobs_reserved` fixes what is tuned otherwise.
    """
    tried = jobs_reserved_tried(servers, service) if jobs_reserved is None else [jobs_reserved]
    best, too_slow = _best(servers, service, tried, rate_per_s=rate_per_s, goal=goal)
    return best or NoPlan(service_rate_per_s=_highest_rate_per_s(too_slow))


def _best(
    servers: Sequence[Server],
    service: Service,
    tried: Sequence[int],
    *,
    rate_per_s: float,
    goal: Goal,
) -> tuple[Plan | None, list[tuple[float, LayerPlacement]]]:
    """The best plan, if there is one; and the placements that do not carry the rate, each with a
    rate that it does not exceed."""
    best: Plan | None = None
    too_slow: list[tuple[float, LayerPlacement]] = []
    for placement in (place_layers(servers, service, jobs_reserved=jobs) for jobs in tried):
        fastest_s = fastest_chain_s(placement)
        if best and fastest_s >= _of(goal, best.bounds):
            continue  # no mean is below the fastest chain's
        rate_max_per_s = job_slots_max(placement) / fastest_s
        if rate_max_per_s <= rate_per_s:
            too_slow.append((rate_max_per_s, placement))
            continue
        chains = allocate_cache(placement)
        bounds = response_bounds(chains, rate_per_s=rate_per_s)
        if bounds is None:
            too_slow.append((service_rate_per_s(chains), placement))
        elif best is None or _of(goal, bounds) < _of(goal, best.bounds):
            best = Plan(placement=placement, chains=chains, rate_per_s=rate_per_s, bounds=bounds)
    return best, too_slow


def _highest_rate_per_s(limited: Sequence[tuple[float, LayerPlacement]]) -> float:
    """What the chains of the fastest of these placements carry."""
    highest_per_s = 0.0
    for rate_max_per_s, placement in sorted(limited, key=itemgetter(0), reverse=True):
        if rate_max_per_s <= highest_per_s:
            break
        highest_per_s = max(highest_per_s, service_rate_per_s(allocate_cache(placement)))
    return highest_per_s


def replicas_for(
    replica: Sequence[Server],
    service: Service,
    *,
    rate_per_s: float,
    response_s: float,
    goal: Goal = Goal.UPPER,
    replicas_max: int = REPLICAS_MAX,
) -> int | None:
    """How many copies of `replica` bring the mean response time down to `response_s`.

    By the upper bound they do for certain; by the lower one they may. The count suffices and one
    less does not. None: not even `replicas_max` suffice. Chains may cross from copy to copy.
    """
    if response_s < _fastest_s(replica, service):
        return None  # without the seconds that planning many copies takes
    too_few, enough = 0, 1
    while not _suffice(copies(replica, enough), service, rate_per_s, response_s, goal):
        if enough == replicas_max:
            return None
        too_few, enough = enough, min(2 * enough, replicas_max)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if _suffice(copies(replica, middle), service, rate_per_s, response_s, goal):
            enough = middle
        else:
            too_few = middle
    return enough


def copies(replica: Iterable[Server], count: int) -> list[Server]:
    """The servers of `count` replicas, each with its number behind its name."""
    originals = list(replica)
    return [
        replace(server, name=f"{server.name}-{number}")
        for number in range(1, count + 1)
        for server in originals
    ]


def jobs_reserved_tried(servers: Sequence[Server], service: Service) -> list[int]:
    """The numbers worth a try: the largest at which some server still holds m layers.

    All between two of these place the same layers: m <= M / (s_m + s_c c) holds up to
    c = (M / m - s_m) / s_c. So there are at most as many as layers times kinds of memory.
    """
    layer_gb, cache_gb = exact(service.layer_gb), exact(service.cache_gb)
    found = {
        floor((exact(memory_gb) / layers - layer_gb) / cache_gb)
        for memory_gb in dict.fromkeys(server.memory_gb for server in servers)
        for layers in range(1, service.layers + 1)
    }
    return sorted(jobs for jobs in found if jobs >= 1)


def _fastest_s(servers: Sequence[Server], service: Service) -> float:
    """No chain of copies of these is faster: one server, without regard to its memory."""
    layer_s = min((server.layer_s for server in servers), default=inf)
    return service.layers * layer_s + min((server.job_s for server in servers), default=inf)


def _of(goal: Goal, bounds: Bounds) -> float:
    return bounds.lower_s if goal is Goal.LOWER else bounds.upper_s


def _suffice(
    servers: Sequence[Server], service: Service, rate_per_s: float, response_s: float, goal: Goal
) -> bool:
    tried = jobs_reserved_tried(servers, service)
    found, _ = _best(servers, service, tried, rate_per_s=rate_per_s, goal=goal)
    return found is not None and _of(goal, found.bounds) <= response_s
