"""The rows of a summary, shared by the terminal table and the page: one name, one format."""

from collections.abc import Callable, Sequence

import msgspec

from pointsman.report.summary import Quantiles, Summary
from pointsman.traffic.slo import Slo

UNKNOWN = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


class Metric(msgspec.Struct, frozen=True):
    """One line of a comparison. `better` is -1 where less is better, 1 where more is, 0 neither."""

    name: str
    value: Callable[[Summary], float | None]
    show: Callable[[float], str]
    better: int


def seconds(value: float) -> str:
    """Three significant digits in the unit that suits: 840 µs, 12.3 ms, 1.53 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(value) * scale >= 0.9995 or unit == "µs":
            scaled = value * scale
            digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
            return f"{scaled:.{digits}f} {unit}"
    raise AssertionError("the last unit takes everything")


def percent(value: float) -> str:
    """One digit after the point."""
    return f"{value * 100:.1f} %"


def count(value: float) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Per second, three digits or so."""
    return f"{value:,.0f} /s" if value >= 100 else f"{value:.2f} /s"


def shown(value: float | None, show: Callable[[float], str]) -> str:
    """The value, or a dash where it is unknown."""
    return UNKNOWN if value is None else show(value)


def objective(slo: Slo) -> str:
    """What goodput counts."""
    return (
        f"SLO: TTFT ≤ {seconds(slo.ttft_s)} + {seconds(slo.ttft_s_per_token)} a prompt token, "
        f"TPOT ≤ {seconds(slo.tpot_s)}"
    )


LATENCY_HEAD = ("", "mean", "p50", "p95", "p99", "max")


def latencies(summary: Summary) -> Sequence[tuple[str, ...]]:
    """A row for each duration that was measured, under LATENCY_HEAD."""
    found = (
        ("time to first token", summary.ttft_s),
        ("time per output token", summary.tpot_s),
        ("end to end", summary.e2e_s),
        ("lag of the client itself", summary.lag_s),
    )
    return [
        (name, *map(seconds, (of.mean, of.p50, of.p95, of.p99, of.max)))
        for name, of in found
        if of is not None
    ]


def metrics() -> Sequence[Metric]:
    """Every number that runs are compared by, in order."""
    return (
        Metric("requests", lambda s: s.requests, count, 0),
        Metric("errors", lambda s: s.errors, count, -1),
        Metric("throughput", lambda s: s.throughput_rps, rate, 1),
        Metric("goodput", lambda s: s.goodput_rps, rate, 1),
        *_latency("TTFT", lambda s: s.ttft_s),
        *_latency("TPOT", lambda s: s.tpot_s),
        *_latency("end to end", lambda s: s.e2e_s),
        Metric("hit ratio", lambda s: s.hit_ratio, percent, 1),
        Metric("ideal hit ratio", lambda s: s.ideal_hit_ratio, percent, 0),
        Metric("busiest node's tokens", _busiest, lambda value: f"{value:.2f} {TIMES} mean", -1),
    )


def _latency(name: str, of: Callable[[Summary], Quantiles | None]) -> list[Metric]:
    def part(field: str) -> Callable[[Summary], float | None]:
        def value(summary: Summary) -> float | None:
            found = of(summary)
            return None if found is None else float(getattr(found, field))

        return value

    return [
        Metric(f"{name} {field}", part(field), seconds, -1)
        for field in ("mean", "p50", "p95", "p99")
    ]


def _busiest(summary: Summary) -> float | None:
    """Tokens of the busiest node over the mean of the nodes: 1 is even."""
    tokens = [node.input_tokens for node in summary.nodes]
    return max(tokens) * len(tokens) / sum(tokens) if sum(tokens) else None


SAME_WITHIN = 0.02
"""Ratios closer to 1 than this are neither good nor bad: two equal runs differ by as much."""


def compared(value: float | None, base: float | None, better: int) -> int:
    """1 better than the baseline, -1 worse; 0 where they are the same or cannot be compared.
    `better` as in `Metric`."""
    if value is None or not base or abs(value / base - 1) < SAME_WITHIN:
        return 0
    return better if value > base else -better


def ratio(value: float | None, base: float | None) -> str:
    """Against the baseline, as a factor; a dash where there is nothing to divide by."""
    return UNKNOWN if value is None or not base else f"{value / base:.2f}{TIMES}"
