"""Orders those who wait for the same nodes: most utility first.

    utility = weight / (size^penalty · (1 + load))        weight = 4^(priority / 10)
    score   = ln utility + waited / aging_s

`size` are the tokens of prompt and expected output, `load` the share of its nodes that was taken
when the request came. The score of all grows alike, so their order never changes: it is kept as
`arrived / aging_s - ln utility`, least first. Short requests come first and urgent ones before
longer, which is best for the mean; nobody is starved, since `aging_s` of waiting outweigh a
factor of e. Without aging nothing but utility counts.
"""

from heapq import heappop, heappush
from math import log

from pointsman.core.admission.fair import Admits, Rank
from pointsman.core.ids import RequestId
from pointsman.core.limits import PRIORITY_HIGH
from pointsman.core.placement import Waiting
from pointsman.core.request import Request

_STEP_WEIGHT = 4.0
"""What a named step of priority is worth: it outweighs four times the length."""

_STALE_MAX = 64
_Entry = tuple[float, float, RequestId]


class UtilityOrder:
    """The order by utility. It is asked as `FairOrder` is, which says what each method is for.

    There is a heap for each priority, since the gate lets pass by priority; the key decides among
    their heads. `penalty` is the power of the size.
    """

    def __init__(self, aging_s: float, penalty: float) -> None:
        self._aging_s = aging_s
        self._penalty = penalty
        self._levels: dict[int, list[_Entry]] = {}
        self._waiting: dict[RequestId, Waiting] = {}
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        request = waiting.request
        self._waiting[request.id] = waiting
        self._counts[request.priority] = self._counts.get(request.priority, 0) + 1
        level = self._levels.setdefault(request.priority, [])
        heappush(level, self._entry(waiting))
        if len(level) > 2 * self._counts[request.priority] + _STALE_MAX:
            level[:] = sorted({entry for entry in level if self._is_live(entry, request.priority)})

    def head(self, admits: Admits) -> tuple[Rank, Waiting] | None:
        best: tuple[Rank, Waiting] | None = None
        for priority, level in self._levels.items():
            while level and not self._is_live(level[0], priority):
                heappop(level)
            if not level or not admits(priority):
                continue
            key, _, request_id = level[0]
            if best is None or (0, key) < best[0]:
                best = ((0, key), self._waiting[request_id])
        return best

    def take(self, waiting: Waiting) -> None:
        self.remove(waiting)

    def put_back(self, waiting: Waiting) -> None:
        self.add(waiting)

    def remove(self, waiting: Waiting) -> None:
        del self._waiting[waiting.request.id]
        self._counts[waiting.request.priority] -= 1

    def as_urgent(self, priority: int) -> int:
        """How many are at least as urgent; who merely has more utility is not counted."""
        return sum(count for p, count in self._counts.items() if p >= priority)

    def before(self, request: Request) -> int:
        return self.as_urgent(request.priority)

    def lowest(self) -> int | None:
        return min((p for p, count in self._counts.items() if count), default=None)

    def last(self) -> Waiting | None:
        """The request of least utility among those of the lowest priority."""
        lowest = self.lowest()
        if lowest is None:
            return None
        return self._waiting[max(e for e in self._levels[lowest] if self._is_live(e, lowest))[2]]

    def _entry(self, waiting: Waiting) -> _Entry:
        """The place in the order, least first."""
        request = waiting.request
        log_weight = log(_STEP_WEIGHT) * request.priority / PRIORITY_HIGH
        log_size = self._penalty * log(max(1, waiting.tokens))
        log_utility = log_weight - log_size - log(1 + waiting.load)
        waited = waiting.arrived_s / self._aging_s if self._aging_s else 0.0
        return (waited - log_utility, waiting.arrived_s, request.id)

    def _is_live(self, entry: _Entry, priority: int) -> bool:
        waiting = self._waiting.get(entry[2])
        if waiting is None or waiting.request.priority != priority:
            return False
        return waiting.arrived_s == entry[1]

    def check(self) -> None:
        for priority, level in self._levels.items():
            live = {entry[2] for entry in level if self._is_live(entry, priority)}
            assert len(live) == self._counts.get(priority, 0), (live, self._counts)
        assert sum(self._counts.values()) == len(self._waiting), self._counts
