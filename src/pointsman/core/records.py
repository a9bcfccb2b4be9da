"""The record of a decision: a frozen picture of its route, for people and metrics."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from pointsman.core.candidates import exclusions
from pointsman.core.cluster import Cluster
from pointsman.core.decision import Decision, Exclusion, Prospect, Ruling
from pointsman.core.flight import Flight
from pointsman.core.limits import DECISION_ROWS_MAX
from pointsman.core.placement import Attempt, Choice, Hold, Refusal, Route
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.scheme import Unit


def decision(
    attempt: Attempt,
    route: Route,
    cluster: Cluster,
    *,
    policy: str,
    at_s: float,
    rows_max: int | None = DECISION_ROWS_MAX,
    load: float | None = None,
    prospect: Prospect | None = None,
) -> Decision:
    """The record of `route`, with the `rows_max` best candidates; None keeps all. `load` and
    `prospect` are admission's, where it was asked."""
    request, demand, avoided = attempt.request, route.demand, attempt.avoided
    node, hit_tokens, ties = None, 0, 0
    rows = sorted(route.rows, key=_score)
    match route.answer:
        case Choice(row, ties, why):
            ruling, node, hit_tokens = _PLACED, row.node, row.hit_tokens
            rows = _before_equals(row, rows)
        case Hold(why):
            ruling = Ruling.HELD
        case Refusal(reason, detail):
            ruling, why = Ruling.REFUSED, f"{reason}: {detail}"
    excluded: Sequence[Exclusion] = ()
    if route.looked and route.candidate_count < len(cluster):
        excluded = exclusions(cluster, request, avoided, demand.context_tokens, rows_max)
    return Decision(  # by place, 0.6 us: by nineteen names it takes 7
        request.id,
        request.model,
        at_s,
        ruling,
        policy,
        why,
        node,
        attempt.number,
        demand.prompt_tokens,
        demand.output_tokens,
        hit_tokens,
        at_s - attempt.arrived_s,
        route.candidate_count,
        ties,
        tuple(rows[:rows_max]),
        tuple(excluded),
        _unit(request),
        load,
        prospect,
    )


_score: Final = attrgetter("score")
# Python 3.11 takes 0.1 us to look an enum's member up.
_PLACED: Final = Ruling.PLACED
_BYTES: Final = Unit.BYTES
_TOKENS: Final = Unit.TOKENS


def compensation(flight: Flight, why: str, now_s: float) -> Decision:
    """The record of a compensation: what was foreseen, and what has come of it."""
    request, demand = flight.request, flight.demand
    return Decision(
        request_id=request.id,
        model=request.model,
        at_s=now_s,
        ruling=Ruling.COMPENSATED,
        policy="",
        why=why,
        node=flight.node.name,
        attempt=flight.attempt.number,
        prompt_tokens=demand.prompt_tokens,
        output_tokens_expected=demand.output_tokens,
        hit_tokens=flight.predicted.hit_tokens,
        queued_s=flight.placed_s - flight.attempt.arrived_s,
        candidate_count=0,
        tie_count=0,
        candidates=(),
        excluded=(),
        prompt_unit=_unit(request),
    )


def _unit(request: Request) -> Unit:
    return _BYTES if request.prompt.token_count is None else _TOKENS


def _before_equals(chosen: Row, rows: list[Row]) -> list[Row]:
    """What was chosen comes first, if only a tie put another before it."""
    if rows[0] is chosen or rows[0].score != chosen.score:
        return rows
    return [chosen, *[row for row in rows if row is not chosen]]
