"""The last decisions, to be asked why."""

from collections import deque
from typing import Final

from pointsman.core.decision import Decision
from pointsman.core.ids import RequestId

DECISIONS_MAX: Final = 4_096
"""Decisions remembered unless configured: minutes of a busy gateway, about 8 MB."""


class DecisionRing:
    """A `DecisionSink` that forgets the oldest first. One entry for each verdict, so that a
    request that was held and placed, or placed twice, shows its whole way. Every
    request records and hardly anybody asks, so recording is quick, and asking looks at all."""

    def __init__(self, length_max: int = DECISIONS_MAX) -> None:
        self._decisions: deque[Decision] = deque(maxlen=length_max)

    def __len__(self) -> int:
        return len(self._decisions)

    def record(self, decision: Decision) -> None:
        """Remember it; the oldest one is forgotten when the ring is full."""
        self._decisions.append(decision)

    def of(self, request_id: RequestId) -> list[Decision]:
        """Every decision about one request, in the order they were made."""
        return [decision for decision in self._decisions if decision.request_id == request_id]

    def latest(
        self, limit: int, *, model: str | None = None, node: str | None = None
    ) -> list[Decision]:
        """Newest first; of one model or node if given."""
        found: list[Decision] = []
        for decision in reversed(self._decisions):
            if len(found) >= limit:
                break
            if model in (None, decision.model) and node in (None, decision.node):
                found.append(decision)
        return found
