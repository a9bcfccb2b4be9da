"""Placed requests that are taken back before their first byte, to be placed anew.

Two reasons: their node is in trouble and they have not begun there (`rescue`), or a request that
is more urgent would come too late (`make_room`). Which ones give way follows "priority times
remaining share, less the cost to redo it": the least urgent first; of those, whoever
has had the least done for it. A recall costs the engine what it has done, so each request is
recalled `recalls_max` times at most, and all of them inside the retry budget.

The shell answers a recall with `Failed(RECALLED)`; one that crosses with the first byte or with
the end is void, and nothing has to be undone.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from pointsman.core.admission.retry_budget import RetryBudget
from pointsman.core.bookings import Bookings
from pointsman.core.candidates import matches
from pointsman.core.flight import Flight
from pointsman.core.ids import NodeId
from pointsman.core.limits import (
    PREEMPTED_MAX,
    PREEMPTION_GAP,
    PREEMPTION_LOOK_MAX,
    PREEMPTION_SCAN_MAX,
    PRIORITY_MAX,
)
from pointsman.core.node import Node
from pointsman.core.placement import Attempt, Choice, Demand, Hold, Route
from pointsman.core.request import Request
from pointsman.core.request_events import RecallCause, Recalled
from pointsman.core.row import Row
from pointsman.core.rules import Preemption, Rules

_OVERDUE_FACTOR: Final = 2.0
_OVERDUE_S: Final = 1.0
"""A request that a troubled node may be computing just now is left there until its first token
is this much later than foretold: health probes of busy engines fail, and half a long prefill is
more than the wait for the rest of it."""

_Newest = dict[NodeId, list[Flight]]


class Recalls:
    """Borrows the scheduler's state; changes nothing of it but what a flight is asked for."""

    def __init__(self, rules: Rules, bookings: Bookings, retries: RetryBudget) -> None:
        self._cluster, self._ledger = bookings.cluster, bookings.ledger
        self._bookings = bookings
        self._retries = retries
        self.apply(rules)

    def apply(self, rules: Rules) -> None:
        """Go by these from here on."""
        self._recalls_max = rules.retries.recalls_max
        self._preemption = rules.preemption

    # --- from nodes in trouble ---------------------------------------------------------

    def rescue(self, now_s: float) -> list[Recalled]:
        """Take back what waits on nodes in trouble, if another may take it."""
        if not any(node.inflight and node.condition.is_stuck for node in self._cluster.nodes):
            return []
        return [
            self._recall(flight, RecallCause.NODE_DOWN)
            for flight in self._bookings
            if flight.node.condition.is_stuck
            and self._may_be_recalled(flight)
            and not _may_yet_begin(flight, now_s)
            and self._has_another(flight)
            and self._retries.take()
        ]

    def _has_another(self, flight: Flight) -> bool:
        request, avoided = flight.request, flight.attempt.avoided
        return any(
            node is not flight.node and node.id not in avoided and matches(node, request)
            for node in self._cluster.serving(request.model)
        )

    # --- for who is more urgent --------------------------------------------------------

    def make_room(self, request: Request, route: Route, now_s: float) -> list[Recalled]:
        """Have others give way to `request`, which was just held, or placed where its first
        token comes too late; nobody, where that would not help."""
        if self._preemption is Preemption.OFF or request.priority - PREEMPTION_GAP < -PRIORITY_MAX:
            return []
        newest = self._newest_flights()
        match route.answer:
            case Hold():
                giving_way = self._for_room(request, route.demand, newest, now_s)
            case Choice(row=row):
                giving_way = self._for_sooner(request, row, newest, now_s)
            case _:
                return []
        return [
            self._recall(flight, RecallCause.PREEMPTED)
            for flight in giving_way
            if self._retries.take()
        ]

    def _for_room(
        self, request: Request, demand: Demand, newest: _Newest, now_s: float
    ) -> Sequence[Flight]:
        """The fewest on one node who make room for it there."""
        best: Sequence[Flight] = ()
        for node in self._cluster.serving(request.model):
            if matches(node, request):
                found = self._until_it_fits(node, request, demand, newest, now_s)
                if found and (not best or len(found) < len(best)):
                    best = found
        return best

    def _newest_flights(self) -> _Newest:
        """The newest of all that is in flight, by node: where answers may break off."""
        found: _Newest = {}
        if self._preemption is Preemption.STREAMING:
            for flight in islice(self._bookings.newest(), PREEMPTION_LOOK_MAX):
                if not flight.compensated:
                    found.setdefault(flight.node.id, []).append(flight)
        return found

    def _until_it_fits(
        self, node: Node, request: Request, demand: Demand, newest: _Newest, now_s: float
    ) -> Sequence[Flight]:
        """Who must leave `node` before it has a slot and the memory; nobody if it has them, or if
        that is not enough."""
        blocks = self._bookings.footprints.needed(node, request.prompt, demand)
        account = self._ledger.account(node.id)
        free = account.free
        slots = min(node.concurrency_max, node.running_max - node.foreign(now_s)) - node.inflight
        leaving: list[Flight] = []
        if slots > 0 and account.fits(blocks):
            return leaving
        for flight in self._by_loss(node, request, newest, now_s):
            if free is not None:
                free += self._ledger.held_alone(flight.request.id)
            leaving.append(flight)
            if slots + len(leaving) > 0 and (free is None or free >= blocks):
                return leaving
            if len(leaving) == PREEMPTED_MAX:
                break
        return ()

    def _for_sooner(
        self, request: Request, row: Row, newest: _Newest, now_s: float
    ) -> Sequence[Flight]:
        """Who must leave the queue before it, so that its first token is in time."""
        node, bound_s = self._cluster.named(row.node), request.slo_ttft_s
        if node is None or bound_s is None:
            return ()
        late_s = row.queue_s + row.prefill_s - bound_s
        leaving: list[Flight] = []
        if late_s <= 0:
            return leaving
        for flight in self._by_loss(node, request, newest, now_s):
            if flight.started_s is None:
                leaving.append(flight)
                late_s -= flight.work.prefill_s
            if late_s <= 0:
                return leaving
            if len(leaving) == PREEMPTED_MAX:
                break
        return ()

    def _by_loss(self, node: Node, request: Request, newest: _Newest, now_s: float) -> list[Flight]:
        """Who may give way to `request` on `node`, whose loss is least first."""
        priority_max = request.priority - PREEMPTION_GAP
        flights = [
            flight
            for flight in self._preemptable(node, newest)
            if flight.request.priority <= priority_max and self._may_give_way(flight)
        ]
        return sorted(flights, key=lambda flight: _loss(flight, now_s))

    def _preemptable(self, node: Node, newest: _Newest) -> Iterable[Flight]:
        if self._preemption is Preemption.STREAMING:
            return newest.get(node.id, ())
        waiting = zip(range(PREEMPTION_SCAN_MAX), reversed(node.prefills), strict=False)
        found = [self._bookings.get(request_id) for _, request_id in waiting]
        return [flight for flight in found if flight is not None]

    # --- both ---------------------------------------------------------------------------

    def _may_be_recalled(self, flight: Flight) -> bool:
        return (
            flight.started_s is None
            and flight.recall is None
            and flight.attempt.recalls < self._recalls_max
        )

    def _may_give_way(self, flight: Flight) -> bool:
        if flight.started_s is not None:
            return self._preemption is Preemption.STREAMING and flight.recall is None
        return self._may_be_recalled(flight)

    def _recall(self, flight: Flight, cause: RecallCause) -> Recalled:
        flight.recall = cause
        breaks = flight.started_s is not None
        return Recalled(flight.request.id, flight.node.id, cause, breaks)


def gives_way(attempt: Attempt, urgent: int) -> bool:
    """Whether a held request goes on waiting while one of priority `urgent` finds no room: what
    it gave up when it was taken back is not for itself."""
    return attempt.recalls > 0 and attempt.request.priority <= urgent - PREEMPTION_GAP


def _may_yet_begin(flight: Flight, now_s: float) -> bool:
    """Whether its node may be at it, and have done most of it."""
    predicted = flight.predicted
    due_s = predicted.first_token_s
    if not flight.request.stream:
        due_s += predicted.decode_s
    elif not _is_next(flight):
        return False
    return now_s - flight.placed_s < _OVERDUE_FACTOR * due_s + _OVERDUE_S


def _loss(flight: Flight, now_s: float) -> tuple[float, bool, float]:
    """What is lost if it is taken back: how urgent it is, whether its client has had some of it,
    and for how long its node may have been at it."""
    request, is_streaming = flight.request, flight.started_s is not None
    done_s = now_s - flight.placed_s if is_streaming or _is_next(flight) else 0.0
    return (request.priority, is_streaming, done_s)


def _is_next(flight: Flight) -> bool:
    """Whether it is this prefill's turn, as far as can be known."""
    return next(iter(flight.node.prefills), None) == flight.request.id
