"""What one simulated run left behind: the simulator writes it, the report reads it."""

import msgspec

from pointsman.traffic.outcome import RequestRecord


class NodeSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One node over time, as the engine itself knows it, one value for each of `Series.times_s`.

    `remaining_s` is the time it needs for what it has, if nothing more came.
    """

    node: str
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    kv_usage: tuple[float, ...]
    remaining_s: tuple[float, ...]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Samples at even distances of virtual time. `held` are requests in the central queue."""

    times_s: tuple[float, ...] = ()
    held: tuple[int, ...] = ()
    nodes: tuple[NodeSeries, ...] = ()


class ReplayedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one scenario under one seed. Durations are virtual but for `wall_s`, the
    time the simulation itself took, and `decision_s`, what deciding took for each request
    (both empty or 0 where nobody measured, so that equal seeds give equal runs).

    `records` are in order of `index`; `input_tokens` there is the prompt, `cached_tokens` what
    the engine found cached. `attempts` counts placements: above the number of requests, some
    were placed again. `preemptions` counts how often engines put a request out for lack of memory.
    """

    scenario: str
    policy: str
    seed: int
    duration_s: float
    records: tuple[RequestRecord, ...]
    series: Series = Series()
    attempts: int = 0
    held: int = 0
    preemptions: int = 0
    wall_s: float = 0.0
    decision_s: tuple[float, ...] = ()
