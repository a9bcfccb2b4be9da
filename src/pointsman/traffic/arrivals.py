"""When requests arrive: re-stamp, shake, speed up, cut. Every function returns new requests."""

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


def on_off(
    requests: Iterable[TrafficRequest],
    *,
    rate_rps: float,
    on_s_mean: float,
    off_s_mean: float,
    rng: Random,
) -> tuple[TrafficRequest, ...]:
    """Stamp requests anew: bursts of Poisson arrivals, and nothing in between; the order stays.

    Bursts and pauses are exponential with the means given. `rate_rps` is the mean over both, so
    in a burst it is (on_s_mean + off_s_mean) / on_s_mean times as high.
    """
    if min(rate_rps, on_s_mean) <= 0 or off_s_mean < 0:
        raise ValueError(
            f"rate_rps ({rate_rps}) and on_s_mean ({on_s_mean}) must be above 0, "
            f"off_s_mean ({off_s_mean}) not below"
        )
    burst_rps = rate_rps * (on_s_mean + off_s_mean) / on_s_mean
    stamped = []
    burst_time_s = paused_s = 0.0  # time is counted in bursts only; pauses are put in between
    burst_ends_s = rng.expovariate(1 / on_s_mean)
    for request in requests:
        while burst_time_s >= burst_ends_s:
            burst_ends_s += rng.expovariate(1 / on_s_mean)
            paused_s += rng.expovariate(1 / off_s_mean) if off_s_mean else 0.0
        stamped.append(replace(request, at_s=burst_time_s + paused_s))
        burst_time_s += rng.expovariate(burst_rps)
    return tuple(stamped)


def jittered(
    requests: Iterable[TrafficRequest], *, rng: Random, tick_s: float | None = None
) -> tuple[TrafficRequest, ...]:
    """Move each arrival at random, so that one trace gives as many runs as there are seeds.

    Where a reader spread ticks of `tick_s` (`Trace.tick_s`), an arrival may be anywhere in its
    tick: the trace knows no more of it. Else it moves by up to one mean gap either way, which
    leaves the rate of every minute as it was. Turns of a session keep their order, nothing
    arrives before 0, and the result is in order of arrival. Give the trace as it was read: ticks
    are counted from 0, before anything is cut off or sped up.
    """
    requests = tuple(requests)
    if len(requests) < 2:
        return requests
    gap_s = (requests[-1].at_s - requests[0].at_s) / (len(requests) - 1)
    sessions: dict[str, list[int]] = {}
    moved_s = []
    for index, request in enumerate(requests):
        if tick_s is None:
            moved_s.append(max(0.0, request.at_s + rng.uniform(-gap_s, gap_s)))
        else:
            tick = int(request.at_s / tick_s + _ROUNDING)
            moved_s.append((tick + rng.random()) * tick_s)
        if request.session:
            sessions.setdefault(request.session, []).append(index)
    for turns in sessions.values():
        in_order = sorted(moved_s[index] for index in turns)
        for index, at_s in zip(turns, in_order, strict=True):
            moved_s[index] = at_s
    moved = (replace(r, at_s=at_s) for r, at_s in zip(requests, moved_s, strict=True))
    return tuple(sorted(moved, key=lambda request: request.at_s))


_ROUNDING = 1e-3  # of a tick: Mooncake stamps 5999 ms for the tick that begins at 6000


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
