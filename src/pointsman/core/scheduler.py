"""The life of the cluster: `step(event, now_s)` takes an event in and gives effects out.

`_place` is its centre: route, book, lease and credit in one synchronous step, so that two
requests can never choose on the same stale state. Nothing else changes state, and the same
events with the same seed give the same effects.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final, get_args

from pointsman.core import records
from pointsman.core.admission.retry_budget import may_go_on
from pointsman.core.decision import Decision, Prospect
from pointsman.core.errors import ANSWERS, FAILURE_REASONS, FailureKind, Reason
from pointsman.core.events import (
    Effect,
    Event,
    IndexTrust,
    NodeEvent,
    NodeJoined,
    NodeReported,
    PolicyChosen,
    RulesChanged,
    Tick,
)
from pointsman.core.flight import Flight, check_hits, learn
from pointsman.core.ids import ModelName
from pointsman.core.limits import DECISION_ROWS_MAX, FLIGHTS_MAX, HELD_SCAN_MAX, PRIORITY_MAX
from pointsman.core.options import SchedulerOptions
from pointsman.core.placement import Attempt, Choice, Demand, Hold, Refusal, Route, Waiting
from pointsman.core.policies import catalog
from pointsman.core.policies.marginal_cost import MarginalCost
from pointsman.core.recalls import gives_way
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import (
    Arrived,
    Compensated,
    Failed,
    Held,
    Placed,
    Refused,
    Settled,
    Started,
)
from pointsman.core.row import Row
from pointsman.core.state import SchedulerState

_CROWDED_OUT: Final = Refusal(Reason.QUEUE_FULL, "More urgent requests took all room to wait.")


class Scheduler(SchedulerState):
    """Owns all state of the cluster. Not for two threads; never re-entered from an effect."""

    def __init__(self, options: SchedulerOptions | None = None) -> None:
        options = options or SchedulerOptions()
        super().__init__(options)
        self._weights = options.marginal_cost
        self._policy = catalog.make(options.policy, self._weights)
        self._rng = Random(options.seed)
        self._handlers: dict[type, Callable[[Any, float], list[Effect]]] = {
            Arrived: self._arrived,
            Started: self._started,
            Failed: self._failed,
            Settled: self._settled,
            **dict.fromkeys((NodeJoined, *get_args(NodeEvent)), self._node_changed),
            NodeReported: self._node_reported,
            PolicyChosen: self._policy_chosen,
            RulesChanged: self._rules_changed,
            Tick: self._tick,
        }

    def step(self, event: Event, now_s: float) -> list[Effect]:
        """Take one event in. `now_s` never goes back."""
        self._bookings.catch_up()
        self._bookings.assume_starts(now_s)
        effects = self._handlers[type(event)](event, now_s)
        if self._cluster.turns or self._cluster.cold:
            effects += self._membership.news(now_s)
        return effects

    # --- requests ----------------------------------------------------------------------

    def _arrived(self, event: Arrived, now_s: float) -> list[Effect]:
        request, demand = self._meant(event.request)
        assert request.id not in self._bookings, f"request id {request.id} is in use"
        assert request.id not in self._held, f"request id {request.id} is in use"
        self.stats.arrived += 1
        attempt = Attempt(request, now_s)
        if (early := self.guard.arrived(request, now_s)) is not None:
            return [self._refuse(attempt, self._unseen(request, early), now_s)]
        route = self._answer(attempt, demand, now_s)
        effects = [self._place(attempt, route, now_s), *self._make_way(now_s)]
        if request.slo_ttft_s is not None or isinstance(effects[0], Held):
            effects += self._recalls.make_room(request, route, now_s)
        return effects

    def _meant(self, request: Request) -> tuple[Request, Demand]:
        """The request with what it leaves open: its model, its home, its pool; and its demand."""
        request = self._homes.at_home(self._router.with_model(request))
        demand = self._router.demand(request)
        return self._admission.directed(request, demand), demand

    def _answer(self, attempt: Attempt, demand: Demand, now_s: float) -> Route:
        """Where a new request should go: as admission says, or else as routing does."""
        request, admission = attempt.request, self._admission
        if len(self._bookings) >= FLIGHTS_MAX:
            refusal = Refusal(Reason.QUEUE_FULL, f"{FLIGHTS_MAX} requests are in flight.")
            return self._router.without_look(demand, refusal)
        admission.count_arrival(request, now_s)
        answer = admission.gate_answer(request, demand, now_s)
        if answer is not None:
            return self._router.without_look(demand, answer)
        route = self._route(attempt, demand, now_s)
        hold = admission.newcomer_hold(request, route)
        return route if hold is None else route.with_answer(hold)

    def _place(self, attempt: Attempt, route: Route, now_s: float) -> Effect:
        """Make the route true: book it on its node, hold it, or refuse it."""
        match route.answer:
            case Choice() as choice:
                return self._book(attempt, route, choice.row, now_s)
            case Hold():
                return self._hold(attempt, route, now_s)
            case Refusal():
                return self._refuse(attempt, route, now_s)

    def _book(self, attempt: Attempt, route: Route, row: Row, now_s: float) -> Placed:
        request, node = attempt.request, self._cluster.named(row.node)
        assert node is not None, row.node
        decision = self._record(attempt, route, now_s)
        self._bookings.book(attempt, route, node, row, now_s)
        self._policy.placed(request, row)
        self.guard.placed(request, now_s, again=bool(attempt.tried))
        if attempt.tried:
            self.stats.retried += 1
        elif not attempt.recalls:
            self._retries.attempted()
        self.stats.placed += 1
        return Placed(request.id, node.id, node.name, node.spec.url, decision)

    def _hold(self, attempt: Attempt, route: Route, now_s: float) -> Held | Refused:
        prospect = self._admission.prospect(attempt.request, route.demand, now_s)
        refusal = self._admission.hold_refusal(attempt, prospect)
        if refusal is not None:
            return self._refuse(attempt, route.with_answer(refusal), now_s, prospect)
        decision = self._record(attempt, route, now_s, prospect=prospect)
        self._admission.hold(attempt, route.demand, now_s)
        self.stats.held += 1
        return Held(attempt.request.id, prospect.position, decision)

    def _make_way(self, now_s: float) -> list[Effect]:
        """Refuse those for whom the queue has no room any more."""
        return [self._refuse_waiting(w, _CROWDED_OUT, now_s) for w in self._held.surplus()]

    def _refuse(
        self, attempt: Attempt, route: Route, now_s: float, prospect: Prospect | None = None
    ) -> Refused:
        request, refusal = attempt.request, route.answer
        assert isinstance(refusal, Refusal), refusal
        decision = self._record(attempt, route, now_s, prospect=prospect)
        turn_s = 0.0 if prospect is None else prospect.wait_s or 0.0
        wait_s = self._router.retry_after_s(request.model, refusal.reason, now_s, turn_s=turn_s)
        ran = bool(attempt.tried)
        retry_after_s = self.guard.refused(request, refusal.reason, wait_s, now_s, ran=ran)
        self.stats.refused += 1
        return Refused(request.id, refusal.reason, retry_after_s, refusal.detail, decision)

    def _started(self, event: Started, now_s: float) -> list[Effect]:
        self.stats.rebooked += self._bookings.rebook(event.request_id, now_s)
        flight = self._bookings.start(event.request_id, now_s)
        if flight is None:
            return self._stale()
        self._judge.began(flight, now_s)
        return self._retry_held(now_s)

    def _failed(self, event: Failed, now_s: float) -> list[Effect]:
        """The attempt is undone; the next one avoids every node that failed so far."""
        flight = self._bookings.take(event.request_id)
        if flight is None:
            return self._stale()
        self._undo(flight, now_s)
        if event.kind is FailureKind.RECALLED:
            return self._queue_again(flight.recalled_attempt(), now_s)
        self._judge.failed(flight, event.kind, now_s)
        self._membership.give_way()
        again = self._place_again(flight, event.kind, now_s)
        moved = [*self._recalls.rescue(now_s), *self._retry_held(now_s)]
        return [again, *moved, *self._make_way(now_s)]

    def _queue_again(self, attempt: Attempt, now_s: float) -> list[Effect]:
        """A recalled request waits among the others, some of which may be more urgent. Where that
        makes one too many, the least urgent is refused once the room that was given up is taken."""
        self.stats.recalled += 1
        route = self._unseen(attempt.request, Hold("recalled"))
        held = self._place(attempt, route, now_s)
        return [held, *self._retry_held(now_s), *self._make_way(now_s)]

    def _place_again(self, flight: Flight, kind: FailureKind, now_s: float) -> Effect:
        attempt, reason = flight.next_attempt(kind), FAILURE_REASONS[kind]
        route = self._route(attempt, self._router.demand(attempt.request), now_s, again=True)
        refusal = Refusal(reason, ANSWERS[reason].message)
        busy, failed = attempt.busy, len(attempt.tried) - attempt.busy
        goes_on = may_go_on(self._retries.rules, failed=failed, busy=busy)
        if not goes_on or isinstance(route.answer, Refusal):
            return self._refuse(attempt, route.with_answer(refusal), now_s)
        if self._retries.is_spent:
            spent = Refusal(reason, f"{refusal.detail} The retry budget is spent.")
            return self._refuse(attempt, route.with_answer(spent), now_s)
        effect = self._place(attempt, route, now_s)
        if not isinstance(effect, Refused):  # as where the queue is full
            self._retries.take()
        return effect

    def _settled(self, event: Settled, now_s: float) -> list[Effect]:
        flight = self._bookings.take(event.request_id)
        if flight is None:
            return self._left_queue(event, now_s)
        self.stats.settled += 1
        self.guard.settled(flight.request, event.outcome, now_s, ran=True)
        if flight.prefilled(event.outcome):
            self._finish(flight, event.outcome, now_s)
        else:
            self._undo(flight, now_s)
        self._judge.ended(flight, event.outcome, now_s)
        return self._retry_held(now_s)

    def _left_queue(self, event: Settled, now_s: float) -> list[Effect]:
        waiting = self._held.remove(event.request_id)
        if waiting is None:
            return self._stale()
        self.stats.settled += 1
        self.guard.settled(waiting.request, event.outcome, now_s, ran=False)
        return []

    def _finish(self, flight: Flight, outcome: Outcome, now_s: float) -> None:
        self._bookings.keep(flight, now_s)
        self._policy.left(flight.request, flight.node.name)
        learn(flight, outcome, self._lengths, self._ratios, now_s)
        self._homes.answered(outcome.response_id, flight.node.id, flight.request)
        if check_hits(flight, outcome):
            self._residency.trust(flight.node, IndexTrust.DISTRUSTED)

    def _undo(self, flight: Flight, now_s: float) -> None:
        self._bookings.withdraw(flight, now_s)
        self._policy.left(flight.request, flight.node.name)

    def _compensated(self, found: list[Compensated], now_s: float) -> list[Effect]:
        """Give the room of what seems lost to others."""
        self.stats.compensated += len(found)
        return [*found, *self._retry_held(now_s)] if found else []

    # --- held requests -----------------------------------------------------------------

    def _retry_held(self, now_s: float) -> list[Effect]:
        """Try the held again, in the queue's order, until enough of them tried in vain or the
        gate lets nobody pass."""
        if not len(self._held):
            return []
        effects: list[Effect] = []
        missed: list[Waiting] = []
        urgent: dict[ModelName, int] = {}  # of those that find no room, the highest priority
        turns = self._admission.turns(now_s)
        while len(missed) < HELD_SCAN_MAX and (waiting := next(turns, None)) is not None:
            attempt, model = waiting.attempt, waiting.request.model
            if gives_way(attempt, urgent.get(model, -PRIORITY_MAX)):
                missed.append(waiting)  # the room it gave up is not for itself
                continue
            route = self._route(attempt, self._router.demand(attempt.request), now_s, len(missed))
            if self._admission.means_waiting(route.answer):
                missed.append(waiting)
                urgent[model] = max(urgent.get(model, -PRIORITY_MAX), attempt.request.priority)
            else:
                effects.append(self._place(attempt, route, now_s))
        if effects or missed:
            self._held.put_back(missed)
        return effects

    def _refuse_waiting(self, waiting: Waiting, refusal: Refusal, now_s: float) -> Refused:
        """Refuse one that was held."""
        return self._refuse(waiting.attempt, self._unseen(waiting.request, refusal), now_s)

    def _unseen(self, request: Request, answer: Hold | Refusal) -> Route:
        """An answer for which no node was looked at."""
        return self._router.without_look(self._router.demand(request), answer)

    # --- nodes -------------------------------------------------------------------------

    def _node_changed(self, event: NodeJoined | NodeEvent, now_s: float) -> list[Effect]:
        change = self._membership.take_in(event, now_s)
        if change.stale:
            return self._stale()
        if change.gone is not None:
            self._policy.gone(change.gone)
        moved = [*self._recalls.rescue(now_s), *self._retry_held(now_s)] if change.room else ()
        return [*change.effects, *moved]

    def _node_reported(self, event: NodeReported, now_s: float) -> list[Effect]:
        effects, node = self._node_changed(event, now_s), self._cluster.get(event.node_id)
        if node is None:
            return effects
        found = self._audit.reported(node, event.signals, now_s)
        return [*effects, *self._compensated(found, now_s)]

    # --- the rest ----------------------------------------------------------------------

    def _policy_chosen(self, event: PolicyChosen, now_s: float) -> list[Effect]:
        """Raises ValueError for a name that is not in the catalog; nothing changes then."""
        self._policy = catalog.make(event.policy, self._weights)
        return self._retry_held(now_s)

    def _rules_changed(self, event: RulesChanged, now_s: float) -> list[Effect]:
        rules = event.rules
        self._admission.apply(rules)
        self._footprints.safety = rules.admission.footprint_safety
        self._membership.apply(rules)
        self._retries.apply(rules.retries)
        self.guard.apply(rules.retry_guard)
        self._recalls.apply(rules)
        self._audit.apply(rules)
        self._residency.hot.apply(rules.hot_prefixes)
        self._weights = rules.marginal_cost
        if isinstance(self._policy, MarginalCost):
            self._policy.weights = self._weights
        return self._retry_held(now_s)

    def _tick(self, event: Tick, now_s: float) -> list[Effect]:
        compensated = self._audit.look(now_s)
        self.stats.compensated += len(compensated)
        for flight in self._audit.abandoned(now_s):
            self._bookings.take(flight.request.id)
            self._undo(flight, now_s)
        self._judge.look(self._bookings, now_s)
        expired = self._held.expired(now_s)
        late = [self._refuse_waiting(w, self._admission.late(w), now_s) for w in expired]
        self._membership.pass_time(now_s)
        return [*compensated, *late, *self._recalls.rescue(now_s), *self._retry_held(now_s)]

    def _stale(self) -> list[Effect]:
        self.stats.stale_events += 1
        return []

    def _route(
        self,
        attempt: Attempt,
        demand: Demand,
        now_s: float,
        ahead_max: int = FLIGHTS_MAX,
        *,
        again: bool = False,
    ) -> Route:
        self._bookings.catch_up()
        return self._router.route(
            attempt.request,
            demand,
            self._policy,
            self._rng,
            tried=attempt.avoided,
            now_s=now_s,
            ahead_max=ahead_max,
            again=again,
        )

    def _record(
        self,
        attempt: Attempt,
        route: Route,
        now_s: float,
        *,
        prospect: Prospect | None = None,
        rows_max: int | None = DECISION_ROWS_MAX,
    ) -> Decision:
        return records.decision(
            attempt,
            route,
            self._cluster,
            policy=self._policy.name,
            at_s=now_s,
            load=self._admission.load(attempt.request, now_s),
            prospect=prospect,
            rows_max=rows_max,
        )

    # --- looking -----------------------------------------------------------------------

    @property
    def policy(self) -> str:
        return self._policy.name

    def explain(self, request: Request, now_s: float) -> Decision:
        """What would be decided, with every candidate and exclusion. Decides nothing."""
        self.catch_up()
        request, demand = self._meant(request)
        attempt = Attempt(request, now_s)
        route = self._router.route(
            request, demand, self._policy, Random(0), tried=(), now_s=now_s, every_node=True
        )
        answer = self._admission.gate_answer(request, demand, now_s)
        route = route if answer is None else route.with_answer(answer)
        return self._record(attempt, route, now_s, rows_max=None)
