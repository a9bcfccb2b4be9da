"""The mean response time of chains under JFFC, from below and from above (theorem 4)."""

from collections.abc import Sequence
from math import exp, fsum, log

import msgspec

from pointsman.planner.model import ServerChain


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The mean response time, waiting included, lies between these."""

    lower_s: float
    upper_s: float


def service_rate_per_s(chains: Sequence[ServerChain]) -> float:
    """Jobs per second with all job slots busy (equation 4): what arrives must be less."""
    return fsum(chain.job_slots / chain.service_s for chain in chains)


def response_bounds(chains: Sequence[ServerChain], *, rate_per_s: float) -> Bounds | None:
    """Bounds for Poisson arrivals, exponential work, and dispatch to the fastest free chain.

    From below: as if the n jobs present always ran on the fastest slots; from above: on the
    slowest. One chain alone, or chains of one speed, make both equal and exact. None if the
    chains cannot carry the rate: the queue would grow without end.
    """
    if rate_per_s <= 0:
        raise ValueError(f"rate_per_s must be above 0, not {rate_per_s}")
    idle = 1.0 - rate_per_s / service_rate_per_s(chains) if chains else 0.0
    if idle <= 0:
        return None
    fastest_first = sorted(chains, key=lambda chain: chain.service_s)
    return Bounds(
        lower_s=_response_s(fastest_first, rate_per_s, idle),
        upper_s=_response_s(fastest_first[::-1], rate_per_s, idle),
    )


def _response_s(chains: Sequence[ServerChain], rate_per_s: float, idle: float) -> float:
    """Mean response of a birth-death process whose n jobs fill the slots in the given order.

    Its n-th death rate is v_n. With w_n = prod_{i <= n} rate / v_i (here as logarithms, since the
    product leaves the range of floats) and a geometric tail of ratio rho = 1 - `idle` from n = C,

        E[N] = (sum_{n < C} n w_n  +  w_C (rho / (1 - rho)^2 + C / (1 - rho)))
             / (sum_{n < C} w_n    +  w_C / (1 - rho)),       E[T] = E[N] / rate.
    """
    logs = [0.0]
    busy_per_s = 0.0
    for chain in chains:
        for _ in range(chain.job_slots):
            busy_per_s += 1.0 / chain.service_s
            logs.append(logs[-1] + log(rate_per_s / busy_per_s))
    top = max(logs)
    weights = [exp(value - top) for value in logs]
    full = len(weights) - 1
    last = weights.pop()
    jobs = sum(n * weight for n, weight in enumerate(weights))
    jobs += last * ((1.0 - idle) / idle**2 + full / idle)
    return jobs / (sum(weights) + last / idle) / rate_per_s
