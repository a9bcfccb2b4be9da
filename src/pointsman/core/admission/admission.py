"""May it come in? All of it together: the gate, the central queue, and what waiting costs.

The scheduler asks in this order: the `gate_answer`; after routing, whether there is a
`newcomer_hold` all the same; where the answer is to wait, the `hold_refusal`, and without one
to `hold` it; then, whenever something ends, whose `turns` it is until nobody may pass.
"""

from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from typing import Final

from pointsman.core.admission.gate import Gate, Watermark
from pointsman.core.admission.held import HeldQueue
from pointsman.core.admission.load import Loads
from pointsman.core.admission.waits import URGENCIES, Rate, urgency
from pointsman.core.cluster import Cluster
from pointsman.core.decision import Prospect
from pointsman.core.errors import Reason
from pointsman.core.ids import ModelName
from pointsman.core.ledger import Ledger
from pointsman.core.limits import PRIORITY_NORMAL
from pointsman.core.options import SchedulerOptions
from pointsman.core.placement import Attempt, Choice, Demand, Hold, Refusal, Route, Waiting
from pointsman.core.recent import keep
from pointsman.core.request import Request
from pointsman.core.rules import Rules

_MODELS_MAX: Final = 1_024  # whose arrivals are counted: clients may name models without end


class Admission:
    """Owns the queue and the loads; the scheduler's bookings change the loads."""

    def __init__(self, cluster: Cluster, ledger: Ledger, options: SchedulerOptions) -> None:
        self.loads = Loads(cluster, ledger, options.admission)
        self._rules = options.admission
        self._gate = Gate(self.loads, self._rules)
        self.held = HeldQueue(options.queue_length_max, options.hold_s, self._rules)
        self._arrivals: OrderedDict[ModelName, tuple[Rate, ...]] = OrderedDict()

    def apply(self, rules: Rules) -> None:
        """Go by other rules from here on."""
        self._rules = rules.admission
        self._gate.apply(rules.admission)
        self.loads.rules = rules.admission
        self.held.apply(rules.queue_length_max, rules.hold_s, rules.admission)

    # --- coming in ---------------------------------------------------------------------

    def directed(self, request: Request, demand: Demand) -> Request:
        """The same request; a very long one to the pool for such, where that has nodes. One that
        has a home can go nowhere else."""
        pool, is_bound = self._rules.long_context_pool, request.home is not None
        if not pool or is_bound or request.pool is not None or not self.is_very_long(demand):
            return request
        there = request.but(pool=pool)
        return there if self.loads.part(there).nodes else request

    def count_arrival(self, request: Request, now_s: float) -> None:
        """A newcomer counts in the rate at which others overtake those who wait."""
        rates = self._arrivals.get(request.model) or tuple(Rate() for _ in range(URGENCIES))
        keep(self._arrivals, request.model, rates, _MODELS_MAX)
        rates[urgency(request.priority)].add(now_s)

    def gate_answer(self, request: Request, demand: Demand, now_s: float) -> Hold | Refusal | None:
        """Why a request does not come to routing at all; None lets it pass. Changes nothing."""
        is_very_long = self.is_very_long(demand)
        return self._gate.answer(request, is_very_long=is_very_long, now_s=now_s)

    def newcomer_hold(self, request: Request, route: Route) -> Hold | None:
        """Why a newcomer that routing has an answer for waits all the same: somebody as urgent
        waits for the very same nodes and none of them is idle, so that whoever happens to fit
        does not overtake; or no node is up, and one may come."""
        if isinstance(route.answer, Refusal):
            return Hold("nodes: none is up yet") if self.means_waiting(route.answer) else None
        if not len(self.held) or isinstance(route.answer, Hold):
            return None
        if any(row.inflight == 0 for row in route.rows):
            return None
        is_very_long = self.is_very_long(route.demand)
        if not self.held.as_urgent(request, is_very_long=is_very_long):
            return None
        return Hold("queue: others have waited longer for this room")

    def is_contended(self, request: Request, demand: Demand, now_s: float) -> bool:
        """Whether there are nodes for it, and all the same it would wait or be refused if it were
        of normal priority at most, or anybody waits there already."""
        if not self.loads.part(request).nodes:
            return False
        modest = request.but(priority=min(request.priority, PRIORITY_NORMAL))
        if self.gate_answer(modest, demand, now_s) is not None:
            return True
        return self.held.has_queue(request)

    def hold_refusal(self, attempt: Attempt, prospect: Prospect) -> Refusal | None:
        """Why it cannot wait with this prospect: the queue is full of others as urgent, or it
        would wait for longer than it may. Who was let in before is not judged by that again."""
        request = attempt.request
        if attempt.recalls:
            return None
        if self.held.full and not self.held.has_less_urgent(request):
            return Refusal(Reason.QUEUE_FULL, f"{len(self.held)} requests wait already.")
        return None if attempt.tried else self._too_late(request, prospect)

    def hold(self, attempt: Attempt, demand: Demand, now_s: float) -> None:
        """Queue it; for another time than usual where there is no node at all."""
        request = attempt.request
        part = self.loads.part(request)
        self.held.add(
            attempt,
            now_s if attempt.recalls else attempt.arrived_s,
            prompt_tokens=demand.prompt_tokens,
            output_tokens=demand.output_tokens,
            load=self._gate.load(request, now_s),
            hold_s=self._patience_s(request) if part.nodes else self._rules.wait_for_nodes_s,
        )

    def prospect(self, request: Request, demand: Demand, now_s: float) -> Prospect:
        """What it may expect if it waits."""
        position = self.held.before(request, is_very_long=self.is_very_long(demand)) + 1
        drain_per_s = self._drain_per_s(request)
        if drain_per_s is None:
            return Prospect(position, None)
        left_per_s = drain_per_s - self._overtaking_per_s(request, now_s)
        return Prospect(position, position / left_per_s if left_per_s > 0 else inf)

    def is_very_long(self, demand: Demand) -> bool:
        """Whether its prompt is of those that have a quota."""
        return demand.prompt_tokens >= self._rules.long_context_tokens

    def _too_late(self, request: Request, prospect: Prospect) -> Refusal | None:
        if prospect.wait_s is None:
            return None
        slo_s, hold_s = request.slo_ttft_s, self.held.hold_s(request)
        if slo_s is not None and prospect.wait_s > self._patience_s(request):
            detail = f"{_expected(prospect)}, its first token is due in {slo_s:g} s."
            return Refusal(Reason.DEADLINE, detail)
        execution_s = self.loads.executions.mean_s(request.model)
        promised_s = inf if execution_s is None else self._rules.wait_factor * execution_s
        bound_s = min(hold_s, max(self._rules.wait_min_s, promised_s))
        if prospect.wait_s <= bound_s:
            return None
        return Refusal(Reason.QUEUE_FULL, f"{_expected(prospect)}, {bound_s:.0f} s is the most.")

    def _patience_s(self, request: Request) -> float:
        """How long it may wait: if its first token has a time, no longer than that it can still
        be met."""
        hold_s, slo_s = self.held.hold_s(request), request.slo_ttft_s
        if slo_s is None:
            return hold_s
        first_token_s = self.loads.first_tokens.mean_s(request.model) or 0.0
        return max(0.0, min(hold_s, slo_s - first_token_s))

    # --- those who wait ----------------------------------------------------------------

    def turns(self, now_s: float) -> Iterator[Waiting]:
        """Take out one after the other who is next of those that the gate lets pass. Put back what
        finds no place."""

        def may_pass(request: Request, is_very_long: bool, priority: int) -> bool:
            return self._gate.may_pass(request, is_very_long, priority, now_s=now_s)

        return self.held.turns(may_pass)

    def means_waiting(self, answer: Choice | Hold | Refusal) -> bool:
        """Whether who gets this answer is to wait: for room, or where that is allowed for a node
        to come up."""
        if isinstance(answer, Refusal):
            return answer.reason is Reason.NO_NODE and self._rules.wait_for_nodes_s > 0
        return isinstance(answer, Hold)

    def late(self, waiting: Waiting) -> Refusal:
        """What is told to one whose time is up."""
        request, held_s = waiting.request, waiting.deadline_s - waiting.since_s
        if not self.loads.part(request).nodes:
            return Refusal(Reason.NO_NODE, f"No engine came up within {held_s:g} s.")
        slo_s = request.slo_ttft_s
        is_due = slo_s is not None and held_s <= slo_s
        reason = Reason.DEADLINE if is_due else Reason.QUEUE_TIMEOUT
        return Refusal(reason, f"No engine had room within {held_s:.3g} s.")

    # --- looking -----------------------------------------------------------------------

    def load(self, request: Request, now_s: float) -> float:
        """The share taken of the nodes that could serve it."""
        return self._gate.load(request, now_s)

    def watermark(self, request: Request, now_s: float) -> Watermark:
        """What its nodes are at."""
        return self._gate.watermark(request, now_s)

    def backlog(self, request: Request, now_s: float) -> float:
        """The share of the prompts that may wait on its nodes."""
        return self.loads.part(request).backlog(self._rules, now_s)

    def wait_s(self, request: Request, now_s: float) -> float:
        """What it would have to expect if it waited; 0 where nothing is known of that."""
        return self.prospect(request, Demand(1, 0), now_s).wait_s or 0.0

    # --- helpers -----------------------------------------------------------------------

    def _drain_per_s(self, request: Request) -> float | None:
        """Requests that its nodes take in a second; None where nothing is known of it."""
        loads, there = self.loads, self.loads.part(request).all
        execution_s = loads.executions.mean_s(request.model)
        if execution_s is None or not there.inflight:
            return None
        first_token_s = loads.first_tokens.mean_s(request.model)
        starts_per_s = there.prefills / first_token_s if first_token_s else 0.0
        return max(starts_per_s, there.inflight / execution_s)

    def _overtaking_per_s(self, request: Request, now_s: float) -> float:
        rates = self._arrivals.get(request.model, ())
        return sum(rate.per_s(now_s) for rate in rates[: urgency(request.priority)])

    def check(self) -> None:
        """Everything that is owned is sound."""
        self.loads.check()
        self.held.check()


def _expected(prospect: Prospect) -> str:
    if prospect.wait_s == inf:
        return f"At position {prospect.position} its turn would not come"
    return f"At position {prospect.position} it would wait for about {prospect.wait_s:.1f} s"
