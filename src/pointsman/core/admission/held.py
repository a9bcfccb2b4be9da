"""The central queue: requests that wait for a node, each with a deadline.

Those that wait for the same nodes are in one order (`fair` or `utility`). Very long prompts have an
order of their own, since they may have to wait where others need not. The queue is bounded: where
it is full the caller refuses the newcomer, and where it holds too many it gives up the least
urgent. A scan takes out, in order, what may be served now, and puts back what found no place.
"""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush

from pointsman.core.admission.fair import LANES, Admits, FairOrder, Rank, lane_of
from pointsman.core.admission.load import PartKey, part_key
from pointsman.core.admission.utility import UtilityOrder
from pointsman.core.admission_rules import AdmissionRules, QueueOrder
from pointsman.core.ids import RequestId
from pointsman.core.limits import HOLD_S, QUEUE_LENGTH_MAX
from pointsman.core.placement import Attempt, Waiting
from pointsman.core.request import Request

MayPass = Callable[[Request, bool, int], bool]
"""Tells whether the gate is open for a request of some kind: given any request of a part, whether
it is a very long one, and its priority."""

_DEFAULTS = AdmissionRules()
_LineKey = tuple[PartKey, bool]
_Order = FairOrder | UtilityOrder


class _Line:
    """Those that wait for the same nodes. `sample` is any one of them, for asking the gate.
    `admits` is the gate's answer in the present scan."""

    __slots__ = ("admits", "order", "sample")

    def __init__(self, order: _Order, sample: Request) -> None:
        self.order = order
        self.sample = sample
        self.admits: Admits = _never


def _never(priority: int) -> bool:
    return False


