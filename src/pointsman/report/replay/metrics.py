"""What is shown of a run: name, key in the JSON, format, and which direction is better."""

from collections.abc import Callable
from functools import partial

import msgspec

from pointsman.report.replay.numbers import RunNumbers
from pointsman.report.replay.spread import Estimate
from pointsman.report.replay.study import Value
from pointsman.report.rows import TIMES, UNKNOWN, count, percent, rate, seconds
from pointsman.report.summary import Quantiles


class ReplayMetric(msgspec.Struct, frozen=True):
    """`better` is -1 where less is better, 1 where more is, 0 neither. Where there is little
    room, those of low `rank` are shown."""

    key: str
    name: str
    value: Value
    show: Callable[[float], str]
    better: int
    rank: int = 0


def deviation(value: float) -> str:
    """Two digits after the point; it is a pure number."""
    return f"{value:.2f}"


def factor(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}{TIMES}"


_RANKS = {"mean": 0, "p50": 5, "p95": 4, "p99": 1}


def _latency(key: str, name: str) -> list[ReplayMetric]:
    def value(part: str, run: RunNumbers) -> float | None:
        found: Quantiles | None = getattr(run, key)
        return None if found is None else float(getattr(found, part))

    return [
        ReplayMetric(
            f"{key}.{part}",
            f"{name} {part}",
            partial(value, part),
            seconds,
            -1,
            rank=_RANKS[part] + (2 if key == "tpot_s" else 0),
        )
        for part in ("mean", "p50", "p95", "p99")
    ]


LATENCIES = (
    *_latency("ttft_s", "TTFT"),
    *_latency("tpot_s", "TPOT"),
    *_latency("e2e_s", "e2e"),
)
GOODPUT = ReplayMetric("goodput", "goodput", lambda run: run.goodput_rps, rate, 1, 1)
ATTAINMENT = ReplayMetric("slo_attainment", "in SLO", lambda run: run.slo_attainment, percent, 1)
HITS = ReplayMetric("hit_ratio", "hits", lambda run: run.hit_ratio, percent, 1, 1)
DEVIATIONS = (
    ReplayMetric("load_deviation", "load dev.", lambda run: run.load_deviation, deviation, -1, 2),
    ReplayMetric(
        "remaining_deviation", "rem. dev.", lambda run: run.remaining_deviation, deviation, -1, 2
    ),
    ReplayMetric(
        "remaining_deviation_s",
        "rem. spread",
        lambda run: run.remaining_deviation_s,
        seconds,
        -1,
        3,
    ),
)
ERRORS = ReplayMetric("errors", "errors", lambda run: run.errors, count, -1, -1)
PLACEMENTS = ReplayMetric(
    "attempts_per_request",
    "placements",
    lambda run: run.attempts / run.requests if run.requests else None,
    deviation,
    -1,
    1,
)
METRICS = (*LATENCIES, GOODPUT, ATTAINMENT, HITS, *DEVIATIONS, ERRORS, PLACEMENTS)
BY_KEY = {metric.key: metric for metric in METRICS}
TTFT_MEAN, TTFT_P99 = BY_KEY["ttft_s.mean"], BY_KEY["ttft_s.p99"]
E2E_MEAN, E2E_P99 = BY_KEY["e2e_s.mean"], BY_KEY["e2e_s.p99"]


def shown(found: Estimate | None, show: Callable[[float], str]) -> str:
    """The mean and, over several seeds, half the confidence interval in percent of it."""
    if found is None:
        return UNKNOWN
    if found.half_width is None or not found.mean:
        return show(found.mean)
    return f"{show(found.mean)} ±{found.half_width / abs(found.mean):.0%}"
