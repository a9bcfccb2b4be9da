"""The mean response time of chains under JFFC, from below and from above (theorem 4)."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import fsum

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
    speeds = _slots_by_speed(chains)
    return Bounds(
        lower_s=_response_s(speeds, rate_per_s, idle),
        upper_s=_response_s(speeds[::-1], rate_per_s, idle),
    )


_NEGLIGIBLE = 1e-25
"""Beside the largest weight: all that are smaller add up to less than the last digit of a float."""


def _response_s(speeds: Sequence[tuple[float, int]], rate_per_s: float, idle: float) -> float:
    """Mean response of a birth-death process whose n jobs fill the slots in the given order.

    Its n-th death rate is v_n. With w_n = prod_{i <= n} rate / v_i and a geometric tail of ratio
    rho = 1 - `idle` from n = C,

        E[N] = (sum_{n < C} n w_n  +  w_C (rho / (1 - rho)^2 + C / (1 - rho)))
             / (sum_{n < C} w_n    +  w_C / (1 - rho)),       E[T] = E[N] / rate.

    v_n grows with n, so w_n rises up to the last v_n <= rate and falls from there on. Sums begin at
    that peak, whose weight is taken as 1, and end where nothing is added any more: of a million
    slots some ten thousand count, and no weight leaves the range of floats.
    """
    deaths = _DeathRates(speeds)
    peak, full = deaths.slots_up_to(rate_per_s), deaths.slots
    weight, weights, jobs = 1.0, 0.0, 0.0
    for n in range(peak, full):
        weights += weight
        jobs += n * weight
        weight *= rate_per_s / deaths.per_s(n + 1)
        if weight < _NEGLIGIBLE:
            break
    else:
        weights += weight / idle
        jobs += weight * ((1.0 - idle) / idle**2 + full / idle)
    weight = 1.0
    for n in range(peak, 0, -1):
        weight *= deaths.per_s(n) / rate_per_s
        if weight < _NEGLIGIBLE:
            break
        weights += weight
        jobs += (n - 1) * weight
    return jobs / weights / rate_per_s


class _DeathRates:
    """What the first n slots complete in a second, in the order of `speeds`."""

    def __init__(self, speeds: Sequence[tuple[float, int]]) -> None:
        self.slots = 0
        self._service_s = [service_s for service_s, _ in speeds]
        self._before: list[int] = []  # slots of the faster ones, or of the slower
        self._before_per_s: list[float] = []
        per_s = 0.0
        for service_s, slots in speeds:
            self._before.append(self.slots)
            self._before_per_s.append(per_s)
            self.slots += slots
            per_s += slots / service_s

    def per_s(self, n: int) -> float:
        """Of the first n, at least one."""
        at = bisect_left(self._before, n) - 1
        return self._before_per_s[at] + (n - self._before[at]) / self._service_s[at]

    def slots_up_to(self, rate_per_s: float) -> int:
        """How many complete at most `rate_per_s`."""
        at = bisect_right(self._before_per_s, rate_per_s) - 1
        more = int((rate_per_s - self._before_per_s[at]) * self._service_s[at])
        return min(self._before[at] + more, self.slots)


def _slots_by_speed(chains: Sequence[ServerChain]) -> list[tuple[float, int]]:
    """Service time and job slots, the fastest first; chains of one speed are as one."""
    slots: dict[float, int] = {}
    for chain in sorted(chains, key=lambda chain: chain.service_s):
        slots[chain.service_s] = slots.get(chain.service_s, 0) + chain.job_slots
    return list(slots.items())
