"""The same, as the paper writes it: with early stop, dummy servers, all paths, the whole CTMC."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import floor

from pointsman.planner.model import Server, ServerChain, Service, Stage, chain_of
from pointsman.planner.placement import LayerPlacement

LOAD_MAX = 0.7
"""Below this load more than 85 % of a response is service (the paper's rho-bar)."""


def place_as_published(
    servers: Sequence[Server], service: Service, *, c: int, rate_per_s: float
) -> LayerPlacement:
    """Algorithm 1 line by line, 1-based and with its early stop."""
    s_m, s_c = Fraction(str(service.layer_gb)), Fraction(str(service.cache_gb))
    m = {
        j: min(floor(Fraction(str(server.memory_gb)) / (s_m + s_c * c)), service.layers)
        for j, server in enumerate(servers)
    }
    t = {j: servers[j].job_s + servers[j].layer_s * m[j] for j in m}
    stages: list[Stage] = []
    a, nu, total = 1, 0.0, 0.0
    for j in sorted((j for j in m if m[j]), key=lambda j: (t[j] / m[j], j)):
        a_j = min(a, service.layers - m[j] + 1)
        stages.append(Stage(servers[j], a_j - 1, a_j - 1 + m[j]))
        total += t[j]
        a = min(a + m[j] - 1, service.layers) + 1
        if a > service.layers:
            nu += 1 / total
            if nu >= rate_per_s / (LOAD_MAX * c):
                break
            a, total = 1, 0.0
    return LayerPlacement(service=service, jobs_reserved=c, stages=tuple(stages))


def disjoint_chains(placement: LayerPlacement) -> tuple[ServerChain, ...]:
    """The chains that share no server, `jobs_reserved` job slots each (lemma 1).

    Every layer held counts, also one that the server before has computed already: the rate of
    these chains is what the placement carries at least. An unfinished last chain is left out.
    """
    chains = []
    joined: list[Stage] = []
    for stage in placement.stages:
        joined.append(stage)
        if stage.stop == placement.service.layers:
            chains.append(chain_of(tuple(joined), job_slots=placement.jobs_reserved))
            joined = []
    return tuple(chains)


def all_paths(
    stages: Sequence[Stage], slots: Sequence[int], layers: int
) -> Iterator[tuple[float, list[tuple[int, int]]]]:
    """Every path from dummy to dummy whose hops i -> j are feasible and fit: a_j <= a_i + m_i <=
    a_j + m_j - 1, and one slot for each of the m_ij layers. Its time, and (server, m_ij) pairs."""

    def extend(behind: int) -> Iterator[tuple[float, list[tuple[int, int]]]]:
        if behind == layers + 1:
            yield 0.0, []
        for j, stage in enumerate(stages):
            a_j, m_j = stage.start + 1, stage.layers
            m_ij = a_j + m_j - behind
            if a_j <= behind <= a_j + m_j - 1 and slots[j] >= m_ij:
                for rest_s, rest in extend(a_j + m_j):
                    hop_s = stage.server.job_s + stage.server.layer_s * m_ij
                    yield hop_s + rest_s, [(j, m_ij), *rest]

    return extend(1)


def bounds_one_by_one(chains: Sequence[ServerChain], rate_per_s: float) -> tuple[float, float]:
    """Theorem 4 with each n on its own, in fractions: fastest slots first, and slowest."""
    fastest = sorted(chains, key=lambda chain: chain.service_s)
    return _response_s(fastest, rate_per_s), _response_s(fastest[::-1], rate_per_s)


def _response_s(chains: Sequence[ServerChain], rate_per_s: float) -> float:
    rate = Fraction(rate_per_s)
    deaths, weights = [Fraction(0)], [Fraction(1)]
    for chain in chains:
        for _ in range(chain.job_slots):
            deaths.append(deaths[-1] + 1 / Fraction(chain.service_s))
            weights.append(weights[-1] * rate / deaths[-1])
    rho, last, full = rate / deaths[-1], weights.pop(), len(deaths) - 1
    jobs = sum(n * weight for n, weight in enumerate(weights))
    jobs += last * (rho / (1 - rho) ** 2 + full / (1 - rho))
    return float(jobs / (sum(weights) + last / (1 - rho)) / rate)


def exact_response_s(chains: Sequence[ServerChain], rate_per_s: float) -> float:
    """The mean response time under JFFC, from the stationary distribution of its Markov chain.

    States are jobs per chain. With all slots busy the central queue is geometric; leaving it out
    leaves the ratios of the other states as they are.
    """
    fastest = sorted(chains, key=lambda chain: chain.service_s)
    slots = [chain.job_slots for chain in fastest]
    states = list(product(*(range(count + 1) for count in slots)))
    number = {state: index for index, state in enumerate(states)}
    rates = [[0.0] * len(states) for _ in states]
    for state in states:
        for to, rate in _moves(state, fastest, rate_per_s):
            rates[number[state]][number[to]] += rate
    weights = _stationary(rates)
    rho = rate_per_s / sum(chain.job_slots / chain.service_s for chain in fastest)
    full = weights.pop()  # the last state in the order of `product`
    jobs = sum(weight * sum(state) for weight, state in zip(weights, states, strict=False))
    jobs += full * (sum(slots) / (1 - rho) + rho / (1 - rho) ** 2)
    return jobs / (sum(weights) + full / (1 - rho)) / rate_per_s


def _moves(
    state: tuple[int, ...], chains: Sequence[ServerChain], rate_per_s: float
) -> Iterator[tuple[tuple[int, ...], float]]:
    free = [k for k, chain in enumerate(chains) if state[k] < chain.job_slots]
    if free:
        yield _changed(state, free[0], +1), rate_per_s
    for k, chain in enumerate(chains):
        if state[k]:
            yield _changed(state, k, -1), state[k] / chain.service_s


def _changed(state: tuple[int, ...], k: int, by: int) -> tuple[int, ...]:
    return (*state[:k], state[k] + by, *state[k + 1 :])


def _stationary(rates: list[list[float]]) -> list[float]:
    """Grassmann, Taksar and Heyman's elimination: without subtraction, so without cancellation."""
    count = len(rates)
    for last in range(count - 1, 0, -1):
        out = sum(rates[last][:last])
        for i in range(last):
            rates[i][last] /= out
            for j in range(last):
                rates[i][j] += rates[i][last] * rates[last][j]
    weights = [1.0]
    for last in range(1, count):
        weights.append(sum(weights[i] * rates[i][last] for i in range(last)))
    return weights
