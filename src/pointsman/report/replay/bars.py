"""What bars came to, and runs by classes: the rows of tables, for the terminal and the page."""

from collections.abc import Callable, Sequence

from pointsman.report.replay.classes import ClassNumbers
from pointsman.report.replay.numbers import RunNumbers
from pointsman.report.replay.subset import LENGTHS
from pointsman.report.replay.verdict import Verdict
from pointsman.report.rows import UNKNOWN, count, percent, rate, seconds

VERDICT_HEADS = ("", "scenario", "measure", "value", "bar", "ratio", "against")
CLASS_HEADS = (
    *("policy", "window", "class", "requests", "refused", "lost", "in SLO"),
    *("TTFT p50", "TTFT p95", "TTFT p99", "tries"),
)
_QUIET = {"window": "all", "refused": "0", "lost": "0", "tries": "1.00"}
"""What a column says if nothing happened."""
KEPT, MISSED = "kept", "MISSED"


def verdict_row(verdict: Verdict) -> tuple[str, ...]:
    """One bar, under VERDICT_HEADS."""
    show = _shown(verdict.measure)
    against = "" if verdict.reference is None else show(verdict.reference)
    if verdict.against:
        against += f" ({verdict.against})"
    return (
        KEPT if verdict.kept else MISSED,
        verdict.scenario + (f", {verdict.policy}" if verdict.policy_named else ""),
        verdict.measure,
        show(verdict.value),
        verdict.bar,
        "" if verdict.ratio is None else f"{verdict.ratio:.3g}",
        against,
    )


def class_rows(runs: Sequence[RunNumbers]) -> list[tuple[str, ...]]:
    """The heads, then every class of every run; what had no request is left out, and so are
    columns that say nothing. Empty where there are no classes."""
    rows = [_class_row(run.policy, each) for run in runs for each in run.classes if each.requests]
    if not rows:
        return []
    columns = zip(CLASS_HEADS, *rows, strict=True)
    telling = [column for column in columns if set(column[1:]) != {_QUIET.get(column[0])}]
    return list(zip(*telling, strict=True))


def _class_row(policy: str, each: ClassNumbers) -> tuple[str, ...]:
    ttft_s = each.ttft_s
    waits = (ttft_s.p50, ttft_s.p95, ttft_s.p99) if ttft_s is not None else (None, None, None)
    return (
        policy,
        each.window or "all",
        _class_name(each),
        count(each.requests),
        count(each.refused),
        count(each.lost),
        percent(each.slo_attainment),
        *(UNKNOWN if wait_s is None else seconds(wait_s) for wait_s in waits),
        f"{each.tries:.2f}",
    )


def _class_name(each: ClassNumbers) -> str:
    """Its name; of a length with the tokens that it means."""
    if each.kind != "length":
        return each.name or "all"
    from_tokens, below_tokens = LENGTHS[each.name]
    bound = f"≥ {count(from_tokens)}" if each.name == "long" else f"< {count(below_tokens)}"
    return f"{each.name}, {bound} tokens"


def _shown(measure: str) -> Callable[[float | None], str]:
    """How the values of a measure are written."""
    metric = measure.partition(" ")[0]
    return lambda value: UNKNOWN if value is None else _format(metric)(value)


def _format(metric: str) -> Callable[[float], str]:
    if metric.partition(".")[0].endswith("_s"):
        return seconds
    if metric.startswith("goodput"):
        return rate
    if metric.endswith("_share") or metric in ("slo_attainment", "hit_ratio", "hit_of_ideal"):
        return percent
    return lambda value: f"{value:,.4g}"
