"""The central queue: requests that wait for a node, most urgent first, each with a deadline.

Bounded; what does not fit is refused by the caller, never dropped here. Order is priority,
then arrival, so equal priorities are served first come first served.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush

from pointsman.core.ids import ModelName, RequestId
from pointsman.core.limits import QUEUE_LENGTH_MAX, QUEUE_TIMEOUT_S
from pointsman.core.placement import Attempt, Waiting
from pointsman.core.request import Request

_Key = tuple[int, float, int]


class HeldQueue:
    """Held requests by urgency. `add` needs room: ask `full` first."""

    def __init__(self, length_max: int = QUEUE_LENGTH_MAX, hold_s: float = QUEUE_TIMEOUT_S) -> None:
        self._length_max = self._length_allowed = length_max
        self._hold_s = hold_s
        self._waiting: dict[RequestId, Waiting] = {}
        self._order: list[tuple[_Key, RequestId]] = []
        self._deadlines: list[tuple[float, RequestId]] = []
        self._arrivals = 0
        self._of_model: dict[ModelName, int] = {}

    def resize(self, length_max: int, hold_s: float) -> None:
        """Other bounds for newcomers; who waits already goes on waiting."""
        self._length_allowed = max(length_max, len(self._waiting))
        self._length_max, self._hold_s = length_max, hold_s

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """Most urgent first, over a snapshot: the caller may remove while iterating."""
        return iter([self._waiting[request_id] for _, request_id in self._order])

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._waiting

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._length_max

    def add(self, attempt: Attempt, since_s: float) -> int:
        """Queue it; returns its position, from 1. Its deadline counts from `since_s`; its place
        is by its arrival, so that whoever comes back has lost nothing."""
        request = attempt.request
        assert not self.full, "ask `full` first"
        assert request.id not in self._waiting, request.id
        self._arrivals += 1
        key = (-request.priority, attempt.arrived_s, self._arrivals)
        deadline_s = since_s + (self._hold_s if request.hold_s is None else request.hold_s)
        self._of_model[request.model] = self._of_model.get(request.model, 0) + 1
        self._waiting[request.id] = Waiting(attempt, since_s, deadline_s, key)
        insort(self._order, (key, request.id))
        heappush(self._deadlines, (deadline_s, request.id))
        return bisect_left(self._order, (key, request.id)) + 1

    def remove(self, request_id: RequestId) -> Waiting | None:
        """Take it out, placed or gone. None when it does not wait here."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        position = bisect_left(self._order, (waiting.key, request_id))
        assert self._order[position][1] == request_id, request_id
        del self._order[position]
        self._leave(waiting.request.model)
        self._drop_stale_deadlines()
        return waiting

    def expired(self, now_s: float) -> list[Waiting]:
        """Take out all whose deadline has passed."""
        late: list[Waiting] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            waiting = self._live(*heappop(self._deadlines))
            if waiting is not None:
                late.append(waiting)
                self.remove(waiting.request.id)
        return late

    def next_deadline_s(self) -> float | None:
        if not self._waiting:
            return None
        self._drop_stale_deadlines()
        return self._deadlines[0][0] if self._deadlines else None

    def ahead_of(self, request: Request) -> Iterator[Waiting]:
        """Who waits for the same model and is at least as urgent, most urgent first."""
        for waiting in self:
            if waiting.request.priority < request.priority:
                return
            if waiting.request.model == request.model:
                yield waiting

    def ahead(self, request: Request) -> int:
        """How many those are, at most: a newcomer's place, or all that wait for its model."""
        if not self._waiting:
            return 0
        at_least_as_urgent = bisect_left(self._order, ((1 - request.priority, 0.0, 0), ""))
        return min(at_least_as_urgent, self._of_model.get(request.model, 0))

    def _leave(self, model: ModelName) -> None:
        self._of_model[model] -= 1
        if not self._of_model[model]:
            del self._of_model[model]

    def _live(self, deadline_s: float, request_id: RequestId) -> Waiting | None:
        waiting = self._waiting.get(request_id)
        return waiting if waiting is not None and waiting.deadline_s == deadline_s else None

    def _drop_stale_deadlines(self) -> None:
        """The heap is cleaned from its head, and rebuilt when it is mostly stale: its length
        stays below twice the queue's plus a constant."""
        heap = self._deadlines
        while heap and self._live(*heap[0]) is None:
            heappop(heap)
        if len(heap) > 2 * len(self._waiting) + 64:
            heap[:] = sorted((w.deadline_s, w.request.id) for w in self._waiting.values())

    def check(self) -> None:
        """Order, map and deadlines hold the same requests, in order and in bounds."""
        assert len(self._waiting) <= self._length_allowed, len(self._waiting)
        assert self._order == sorted(self._order), self._order
        assert {rid for _, rid in self._order} == set(self._waiting)
        assert len(self._order) == len(self._waiting)
        models = Counter([w.request.model for w in self._waiting.values()])
        assert self._of_model == models, (self._of_model, models)
        live = {rid for deadline_s, rid in self._deadlines if self._live(deadline_s, rid)}
        assert live == set(self._waiting), (live, self._waiting)
