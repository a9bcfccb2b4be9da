"""A run by classes of its requests: by priority, by part of the traffic, by length of the prompt.

A class is shown where there are at least two of its kind, those of the first kind in each window of
the run too; a run without either has no classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from pointsman.report.replay.measure import is_lost, is_refused
from pointsman.report.replay.subset import LENGTHS, Windows, length_of, priority_of
from pointsman.report.summary import Quantiles, quantiles
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.slo import Slo

CLASSES_MAX = 12
"""Of one kind; the smallest are left out. More are no classes."""

Records = Sequence[RequestRecord]

_URGENCY = ("high", "normal", "low")
KINDS: Mapping[str, Callable[[RequestRecord], str]] = MappingProxyType(
    {"part": lambda record: record.part, "priority": priority_of, "length": length_of}
)


class ClassNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """One class in one window; `name` and `window` are empty for all. Latencies are of requests
    that ended well, `tries` is how often clients sent a request."""

    kind: str
    name: str
    window: str
    requests: int
    ok: int
    refused: int
    lost: int
    slo_attainment: float
    tries: float
    ttft_s: Quantiles | None
    e2e_s: Quantiles | None


def classes(records: Records, slo: Slo, windows: Windows) -> tuple[ClassNumbers, ...]:
    """Everything by windows and classes; empty where there is neither."""
    found: list[ClassNumbers] = []
    for window, span_s in (("", (0.0, float("inf"))), *windows.items()):
        within = [record for record in records if span_s[0] <= record.due_s < span_s[1]]
        if window:
            found.append(_numbers(within, "", "", window, slo))
        kinds = grouped(records)
        for kind, named in kinds.items() if not window else list(kinds.items())[:1]:
            of = KINDS[kind]
            for name in named:
                own = [record for record in within if of(record) == name]
                found.append(_numbers(own, kind, name, window, slo))
    return tuple(found)


def grouped(records: Records) -> dict[str, tuple[str, ...]]:
    """The kinds of which there are several classes, and those, in an order that is theirs."""
    kinds = {kind: tuple(_names(kind, records)) for kind in KINDS}
    return {kind: names for kind, names in kinds.items() if len(names) > 1 and "" not in names}


def _names(kind: str, records: Records) -> Iterator[str]:
    counts: dict[str, int] = {}
    for record in records:
        name = KINDS[kind](record)
        counts[name] = counts.get(name, 0) + 1
    kept = sorted(counts, key=lambda name: -counts[name])[:CLASSES_MAX]
    order = _URGENCY if kind == "priority" else tuple(LENGTHS) if kind == "length" else ()
    yield from (name for name in order if name in kept)
    yield from (name for name in counts if name in kept and name not in order)


def _numbers(own: Records, kind: str, name: str, window: str, slo: Slo) -> ClassNumbers:
    ok = [record for record in own if record.outcome is Outcome.OK]
    return ClassNumbers(
        kind=kind,
        name=name,
        window=window,
        requests=len(own),
        ok=len(ok),
        refused=sum(map(is_refused, own)),
        lost=sum(map(is_lost, own)),
        slo_attainment=sum(map(slo.met, ok)) / len(own) if own else 0.0,
        tries=sum(record.tries for record in own) / len(own) if own else 0.0,
        ttft_s=quantiles(record.ttft_s for record in ok),
        e2e_s=quantiles(record.e2e_s for record in ok),
    )