class HeldQueue:
    """The held requests, by urgency."""

    def __init__(
        self,
        length_max: int = QUEUE_LENGTH_MAX,
        hold_s: float = HOLD_S,
        rules: AdmissionRules = _DEFAULTS,
    ) -> None:
        self._length_max = self._allowed = length_max
        self._hold_s = hold_s
        self._rules = rules
        self._waiting: dict[RequestId, Waiting] = {}
        self._lines: dict[_LineKey, _Line] = {}
        self._deadlines: list[tuple[float, RequestId]] = []
        self._lanes = [0] * LANES

    def apply(self, length_max: int, hold_s: float, rules: AdmissionRules) -> None:
        """Take other bounds for newcomers, and another order for all. Who waits goes on waiting."""
        reorders = _ordering(rules) != _ordering(self._rules)
        self._length_max, self._hold_s, self._rules = length_max, hold_s, rules
        self._allowed = max(length_max, len(self._waiting))
        if reorders:
            self._lines.clear()
            for waiting in sorted(self._waiting.values(), key=_arrival):
                self._line(waiting).order.add(waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """The held requests, in order of arrival."""
        return iter(self._waiting.values())

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._waiting

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._length_max

    @property
    def lanes(self) -> list[int]:
        """How many wait in each lane."""
        return list(self._lanes)

    def hold_s(self, request: Request) -> float:
        """How long a request may wait."""
        hold_s = self._hold_s if request.hold_s is None else request.hold_s
        return hold_s if request.slo_ttft_s is None else min(hold_s, request.slo_ttft_s)

    # --- one request -------------------------------------------------------------------

    def add(
        self,
        attempt: Attempt,
        since_s: float,
        *,
        prompt_tokens: int = 1,
        output_tokens: int = 0,
        load: float = 1.0,
        hold_s: float | None = None,
    ) -> Waiting:
        """Queue a request. Its deadline counts from `since_s`. Its turn goes by its arrival, so
        that one that comes back has lost nothing. `surplus` tells whether that made one too
        many."""
        request = attempt.request
        self._allowed = max(self._length_max, len(self._waiting))
        assert request.id not in self._waiting, request.id
        rules, tokens = self._rules, prompt_tokens + output_tokens
        waiting = Waiting(
            attempt,
            since_s=since_s,
            deadline_s=since_s + (self.hold_s(request) if hold_s is None else hold_s),
            tokens=tokens,
            lane=lane_of(tokens),
            is_very_long=prompt_tokens >= rules.long_context_tokens,
            load=load,
        )
        self._insert(waiting)
        self._line(waiting).order.add(waiting)
        heappush(self._deadlines, (waiting.deadline_s, request.id))
        return waiting

    def remove(self, request_id: RequestId) -> Waiting | None:
        """Take out a request that is over. None if it does not wait here."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return None
        self._forget(waiting)
        key = _line_key(waiting)
        line = self._lines[key]
        line.order.remove(waiting)
        if not len(line.order):
            del self._lines[key]
        self._drop_stale_deadlines()
        return waiting

    def surplus(self) -> list[Waiting]:
        """Take out those who have become too many with the last newcomer: the least urgent first,
        of these the latest. A queue that was made shorter keeps who waits already."""
        surplus: list[Waiting] = []
        while len(self._waiting) > self._allowed:
            lasts = [line.order.last() for line in self._lines.values()]
            last = min((w for w in lasts if w is not None), key=_displaced_first)
            self.remove(last.request.id)
            surplus.append(last)
        return surplus

    def has_less_urgent(self, request: Request) -> bool:
        """Whether somebody would give way to `request` when the queue is full."""
        lowest = [line.order.lowest() for line in self._lines.values()]
        return any(priority is not None and priority < request.priority for priority in lowest)

    def as_urgent(self, request: Request, *, is_very_long: bool = False) -> int:
        """How many wait for the same nodes and are at least as urgent."""
        if not self._lines:
            return 0
        line = self._lines.get((part_key(request), is_very_long))
        return 0 if line is None else line.order.as_urgent(request.priority)

    def before(self, request: Request, *, is_very_long: bool = False) -> int:
        """The most that have their turn before it, of those that wait for the same nodes."""
        line = self._lines.get((part_key(request), is_very_long))
        return 0 if line is None else line.order.before(request)

    def has_queue(self, request: Request) -> bool:
        """Whether anybody waits for the same nodes, however urgent."""
        key = part_key(request)
        return (key, False) in self._lines or (key, True) in self._lines

    # --- a scan ------------------------------------------------------------------------

    def turns(self, may_pass: MayPass) -> Iterator[Waiting]:
        """Take out, one by one, who is next of those that may pass. If the gate closes during the
        scan, nobody more comes. What finds no place is to be `put_back` at the end of the scan, all
        at once.

        Every line is asked once, and after that only the one whose turn it is.
        """
        heads: list[tuple[Rank, int, _Line]] = []
        for place, ((_, is_very_long), line) in enumerate(self._lines.items()):
            line.admits = partial(may_pass, line.sample, is_very_long)
            head = line.order.head(line.admits)
            if head is not None:
                heads.append((head[0], place, line))
        heapify(heads)
        while heads:
            rank, place, line = heappop(heads)
            head = line.order.head(line.admits)
            if head is not None and head[0] == rank:
                line.order.take(head[1])
                self._forget(head[1])
                yield head[1]
                head = line.order.head(line.admits)
            if head is not None:
                heappush(heads, (head[0], place, line))

    def put_back(self, missed: list[Waiting]) -> None:
        """End the scan: these found no place, and wait on as if they had not been taken."""
        for waiting in reversed(missed):
            self._insert(waiting)
            self._lines[_line_key(waiting)].order.put_back(waiting)
        for key in [key for key, line in self._lines.items() if not len(line.order)]:
            del self._lines[key]
        self._drop_stale_deadlines()

    # --- time --------------------------------------------------------------------------

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

    # --- helpers -----------------------------------------------------------------------

    def _insert(self, waiting: Waiting) -> None:
        self._waiting[waiting.request.id] = waiting
        self._lanes[waiting.lane] += 1

    def _forget(self, waiting: Waiting) -> None:
        del self._waiting[waiting.request.id]
        self._lanes[waiting.lane] -= 1

    def _line(self, waiting: Waiting) -> _Line:
        key = _line_key(waiting)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(_order(self._rules), waiting.request)
        return line

    def _live(self, deadline_s: float, request_id: RequestId) -> Waiting | None:
        waiting = self._waiting.get(request_id)
        return waiting if waiting is not None and waiting.deadline_s == deadline_s else None

    def _drop_stale_deadlines(self) -> None:
        """Clean the heap of deadlines from its head, and rebuild it when it is mostly stale. So its
        length stays below twice the queue's plus a constant."""
        heap = self._deadlines
        while heap and self._live(*heap[0]) is None:
            heappop(heap)
        if len(heap) > 2 * len(self._waiting) + 64:
            heap[:] = sorted((w.deadline_s, w.request.id) for w in self._waiting.values())

    def check(self) -> None:
        """Assert that lines, map and deadlines hold the same requests."""
        assert sum(len(line.order) for line in self._lines.values()) == len(self._waiting)
        for lane, count in enumerate(self._lanes):
            assert count == sum(w.lane == lane for w in self._waiting.values()), (lane, count)
        for line in self._lines.values():
            assert len(line.order), "a line that nobody stands in is gone"
            line.order.check()
        live = {rid for deadline_s, rid in self._deadlines if self._live(deadline_s, rid)}
        assert live == set(self._waiting), (live, self._waiting)


def _line_key(waiting: Waiting) -> _LineKey:
    return (part_key(waiting.request), waiting.is_very_long)


def _ordering(rules: AdmissionRules) -> tuple[QueueOrder, float, float]:
    return (rules.order, rules.aging_s, rules.length_penalty)


def _order(rules: AdmissionRules) -> _Order:
    if rules.order is QueueOrder.FAIR:
        return FairOrder(rules.aging_s)
    return UtilityOrder(rules.aging_s, rules.length_penalty)


def _arrival(waiting: Waiting) -> float:
    return waiting.arrived_s


def _displaced_first(waiting: Waiting) -> tuple[int, float]:
    return (waiting.request.priority, -waiting.arrived_s)
