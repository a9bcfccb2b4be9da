"""Placed requests, and what each has of its node: a lease, a place in its counts, and credit for
its prompt.

The scheduler decides and books here; whatever ends a request gives all of it back, once.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from pointsman.core.admission.load import Loads
from pointsman.core.cluster import Cluster
from pointsman.core.flight import Flight
from pointsman.core.footprint import Footprints
from pointsman.core.ids import RequestId
from pointsman.core.ledger import Ledger
from pointsman.core.node import Node
from pointsman.core.placement import Attempt, Credit, Route
from pointsman.core.residency import Residency
from pointsman.core.row import Row


class Bookings:
    """All flights, in order of placement. Owned by the scheduler, whose ledger, cluster, loads
    and residency it changes."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        ledger: Ledger,
        footprints: Footprints,
        residency: Residency,
        loads: Loads,
    ) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self.footprints = footprints
        self._residency = residency
        self._loads = loads
        self._flights: dict[RequestId, Flight] = {}
        self._uncredited: tuple[Flight, Route] | None = None
        self._assumed_starts: list[tuple[float, RequestId]] = []

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._flights

    def get(self, request_id: RequestId) -> Flight | None:
        return self._flights.get(request_id)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    def newest(self) -> Iterator[Flight]:
        """All flights, the newest first."""
        return reversed(self._flights.values())

    def book(self, attempt: Attempt, route: Route, node: Node, row: Row, now_s: float) -> None:
        """Book a request on `node`, with what `row` foretells of it."""
        request = attempt.request
        assert self._uncredited is None, "catch up before the next placement"
        flight = self._flights[request.id] = Flight(attempt, route.demand, node, row, now_s)
        self._uncredited = (flight, route)
        self._reserve(flight, now_s)
        self.cluster.placed(node)
        if not request.stream:
            heappush(self._assumed_starts, (flight.first_token_due_s, request.id))

    def _reserve(self, flight: Flight, now_s: float) -> None:
        """A lease, and a place in its node's counts."""
        request, node, row = flight.request, flight.node, flight.predicted
        demand = flight.demand
        footprint = self.footprints.of(node, request.prompt, demand)
        taken = self.ledger.reserve(request.id, node.id, footprint)
        node.book(request.id, flight.work, now_s)
        self._loads.book(
            request,
            node.id,
            now_s,
            prompt_tokens=demand.prompt_tokens,
            blocks=taken,
            prefill_s=row.work_s,
        )

    def start(self, request_id: RequestId, now_s: float) -> Flight | None:
        """Its first byte is there. None if it is not in flight."""
        flight = self._flights.get(request_id)
        if flight is not None:
            flight.started(now_s)
            self.ledger.commit(request_id)
            self._loads.prefilled(request_id, now_s)
        return flight

    def compensate(self, flight: Flight, now_s: float) -> int:
        """Give back what it has of its node, although nobody has told of its end. Returns how many
        KV blocks are free by that."""
        assert not flight.compensated, flight.request.id
        flight.compensated = True
        return self._give_back(flight, now_s)

    def rebook(self, request_id: RequestId, now_s: float) -> bool:
        """Its first byte is there after all: if it was compensated and its node is still the same,
        it has its place again. Whether that was so."""
        flight = self._flights.get(request_id)
        if flight is None or not flight.compensated or flight.started_s is not None:
            return False
        if self.cluster.get(flight.node.id) is not flight.node:
            return False
        flight.compensated = False
        self._reserve(flight, now_s)
        return True

    def take(self, request_id: RequestId) -> Flight | None:
        """The flight ends: `keep` or `withdraw` what it has. None if it is not in flight."""
        return self._flights.pop(request_id, None)

    def keep(self, flight: Flight, now_s: float) -> None:
        """The node ran it to some end: it holds the prompt, and nothing else of it."""
        credit = self._unbook(flight, now_s)
        if credit is not None:
            self._residency.settle(flight.node, credit)

    def withdraw(self, flight: Flight, now_s: float) -> None:
        """The node never began it."""
        credit = self._unbook(flight, now_s)
        if credit is not None:
            self._residency.withdraw(credit)

    def _unbook(self, flight: Flight, now_s: float) -> Credit | None:
        """Give back what it had of its node, but for the credit, which is returned: it stands for
        as long as the incarnation does."""
        assert flight.credit is not None, flight.request.id
        if not flight.compensated:
            self._give_back(flight, now_s)
        return flight.credit if self.cluster.get(flight.node.id) is flight.node else None

    def _give_back(self, flight: Flight, now_s: float) -> int:
        """Returns how many KV blocks are free by that."""
        request_id = flight.request.id
        freed = self.ledger.release(request_id)
        flight.node.unbook(request_id, flight.work, now_s)
        self._loads.release(request_id, freed, now_s)
        return freed

    # --- what is done later ------------------------------------------------------------

    def catch_up(self) -> None:
        """Credit the last placement with its prompt. Nobody waits for that before the next
        question: so it is done then, or before by who has delivered the placement."""
        if self._uncredited is not None:
            (flight, route), self._uncredited = self._uncredited, None
            flight.credit = self._residency.credit(flight.node, flight.request.prompt)
            self._residency.hot.placed(
                route.boundary,
                flight.request.model,
                route.boundary_tokens,
                flight.placed_s,
                hits=flight.predicted.index_hit_tokens >= route.boundary_tokens,
            )

    def assume_starts(self, now_s: float) -> None:
        """An answer that is not streamed does not tell when its prefill is over: it is
        assumed to be when it was predicted to be, or newcomers would see a queue of prefills
        that are long done."""
        starts = self._assumed_starts
        while starts and starts[0][0] <= now_s:
            at_s, request_id = heappop(starts)
            flight = self._flights.get(request_id)
            if flight is not None and flight.first_token_due_s <= at_s:  # no later attempt's
                flight.node.start(request_id, now_s)
                self.ledger.commit(request_id)
                self._loads.prefilled(request_id, now_s)

    def next_assumed_start_s(self) -> float | None:
        """When the next prefill is assumed to be over."""
        return self._assumed_starts[0][0] if self._assumed_starts else None

    def check(self) -> None:
        """Every booking has its flight: leases, in-flight counts and tokens add up."""
        live = [f for f in self if self.cluster.get(f.node.id) is f.node and not f.compensated]
        for node in self.cluster.nodes:
            here = [f for f in live if f.node is node]
            assert node.inflight == len(here), (node, here)
            assert node.kv_tokens == sum(f.work.kv_tokens for f in here), node
            assert self.ledger.account(node.id).leases <= len(here), node
