"""Orders those who wait for the same nodes: by priority, and within a priority by turns, counted in
tokens.

The highest priority is served first, but for aging. Among all below high priority each named step
of priority counts as `aging_s` of waiting, and the one whose next request came first by that is
served. So low priority is delayed, not starved.

Within a priority tenants take turns: the one that was given the fewest tokens is next (virtual
token counter, arXiv 2401.00588, algorithm 2, with all tokens at once when a request leaves). A
tenant that comes in starts level with the least that is there. Otherwise it would have saved up a
claim while it did not wait.

Within a tenant there is a lane for each class of size, and lanes take turns the same way. So a
short request never waits for all long ones before it, and the long get their share. A lane is first
come, first served, and who comes back goes first.

What is taken and cannot be placed is put back as if it had not been taken.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from pointsman.core.ids import RequestId
from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_NORMAL
from pointsman.core.placement import Waiting
from pointsman.core.request import Request

Admits = Callable[[int], bool]
"""Tells whether the gate is open for a priority. If it is, it is open for those above."""

Rank = tuple[int, float]
"""A place in the order over all: lower is sooner."""

LANE_TOKENS = (1_024, 4_096, 16_384, 65_536)
LANES = len(LANE_TOKENS) + 1
"""Classes of size, each up to four times as long as the one before. The shortest are served as if
they were alone."""

LANE_NAMES = ("1k", "4k", "16k", "64k", "longer")

_STALE_MAX = 64
_Queue = OrderedDict[RequestId, Waiting]


def lane_of(tokens: int) -> int:
    """The lane of a request with so many tokens, of prompt and output together."""
    return bisect_left(LANE_TOKENS, tokens)


class FairOrder:
    """The order of those who wait for the same nodes. An operation takes time by the logarithm of
    the number of tenants, and a look at each priority that is there."""

    def __init__(self, aging_s: float) -> None:
        self._levels: dict[int, _Level] = {}
        self._step_s = aging_s / (PRIORITY_HIGH - PRIORITY_NORMAL)

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels.values())

    def add(self, waiting: Waiting) -> None:
        priority = waiting.request.priority
        level = self._levels.get(priority)
        if level is None or not len(level):
            level = self._levels[priority] = _Level()
        level.add(waiting)

    def head(self, admits: Admits) -> tuple[Rank, Waiting] | None:
        """Who is next of those that the gate lets pass, with its rank among others."""
        best: tuple[Rank, Waiting] | None = None
        for priority, level in self._levels.items():
            waiting = level.head() if len(level) and admits(priority) else None
            if waiting is None:
                continue
            rank = self._rank(priority, waiting)
            if best is None or rank < best[0]:
                best = (rank, waiting)
        return best

    def take(self, waiting: Waiting) -> None:
        """Take out what `head` has just named."""
        self._levels[waiting.request.priority].take(waiting)

    def put_back(self, waiting: Waiting) -> None:
        """Undo a `take`; of several, the last one first."""
        self._levels[waiting.request.priority].put_back(waiting)

    def remove(self, waiting: Waiting) -> None:
        """Forget a request that will never be served. It has taken nobody's turn."""
        self._levels[waiting.request.priority].remove(waiting)

    def as_urgent(self, priority: int) -> int:
        """How many are at least as urgent."""
        return sum(len(level) for p, level in self._levels.items() if p >= priority)

    def before(self, request: Request) -> int:
        """The most that may have their turn before a newcomer: all who are more urgent, and those
        who take turns with its tenant."""
        priority = request.priority
        level = self._levels.get(priority)
        equal = 0 if level is None else level.before(request.tenant)
        return self.as_urgent(priority + 1) + equal

    def lowest(self) -> int | None:
        """The lowest priority of those that wait; None where nobody does."""
        return min((p for p, level in self._levels.items() if len(level)), default=None)

    def last(self) -> Waiting | None:
        """The request of the lowest priority that came last."""
        lowest = self.lowest()
        return None if lowest is None else self._levels[lowest].last()

    def _rank(self, priority: int, waiting: Waiting) -> Rank:
        if priority >= PRIORITY_HIGH:
            return (-priority, waiting.arrived_s)
        if not self._step_s:
            return (PRIORITY_HIGH - priority, waiting.arrived_s)
        return (0, waiting.arrived_s - priority * self._step_s)

    def check(self) -> None:
        for level in self._levels.values():
            level.check()


