"""One number of one run, about a subset of its requests: what a scenario's bars are set on.

amplification      placements on engines / requests that came to an engine at all
refused            requests that got an answer of the gateway's own before an engine spoke
lost               requests that broke: errors that are no refusals; lost_unbegun: before any byte
unexplained        refusals for a reason that is none of the gateway's
goodput            requests that met the objective / the time that they are of
goodput_tokens     the same of their tokens, prompts and answers
hit_of_ideal       hit ratio / hit ratio of one unbounded cache, of all requests
load_deviation     as in `numbers`, of the nodes and the time that the subset names
waiting_max        the longest queue inside an engine at any sample; held_max: of the gateway's own
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated

import msgspec

from pointsman.core.errors import ANSWERS, Reason
from pointsman.report.replay.deviation import load_deviation
from pointsman.report.replay.subset import Subset, Windows
from pointsman.report.summary import hit_ratio, quantiles
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.replayed import NodeSeries, ReplayedRun, Series
from pointsman.traffic.slo import Slo

_REFUSING = frozenset({408, 429, 503})
"""Statuses by which a gateway says that it will not; others say that something broke."""

_BROKEN = frozenset({Reason.NODE_UNREACHABLE, Reason.NODE_CLOSED, Reason.NODE_BROKEN})


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """`metric` is a name of METRICS."""

    metric: Annotated[str, msgspec.Meta(min_length=1)]
    of: Subset = Subset()

    @property
    def key(self) -> str:
        """What it is called in reports; different ones have different keys."""
        of = str(self.of)
        return f"{self.metric} ({of})" if of else self.metric


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to measure on: a run, the subset's part of it, and the span it is about."""

    run: ReplayedRun
    records: list[RequestRecord]
    series: Series
    span_s: tuple[float, float]
    slo: Slo
    ideal_hit_ratio: float | None

    @property
    def ok(self) -> list[RequestRecord]:
        return [record for record in self.records if record.outcome is Outcome.OK]


def measured(
    measure: Measure,
    run: ReplayedRun,
    *,
    slo: Slo,
    windows: Windows,
    ideal_hit_ratio: float | None,
) -> float | None:
    """None where nothing is known, for example the latency of nobody."""
    begin_s, end_s = measure.of.span_s(windows)
    span_s = begin_s, min(end_s, max(run.duration_s, begin_s))
    seen = Seen(
        run=run,
        records=measure.of.of(run.records, windows),
        series=_cut(run.series, span_s, measure.of.nodes),
        span_s=span_s,
        slo=slo,
        ideal_hit_ratio=ideal_hit_ratio,
    )
    return METRICS[measure.metric](seen)


def is_refused(record: RequestRecord) -> bool:
    """Told no, by somebody who was able to; `is_lost` are the other errors."""
    refusing = record.outcome is Outcome.HTTP_ERROR and record.http_status in _REFUSING
    return refusing and record.cause not in _BROKEN


def is_lost(record: RequestRecord) -> bool:
    """Broken, or left without an answer."""
    return record.failed and not is_refused(record)


def _latency(field: str, part: str, seen: Seen) -> float | None:
    found = quantiles(getattr(record, field) for record in seen.ok)
    return None if found is None else float(getattr(found, part))


def _goodput(of: Callable[[RequestRecord], int], seen: Seen) -> float | None:
    begin_s, end_s = seen.span_s
    good = sum(of(record) for record in seen.ok if seen.slo.met(record))
    return good / (end_s - begin_s) if end_s > begin_s else None


def _share(of: Callable[[RequestRecord], bool], seen: Seen) -> float | None:
    return sum(map(of, seen.records)) / len(seen.records) if seen.records else None


def _amplification(seen: Seen) -> float | None:
    served = [record.placements for record in seen.records if record.placements]
    return sum(served) / len(served) if served else None


def _hit_of_ideal(seen: Seen) -> float | None:
    found = hit_ratio(seen.ok)
    return None if found is None or not seen.ideal_hit_ratio else found / seen.ideal_hit_ratio


def _lost_unbegun(record: RequestRecord) -> bool:
    """Another engine could have had it: its client has seen nothing of an answer."""
    return is_lost(record) and record.ttft_s is None


def _unexplained(record: RequestRecord) -> bool:
    """Refused, but for no reason that there is."""
    return is_refused(record) and record.cause not in ANSWERS


METRICS: Mapping[str, Callable[[Seen], float | None]] = MappingProxyType(
    {
        **{
            f"{field}.{part}": partial(_latency, field, part)
            for field in ("ttft_s", "tpot_s", "e2e_s")
            for part in ("mean", "p50", "p95", "p99", "max")
        },
        "requests": lambda seen: float(len(seen.records)),
        "ok": lambda seen: float(len(seen.ok)),
        "errors": lambda seen: float(sum(record.failed for record in seen.records)),
        "refused": lambda seen: float(sum(map(is_refused, seen.records))),
        "lost": lambda seen: float(sum(map(is_lost, seen.records))),
        "lost_unbegun": lambda seen: float(sum(map(_lost_unbegun, seen.records))),
        "unexplained": lambda seen: float(sum(map(_unexplained, seen.records))),
        "ok_share": partial(_share, lambda record: record.outcome is Outcome.OK),
        "refused_share": partial(_share, is_refused),
        "lost_share": partial(_share, is_lost),
        "goodput": partial(_goodput, lambda record: 1),
        "goodput_tokens": partial(
            _goodput, lambda record: record.input_tokens + record.output_tokens
        ),
        "slo_attainment": lambda seen: _share(seen.slo.met, seen),
        "hit_ratio": lambda seen: hit_ratio(seen.ok),
        "hit_of_ideal": _hit_of_ideal,
        "amplification": _amplification,
        "load_deviation": lambda seen: load_deviation(seen.series),
        "waiting_max": lambda seen: _most(max(node.waiting) for node in seen.series.nodes),
        "preemptions": lambda seen: float(seen.run.preemptions),
        "held_max": lambda seen: _most(seen.series.held),
    }
)


def _most(values: Iterable[int]) -> float | None:
    listed = list(values)
    return float(max(listed)) if listed else None


def _cut(series: Series, span_s: tuple[float, float], nodes: tuple[str, ...]) -> Series:
    """The samples within the span, of the nodes named (none: of all)."""
    begin_s, end_s = span_s
    kept = [place for place, at_s in enumerate(series.times_s) if begin_s <= at_s <= end_s]
    if not kept:
        return Series()
    return Series(
        times_s=tuple(series.times_s[place] for place in kept),
        held=tuple(series.held[place] for place in kept),
        nodes=tuple(
            NodeSeries(
                node=node.node,
                running=tuple(node.running[place] for place in kept),
                waiting=tuple(node.waiting[place] for place in kept),
                kv_usage=tuple(node.kv_usage[place] for place in kept),
                remaining_s=tuple(node.remaining_s[place] for place in kept),
            )
            for node in series.nodes
            if not nodes or node.node in nodes
        ),
    )
