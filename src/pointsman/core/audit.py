"""Bookings against what engines report: what is booked for a request that its engine does not
know of is given back, which is its compensation.

A gateway tells when its requests begin and end. If it dies, or its word is lost, or an engine
has long finished for a client that reads slowly, what was reserved stands for nothing and others
wait for it. If an engine counts fewer requests than are booked there in `REPORTS` reports in a
row, that many are missing, and they are taken to be the oldest that are overdue. No request is
overdue before `RESERVATION_FACTOR` times what was foreseen for it, so a prompt may wait behind a
long one. Requests of other clients of the engine can hide missing ones of ours, and an engine may
report nothing at all: then the bound is a time that no request takes.

A first token that comes after that books its request again; an end finds nothing to give back.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from pointsman.core.bookings import Bookings
from pointsman.core.events import NodeSignals
from pointsman.core.flight import Flight
from pointsman.core.ids import NodeId
from pointsman.core.limits import LEASE_S_MAX, RESERVATION_FACTOR, RESERVATION_S_MAX
from pointsman.core.node import Node
from pointsman.core.records import compensation
from pointsman.core.request_events import Compensated, CompensationCause
from pointsman.core.rules import Rules

REPORTS = 4
"""Reports in a row by which a request is missing: 2 s of them. One is late by what is on its way
just then, to the engine or back."""


class Audit:
    """Changes the bookings, and nothing else."""

    def __init__(self, rules: Rules, bookings: Bookings) -> None:
        self._bookings = bookings
        self.counts: dict[CompensationCause, int] = {}
        self._short: dict[NodeId, deque[int]] = {}  # of nodes whose last report was short
        self.apply(rules)

    def apply(self, rules: Rules) -> None:
        """Go by these from here on."""
        self._reservation_s = rules.reservation_s

    def reported(self, node: Node, signals: NodeSignals, now_s: float) -> list[Compensated]:
        """The engine has told what it runs: compensate what it has not known of for a while."""
        short = _shortfall(node, signals)
        if not short:
            self._short.pop(node.id, None)
            return []
        reports = self._short.setdefault(node.id, deque(maxlen=REPORTS))
        reports.append(short)
        missing = min(reports) if len(reports) == REPORTS else 0
        lost = list(islice(self._overdue(node, now_s), missing))
        if lost:
            del self._short[node.id]
        why = f"the engine showed {node.inflight - short} of {node.inflight} requests"
        return self._compensate(lost, CompensationCause.MISSING, why, now_s)

    def _overdue(self, node: Node, now_s: float) -> Iterator[Flight]:
        for flight in self._older(self._reservation_s, now_s):
            if flight.node is node and not flight.compensated and self._is_overdue(flight, now_s):
                yield flight

    def _is_overdue(self, flight: Flight, now_s: float) -> bool:
        """Whether its present stage lasts much longer than was foreseen."""
        since_s, predicted = flight.started_s, flight.predicted
        foreseen_s = predicted.decode_s + predicted.interrupted_s
        if since_s is None:
            since_s = flight.placed_s
            foreseen_s = predicted.first_token_s + (0 if flight.request.stream else foreseen_s)
        return now_s - since_s >= max(self._reservation_s, RESERVATION_FACTOR * foreseen_s)

    def look(self, now_s: float) -> list[Compensated]:
        """Compensate what has lasted for longer than any request may, whatever engines say."""
        cluster = self._bookings.cluster
        self._short = {n: short for n, short in self._short.items() if cluster.get(n) is not None}
        return self._compensate(
            self._silent(now_s), CompensationCause.SILENT, "nobody has told of it", now_s
        )

    def _silent(self, now_s: float) -> Iterator[Flight]:
        for flight in self._older(RESERVATION_S_MAX, now_s):
            is_late = flight.started_s is None or now_s - flight.placed_s >= LEASE_S_MAX
            if is_late and not flight.compensated:
                yield flight

    def abandoned(self, now_s: float) -> list[Flight]:
        """Flights whose end nobody will report: compensated, and older than any request gets."""
        return [flight for flight in self._older(LEASE_S_MAX, now_s) if flight.compensated]

    def _older(self, seconds: float, now_s: float) -> Iterator[Flight]:
        """Flights that were placed so long ago, the oldest first."""
        return takewhile(lambda flight: now_s - flight.placed_s >= seconds, self._bookings)

    def _compensate(
        self, flights: Iterable[Flight], cause: CompensationCause, why: str, now_s: float
    ) -> list[Compensated]:
        return [self._compensated(flight, cause, why, now_s) for flight in flights]

    def _compensated(
        self, flight: Flight, cause: CompensationCause, why: str, now_s: float
    ) -> Compensated:
        self.counts[cause] = self.counts.get(cause, 0) + 1
        blocks, lasted_s = self._bookings.compensate(flight, now_s), now_s - flight.placed_s
        told = f"{cause}: {why}; {blocks} KV blocks are released after {lasted_s:.0f} s"
        decision = compensation(flight, told, now_s)
        return Compensated(flight.request.id, flight.node.id, cause, blocks, decision)


def _shortfall(node: Node, signals: NodeSignals) -> int:
    """How many of our requests the engine does not know of. An engine that gives no counts, but
    says that no request holds memory, has none."""
    if signals.running is not None and signals.waiting is not None:
        return max(0, node.inflight - signals.running - signals.waiting)
    return node.inflight if signals.kv_usage == 0 else 0