class _Level:
    """Those who wait with one priority. Tenants that no longer wait are remembered while others do:
    their counters say that they have had their turn."""

    def __init__(self) -> None:
        self._arrivals: _Queue = OrderedDict()
        self._tenants: dict[str, _Tenant] = {}
        self._turns: list[tuple[int, str]] = []
        self._present = 0  # tenants that wait

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, waiting: Waiting) -> None:
        self._forget_gone()
        name = waiting.request.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant()
        if not tenant.waits:
            tenant.served = max(tenant.served, self._least())
            heappush(self._turns, (tenant.served, name))
            self._present += 1
        tenant.add(waiting)
        self._arrivals[waiting.request.id] = waiting

    def head(self) -> Waiting | None:
        tenant = self._next()
        return None if tenant is None else tenant.head()

    def take(self, waiting: Waiting) -> None:
        name = waiting.request.tenant
        tenant = self._tenants[name]
        del self._arrivals[waiting.request.id]
        tenant.take(waiting)
        if tenant.waits:
            heappush(self._turns, (tenant.served, name))
        else:
            self._present -= 1

    def put_back(self, waiting: Waiting) -> None:
        name = waiting.request.tenant
        tenant = self._tenants[name]
        self._present += not tenant.waits
        tenant.put_back(waiting)
        heappush(self._turns, (tenant.served, name))
        self._arrivals[waiting.request.id] = waiting

    def remove(self, waiting: Waiting) -> None:
        del self._arrivals[waiting.request.id]
        tenant = self._tenants[waiting.request.tenant]
        tenant.remove(waiting)
        self._present -= not tenant.waits

    def before(self, name: str) -> int:
        """The most that have their turn before a newcomer of this tenant: its own, and of each
        other tenant as many as it will have had turns."""
        tenant = self._tenants.get(name)
        own = 0 if tenant is None else tenant.count
        others = self._present - (own > 0)
        return own + min(len(self._arrivals) - own, (own + 1) * others)

    def last(self) -> Waiting:
        return self._arrivals[next(reversed(self._arrivals))]

    def _next(self) -> "_Tenant | None":
        """The tenant whose turn it is. Turns that have become void are dropped on the way."""
        turns = self._turns
        while turns:
            served, name = turns[0]
            tenant = self._tenants.get(name)
            if tenant is not None and tenant.waits and tenant.served == served:
                return tenant
            heappop(turns)
        return None

    def _least(self) -> int:
        tenant = self._next()
        return 0 if tenant is None else tenant.served

    def _forget_gone(self) -> None:
        """Keeps what is remembered smaller than what waits: drops counters that say nothing any
        more and, where that is not enough, all turns that were had."""
        if not self._is_crowded:
            return
        least = self._least()
        self._keep({n: t for n, t in self._tenants.items() if t.waits or t.served > least})
        if self._is_crowded:
            self._keep({name: t for name, t in self._tenants.items() if t.waits})

    @property
    def _is_crowded(self) -> bool:
        return len(self._tenants) + len(self._turns) > 4 * len(self._arrivals) + _STALE_MAX

    def _keep(self, tenants: "dict[str, _Tenant]") -> None:
        self._tenants = tenants
        self._turns = [(t.served, name) for name, t in tenants.items() if t.waits]
        heapify(self._turns)

    def check(self) -> None:
        waiting = sum(tenant.count for tenant in self._tenants.values())
        assert waiting == len(self._arrivals), (waiting, len(self._arrivals))
        assert self._present == sum(tenant.waits for tenant in self._tenants.values())
        turns = set(self._turns)
        for name, tenant in self._tenants.items():
            assert not tenant.waits or (tenant.served, name) in turns, name


class _Tenant:
    """One tenant's lanes. `served` counts the tokens that it was given, or is treated as if it had
    been."""

    __slots__ = ("_lane_served", "_lanes", "served")

    def __init__(self) -> None:
        self.served = 0
        self._lanes: list[_Queue] = [OrderedDict() for _ in range(LANES)]
        self._lane_served = [0] * LANES

    @property
    def waits(self) -> bool:
        return any(self._lanes)

    @property
    def count(self) -> int:
        return sum(map(len, self._lanes))

    def add(self, waiting: Waiting) -> None:
        queue, served = self._lanes[waiting.lane], self._lane_served
        if not queue:
            least = min((served[i] for i, lane in enumerate(self._lanes) if lane), default=0)
            served[waiting.lane] = max(served[waiting.lane], least)
        comes_back = bool(queue) and waiting.arrived_s < queue[next(iter(queue))].arrived_s
        queue[waiting.request.id] = waiting
        if comes_back:
            queue.move_to_end(waiting.request.id, last=False)

    def head(self) -> Waiting:
        """The first request of the lane that was given least; of equal lanes, the shortest."""
        lanes, served = self._lanes, self._lane_served
        queue = lanes[min((i for i in range(LANES) if lanes[i]), key=served.__getitem__)]
        return queue[next(iter(queue))]

    def take(self, waiting: Waiting) -> None:
        del self._lanes[waiting.lane][waiting.request.id]
        self._lane_served[waiting.lane] += waiting.tokens
        self.served += waiting.tokens

    def put_back(self, waiting: Waiting) -> None:
        queue = self._lanes[waiting.lane]
        queue[waiting.request.id] = waiting
        queue.move_to_end(waiting.request.id, last=False)
        self._lane_served[waiting.lane] -= waiting.tokens
        self.served -= waiting.tokens

    def remove(self, waiting: Waiting) -> None:
        del self._lanes[waiting.lane][waiting.request.id]
