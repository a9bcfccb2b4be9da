"""When requests arrive: re-stamp, speed up, cut. Every function returns new requests."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random

from msgspec.structs import replace

from pointsman.traffic.request import TrafficRequest

TICK_ROWS_PER_STAMP_MIN = 2.0
"""Rows per distinct stamp from which stamps count as ticks: independent arrivals stamped in
milliseconds hardly ever coincide (1.00 in Azure's and Mooncake's synthetic trace), while a coarse
clock repeats itself (9.1 in Mooncake's conversation trace)."""


def poisson(
    requests: Iterable[TrafficRequest], *, rate_rps: float, rng: Random
) -> tuple[TrafficRequest, ...]:
    """Stamp requests anew with exponential gaps of mean 1 / `rate_rps`; the order stays."""
    if rate_rps <= 0:
        raise ValueError(f"rate_rps must be above 0, not {rate_rps}")
    stamped = []
    at_s = 0.0
    for request in requests:
        stamped.append(replace(request, at_s=at_s))
        at_s += rng.expovariate(rate_rps)
    return tuple(stamped)


def accelerate(requests: Iterable[TrafficRequest], *, speed: float) -> tuple[TrafficRequest, ...]:
    """Let time run `speed` times faster: arrivals and think times shrink alike."""
    if speed <= 0:
        raise ValueError(f"speed must be above 0, not {speed}")
    return tuple(
        replace(request, at_s=request.at_s / speed, think_s=request.think_s / speed)
        for request in requests
    )


def window(
    requests: Iterable[TrafficRequest], *, start_s: float, end_s: float
) -> tuple[TrafficRequest, ...]:
    """Keep arrivals in [start_s, end_s) and count time from `start_s`."""
    return tuple(
        replace(request, at_s=request.at_s - start_s)
        for request in requests
        if start_s <= request.at_s < end_s
    )


def spread_ticks(stamps_s: Sequence[float]) -> tuple[list[float], float | None]:
    """Spread stamps of a coarse clock evenly inside their tick.

    `stamps_s` must not decrease. Of k rows stamped t, row j moves to t + j / k of the tick, the
    tick being the (lower) median gap between distinct stamps. Returns the new stamps and the tick,
    or the same stamps and None where the clock is fine enough.
    """
    distinct = sorted(set(stamps_s))
    if len(distinct) < 2 or len(stamps_s) < TICK_ROWS_PER_STAMP_MIN * len(distinct):
        return list(stamps_s), None
    gaps = sorted(after - before for before, after in pairwise(distinct))
    tick_s = gaps[(len(gaps) - 1) // 2]
    ends_s = [*distinct[1:], distinct[-1] + tick_s]
    rows = dict.fromkeys(distinct, 0)
    for stamp in stamps_s:
        rows[stamp] += 1
    spread: list[float] = []
    for start_s, end_s in zip(distinct, ends_s, strict=True):
        step_s = min(end_s - start_s, tick_s) / rows[start_s]
        spread.extend(start_s + step_s * row for row in range(rows[start_s]))
    return spread, tick_s
