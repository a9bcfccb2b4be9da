"""Where a stream of requests comes from: a trace or a workload, cut, re-stamped and sped up."""

from collections.abc import Callable, Iterator, Mapping
from math import ceil, inf
from random import Random
from types import MappingProxyType
from typing import Annotated

import msgspec

from pointsman.traffic.arrivals import accelerate, jittered, poisson, window
from pointsman.traffic.crowd import crowd
from pointsman.traffic.generate import (
    bursts,
    long_tail,
    priority_mix,
    shared_prefix,
    tenant_mix,
)
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.sessions import agentic, chat
from pointsman.traffic.trace import ROWS_MAX, Trace

WORKLOADS: Mapping[str, Callable[..., tuple[TrafficRequest, ...]]] = MappingProxyType(
    {
        "shared-prefix": shared_prefix,
        "long-tail": long_tail,
        "chat": chat,
        "agentic": agentic,
        "bursts": bursts,
        "priority-mix": priority_mix,
        "tenant-mix": tenant_mix,
        "crowd": crowd,
    }
)
REQUESTS_DEFAULT = 2_000
"""Of a workload: enough for a p99 that is more than a handful of requests."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arrivals in [start_s, end_s) of the trace's own time."""

    start_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    end_s: Positive


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a `trace` (a path) or a `workload` with its generator's `parameters`.

    `rate_rps` makes Poisson arrivals anew; a workload needs it, a trace has its own arrivals.
    Of a trace first the `window` is taken, then the first `limit`. `speed` shrinks gaps and
    think times alike. A workload goes on for `duration_s` where that is given instead of a
    `limit`.
    """

    trace: str | None = None
    workload: str | None = None
    parameters: dict[str, float] = {}
    rate_rps: Positive | None = None
    window: Window | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    duration_s: Positive | None = None
    speed: Positive = 1.0

    @property
    def name(self) -> str:
        """The trace's path or the workload's name; of a part its own."""
        return self.trace or self.workload or ""


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a source, and in which of its fields."""

    field: str
    message: str


def problems(source: Source) -> Iterator[Problem]:
    """What no field shows alone, for a message where it was given."""
    if (source.trace is None) == (source.workload is None):
        yield Problem("", "give either a trace or a workload")
        return
    if source.trace is not None:
        if source.parameters:
            yield Problem("parameters", "a trace has no parameters; they go with a workload")
        if source.duration_s is not None:
            yield Problem("duration_s", "a duration goes with a workload; a trace has a window")
    else:
        yield from _workload_problems(source)
    if source.window is not None and source.window.end_s <= source.window.start_s:
        yield Problem("window", "the window ends before it starts")


def stream(source: Source, *, seed: int, trace: Trace | None = None) -> tuple[TrafficRequest, ...]:
    """The requests of a source without `problems`; `trace` is what its path holds.

    `seed` makes workloads and Poisson arrivals. Under seed 0 a trace's own arrivals are as they
    are stamped, under others they are moved at random (`arrivals.jittered`).
    Raises ValueError where nothing is left to send.
    """
    if trace is None:
        assert source.workload is not None, "a source is a trace or a workload"
        if source.duration_s is not None and source.limit is None:
            return _lasting(source, source.duration_s, seed)
        return _made(source, source.limit or REQUESTS_DEFAULT, seed)
    requests = trace.requests
    if seed and source.rate_rps is None:
        requests = jittered(requests, rng=Random(seed), tick_s=trace.tick_s)
    if source.window is not None:
        span = source.window
        requests = window(requests, start_s=span.start_s, end_s=span.end_s)
        if not requests:
            raise ValueError(f"no request arrives in {span.start_s:g} s to {span.end_s:g} s")
    requests = requests[: source.limit]
    if source.rate_rps is not None:
        requests = poisson(requests, rate_rps=source.rate_rps, rng=Random(seed))
    return accelerate(requests, speed=source.speed)


def _made(source: Source, requests: int, seed: int) -> tuple[TrafficRequest, ...]:
    assert source.workload is not None
    if requests > ROWS_MAX:
        raise ValueError(f"{requests:.3g} requests are too many to hold; {ROWS_MAX} can be made")
    generate = WORKLOADS[source.workload]
    made = generate(
        requests=requests, rate_rps=source.rate_rps, rng=Random(seed), **_parameters(source)
    )
    return accelerate(made, speed=source.speed)


def _lasting(source: Source, duration_s: float, seed: int) -> tuple[TrafficRequest, ...]:
    """All that arrive within `duration_s`: so many are made that some come later."""
    assert source.rate_rps is not None, "a workload has a rate"
    requests = ceil(source.rate_rps * source.speed * duration_s * 1.2) + 20
    made = _made(source, requests, seed)
    while made[-1].at_s < duration_s:
        requests *= 2
        made = _made(source, requests, seed)
    return tuple(request for request in made if request.at_s < duration_s)


def _workload_problems(source: Source) -> Iterator[Problem]:
    generator = WORKLOADS.get(source.workload or "")
    if generator is None:
        known = ", ".join(WORKLOADS)
        yield Problem("workload", f"'{source.workload}' is none of {known}")
        return
    if source.rate_rps is None:
        yield Problem("", "'rate_rps' is missing: a workload has no arrivals of its own")
    if source.window is not None:
        yield Problem("window", "a window goes with a trace; a workload is no recording")
    defaults = _defaults(generator)
    for name, value in source.parameters.items():
        if name not in defaults:
            known = ", ".join(defaults)
            yield Problem("parameters", f"'{name}' is no parameter of {source.workload}: {known}")
        elif not 0 <= value < inf or (isinstance(defaults[name], int) and value != int(value)):
            kind = "a whole number" if isinstance(defaults[name], int) else "a number"
            yield Problem("parameters", f"'{name}' is to be {kind} of at least 0, not {value:g}")


def _parameters(source: Source) -> dict[str, float]:
    assert source.workload is not None
    defaults = _defaults(WORKLOADS[source.workload])
    return {name: type(defaults[name])(value) for name, value in source.parameters.items()}


def _defaults(generator: Callable[..., object]) -> dict[str, float]:
    """A generator's own parameters: the keywords that have a default."""
    return dict(getattr(generator, "__kwdefaults__", None) or {})
