"""One simulated run in numbers: small enough to keep hundreds of them, and their curves.

goodput            requests that met the objective (`Slo.met`) / duration
SLO attainment     requests that met the objective / requests
load deviation     mean over the samples of  sigma / mu  of running + waiting between the nodes
remaining dev.     the same of the time that each node needs for what it has; and sigma in seconds

`deviation` says of which samples.
"""

from collections.abc import Sequence
from types import MappingProxyType

import msgspec

from pointsman.report.replay.classes import ClassNumbers, classes
from pointsman.report.replay.deviation import load_deviation, mean, spreads
from pointsman.report.replay.measure import Measure, measured
from pointsman.report.replay.subset import Windows
from pointsman.report.replay.timeline import Timeline, timeline
from pointsman.report.summary import ErrorGroup, Quantiles, error_groups, hit_ratio, quantiles
from pointsman.traffic.outcome import Outcome
from pointsman.traffic.replayed import NodeSeries, ReplayedRun, Series
from pointsman.traffic.slo import Slo

CURVE_POINTS_MAX = 240
"""Of a distribution: finer than a plot's pixels in most places, and its last point is the max."""
SERIES_POINTS_MAX = 160


_NO_WINDOWS: Windows = MappingProxyType({})


class RunNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one scenario under one seed. Latencies are of requests that ended well.

    Curves are `CURVE_POINTS_MAX` values at even distances of the sorted ones. `measured` is what
    was asked for, by `Measure.key`. `wall_s` is 0 and `decision_s` None where nobody measured.
    """

    policy: str
    seed: int
    requests: int
    ok: int
    errors: int
    duration_s: float
    throughput_rps: float
    goodput_rps: float
    slo_attainment: float
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    e2e_s: Quantiles | None
    hit_ratio: float | None
    load_deviation: float | None
    remaining_deviation: float | None
    remaining_deviation_s: float | None
    attempts: int
    held: int
    error_groups: tuple[ErrorGroup, ...]
    ttft_curve_s: tuple[float, ...]
    e2e_curve_s: tuple[float, ...]
    series: Series
    classes: tuple[ClassNumbers, ...] = ()
    timeline: Timeline = Timeline()
    measured: dict[str, float | None] = {}
    wall_s: float = 0.0
    decision_s: Quantiles | None = None

    @property
    def realtime_factor(self) -> float | None:
        """Virtual seconds per second of the simulation; None where nobody measured."""
        return self.duration_s / self.wall_s if self.wall_s > 0 else None


def numbers(
    run: ReplayedRun,
    slo: Slo,
    *,
    keep_series: bool = True,
    windows: Windows = _NO_WINDOWS,
    measures: Sequence[Measure] = (),
    ideal_hit_ratio: float | None = None,
) -> RunNumbers:
    """Everything a report shows of a run; without `keep_series` not how it went over time.
    `windows` are times that classes are shown for, `measures` what else is wanted."""
    ok = [record for record in run.records if record.outcome is Outcome.OK]
    good = sum(map(slo.met, ok))
    per_s = 1 / run.duration_s if run.duration_s > 0 else 0.0
    ttfts_s = sorted(record.ttft_s for record in ok if record.ttft_s is not None)
    remaining = list(spreads(run.series, lambda node: node.remaining_s))
    return RunNumbers(
        policy=run.policy,
        seed=run.seed,
        requests=len(run.records),
        ok=len(ok),
        errors=sum(record.failed for record in run.records),
        duration_s=run.duration_s,
        throughput_rps=len(ok) * per_s,
        goodput_rps=good * per_s,
        slo_attainment=good / len(run.records) if run.records else 0.0,
        ttft_s=quantiles(ttfts_s),
        tpot_s=quantiles(record.tpot_s for record in ok),
        e2e_s=quantiles(record.e2e_s for record in ok),
        hit_ratio=hit_ratio(ok),
        load_deviation=load_deviation(run.series),
        remaining_deviation=mean(sigma / mu for mu, sigma in remaining),
        remaining_deviation_s=mean(sigma for _, sigma in remaining),
        attempts=run.attempts,
        held=run.held,
        error_groups=error_groups(run.records),
        ttft_curve_s=_curve(ttfts_s),
        e2e_curve_s=_curve(sorted(record.e2e_s for record in ok)),
        series=_thinned(run.series) if keep_series else Series(),
        classes=classes(run.records, slo, windows),
        timeline=timeline(run.records) if keep_series else Timeline(),
        measured={
            each.key: measured(each, run, slo=slo, windows=windows, ideal_hit_ratio=ideal_hit_ratio)
            for each in measures
        },
        wall_s=run.wall_s,
        decision_s=quantiles(run.decision_s),
    )


def _curve(ordered: Sequence[float]) -> tuple[float, ...]:
    last = len(ordered) - 1
    points = min(len(ordered), CURVE_POINTS_MAX)
    if points < 2:
        return tuple(ordered)
    return tuple(ordered[round(place * last / (points - 1))] for place in range(points))


def _thinned(series: Series) -> Series:
    """At most SERIES_POINTS_MAX samples, each the mean of those it stands for."""
    step = -(-len(series.times_s) // SERIES_POINTS_MAX)
    if step <= 1:
        return series

    def means(values: Sequence[float]) -> tuple[float, ...]:
        parts = (values[start : start + step] for start in range(0, len(values), step))
        return tuple(sum(part) / len(part) for part in parts)

    def counts(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(round(value) for value in means(values))

    return Series(
        times_s=means(series.times_s),
        held=counts(series.held),
        nodes=tuple(
            NodeSeries(
                node=node.node,
                running=counts(node.running),
                waiting=counts(node.waiting),
                kv_usage=means(node.kv_usage),
                remaining_s=means(node.remaining_s),
            )
            for node in series.nodes
        ),
    )
