"""Which requests of a run a number is about."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_NORMAL
from pointsman.traffic.outcome import RequestRecord

PRIORITIES = {PRIORITY_HIGH: "high", PRIORITY_NORMAL: "normal", PRIORITY_LOW: "low"}
"""Names of the usual ones; others go by their number."""

LENGTHS = {"short": (0, 4_096), "medium": (4_096, 32_768), "long": (32_768, 1 << 40)}
"""Classes of prompts by their tokens: [from, to)."""

Windows = Mapping[str, tuple[float, float]]
"""Names of times of a run: [from, to) in seconds."""

_BY_NAME = {name: number for number, name in PRIORITIES.items()}
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Subset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests for which all of this is true; nothing given is all of them.

    `part` and `tenant` are those of the traffic, `length` is a class of `LENGTHS`, `nodes` served
    the request, `window` is a time in which it was due, and so are `from_s` and `until_s`.
    """

    priority: Literal["high", "normal", "low"] | int | None = None
    part: str | None = None
    tenant: str | None = None
    length: Literal["short", "medium", "long"] | None = None
    nodes: tuple[str, ...] = ()
    window: str | None = None
    from_s: _Seconds | None = None
    until_s: _Seconds | None = None

    def __str__(self) -> str:
        return ", ".join(self._words())

    def span_s(self, windows: Windows) -> tuple[float, float]:
        """The time it is about; to the end of all time where nothing bounds it."""
        begin_s, end_s = (0.0, float("inf")) if self.window is None else windows[self.window]
        begin_s = begin_s if self.from_s is None else max(begin_s, self.from_s)
        return begin_s, end_s if self.until_s is None else min(end_s, self.until_s)

    def of(self, records: tuple[RequestRecord, ...], windows: Windows) -> list[RequestRecord]:
        """Those of `records` that belong to it, in their order."""
        begin_s, end_s = self.span_s(windows)
        return [r for r in records if begin_s <= r.due_s < end_s and self._matches(r)]

    def _matches(self, record: RequestRecord) -> bool:
        priority = self.priority
        if isinstance(priority, str):
            priority = _BY_NAME[priority]
        return (
            (priority is None or record.priority == priority)
            and (self.part is None or record.part == self.part)
            and (self.tenant is None or record.tenant == self.tenant)
            and (self.length is None or length_of(record) == self.length)
            and (not self.nodes or record.node in self.nodes)
        )

    def _words(self) -> Iterator[str]:
        if self.priority is not None:
            yield f"priority {self.priority}"
        for name in (self.part, self.tenant, self.length, self.window):
            if name is not None:
                yield name
        if self.nodes:
            yield f"{self.nodes[0]} to {self.nodes[-1]}" if len(self.nodes) > 1 else self.nodes[0]
        if self.from_s is not None:
            yield f"from {self.from_s:g} s"
        if self.until_s is not None:
            yield f"until {self.until_s:g} s"


def length_of(record: RequestRecord) -> str:
    """The class of its prompt."""
    tokens = record.input_tokens
    return next(name for name, (low, high) in LENGTHS.items() if low <= tokens < high)


def priority_of(record: RequestRecord) -> str:
    """The name of its priority, or the number."""
    return PRIORITIES.get(record.priority, str(record.priority))
