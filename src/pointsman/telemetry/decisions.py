"""The last decisions, to be asked why."""

from collections import OrderedDict

from pointsman.core.decision import Decision
from pointsman.core.ids import RequestId

DECISIONS_MAX = 4_096
"""Decisions remembered unless configured: minutes of a busy gateway, about 8 MB."""


class DecisionRing:
    """A `DecisionSink` that forgets the oldest first. One entry for each verdict, so that a
    request that was held and placed, or placed twice, shows its whole way."""

    def __init__(self, length_max: int = DECISIONS_MAX) -> None:
        self._length_max = length_max
        self._requests: OrderedDict[RequestId, list[Decision]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def record(self, decision: Decision) -> None:
        """Remember it, at the price of the oldest request's."""
        if self._length_max == 0:
            return
        self._requests.setdefault(decision.request_id, []).append(decision)
        self._length += 1
        while self._length > self._length_max:
            _, forgotten = self._requests.popitem(last=False)
            self._length -= len(forgotten)

    def of(self, request_id: RequestId) -> list[Decision]:
        """Every decision about one request, in the order they were made."""
        return list(self._requests.get(request_id, ()))

    def latest(
        self, limit: int, *, model: str | None = None, node: str | None = None
    ) -> list[Decision]:
        """Newest first, by the time their request arrived; of one model or node if given."""
        found: list[Decision] = []
        for decisions in reversed(self._requests.values()):
            for decision in reversed(decisions):
                if len(found) >= limit:
                    return found
                if model in (None, decision.model) and node in (None, decision.node):
                    found.append(decision)
        return found
