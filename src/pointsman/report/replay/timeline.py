"""A run over time, in bins of when requests were due: waits by class, refusals by reason."""

from collections.abc import Sequence

import msgspec

from pointsman.report.replay.classes import KINDS, grouped
from pointsman.report.replay.measure import is_refused
from pointsman.report.summary import quantiles
from pointsman.traffic.outcome import Outcome, RequestRecord

BINS = 80
REASONS_MAX = 6
"""Reasons told apart; the rest is `other`."""


class WaitLine(msgspec.Struct, frozen=True, kw_only=True):
    """The 95th percentile of the TTFT of a class, bin by bin; None where there is none."""

    name: str
    ttft_s: tuple[float | None, ...]


class ErrorLine(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a second that ended by a cause, bin by bin."""

    cause: str
    refused: bool
    rate_rps: tuple[float, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Bins are from `edges_s[i]` to `edges_s[i + 1]`. Waits are of the classes of one kind: of
    parts, else priorities, else lengths, else of all requests alike."""

    edges_s: tuple[float, ...] = ()
    kind: str = ""
    waits: tuple[WaitLine, ...] = ()
    errors: tuple[ErrorLine, ...] = ()


def timeline(records: Sequence[RequestRecord], *, bins: int = BINS) -> Timeline:
    """Of records in any order; empty of none."""
    if not records:
        return Timeline()
    end_s = max(record.due_s for record in records) or 1.0
    width_s = end_s / bins
    binned: list[list[RequestRecord]] = [[] for _ in range(bins)]
    for record in records:
        binned[min(int(record.due_s / width_s), bins - 1)].append(record)
    kinds = grouped(records)
    kind = next(iter(kinds), "")
    return Timeline(
        edges_s=tuple(place * width_s for place in range(bins + 1)),
        kind=kind,
        waits=tuple(_wait(name, kind, binned) for name in kinds.get(kind, ("",))),
        errors=tuple(_errors(records, binned, width_s)),
    )


def _wait(name: str, kind: str, binned: Sequence[Sequence[RequestRecord]]) -> WaitLine:
    def p95_s(part: Sequence[RequestRecord]) -> float | None:
        own = [
            record.ttft_s
            for record in part
            if record.outcome is Outcome.OK and (not kind or KINDS[kind](record) == name)
        ]
        found = quantiles(own)
        return None if found is None else found.p95

    return WaitLine(name=name, ttft_s=tuple(p95_s(part) for part in binned))


def _errors(
    records: Sequence[RequestRecord], binned: Sequence[Sequence[RequestRecord]], width_s: float
) -> list[ErrorLine]:
    """The most frequent causes first."""
    counts: dict[tuple[str, bool], int] = {}
    for record in records:
        if record.failed:
            key = _cause(record), is_refused(record)
            counts[key] = counts.get(key, 0) + 1
    ranked = sorted(counts, key=lambda key: -counts[key])
    kept = ranked[:REASONS_MAX]
    lines = [
        ErrorLine(
            cause=cause,
            refused=refused,
            rate_rps=tuple(
                sum(r.failed and (_cause(r), is_refused(r)) == (cause, refused) for r in part)
                / width_s
                for part in binned
            ),
        )
        for cause, refused in kept
    ]
    rest = frozenset(ranked[REASONS_MAX:])
    if rest:
        rates = tuple(
            sum(r.failed and (_cause(r), is_refused(r)) in rest for r in part) / width_s
            for part in binned
        )
        lines.append(ErrorLine(cause="other", refused=False, rate_rps=rates))
    return lines


def _cause(record: RequestRecord) -> str:
    return record.cause or record.outcome.value
