"""Frozen pictures of the scheduler's state, for people and metrics: a decision, a node."""

from collections.abc import Collection
from operator import attrgetter

import msgspec

from pointsman.core.calibration import Speeds
from pointsman.core.candidates import exclusions
from pointsman.core.cluster import Health, Node
from pointsman.core.cost import running_s
from pointsman.core.decision import Candidate, Decision, Exclusion, Ruling
from pointsman.core.events import IndexTrust, ModelCard, NodeFacts, NodeSignals
from pointsman.core.flight import Attempt
from pointsman.core.ids import NodeId, NodeName
from pointsman.core.ledger import Ledger
from pointsman.core.limits import DECISION_ROWS_MAX
from pointsman.core.policies.base import Choice, Hold
from pointsman.core.residency import Residency
from pointsman.core.router import Refusal, Route


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment. `remaining_s` is the work it has left, in seconds;
    `signals_age_s` is None when it was never scraped. Hit totals are in tokens."""

    name: NodeName
    node_id: NodeId
    url: str
    health: Health
    health_detail: str
    draining: bool
    pool: str
    zone: str
    labels: tuple[tuple[str, str], ...]
    models: tuple[ModelCard, ...]
    facts: NodeFacts
    signals: NodeSignals
    signals_age_s: float | None
    inflight: int
    foreign: int
    concurrency_max: int
    queue_s: float
    remaining_s: float
    kv_blocks_leased: int
    kv_blocks: int | None
    trust: IndexTrust
    index_blocks: int
    calibrated: bool
    speeds: Speeds
    predicted_tokens: int
    reported_tokens: int


def node_view(node: Node, ledger: Ledger, residency: Residency, now_s: float) -> NodeView:
    age_s = None if node.signals_at_s is None else now_s - node.signals_at_s
    return NodeView(
        name=node.name,
        node_id=node.id,
        url=node.spec.url,
        health=node.health,
        health_detail=node.health_detail,
        draining=node.draining,
        pool=node.spec.pool,
        zone=node.spec.zone,
        labels=node.spec.labels,
        models=node.models,
        facts=node.facts,
        signals=node.signals,
        signals_age_s=age_s,
        inflight=node.inflight,
        foreign=node.foreign(now_s),
        concurrency_max=node.concurrency_max,
        queue_s=node.queue_ahead_s(now_s),
        remaining_s=node.queue_ahead_s(now_s) + running_s(node),
        kv_blocks_leased=ledger.leased(node.id),
        kv_blocks=node.facts.kv_blocks,
        trust=node.trust,
        index_blocks=residency.blocks(node),
        calibrated=node.calibration.calibrated,
        speeds=node.speeds,
        predicted_tokens=node.predicted_tokens,
        reported_tokens=node.reported_tokens,
    )


def decision(
    attempt: Attempt,
    route: Route,
    nodes: Collection[Node],
    *,
    policy: str,
    at_s: float,
    rows_max: int | None = DECISION_ROWS_MAX,
) -> Decision:
    """The record of `route`, with the `rows_max` best candidates; None keeps all."""
    answer, request = route.answer, attempt.request
    chosen = answer.row if isinstance(answer, Choice) else None
    return Decision(
        request.id,
        request.model,
        at_s,
        _ruling(answer),
        policy,
        _why(answer),
        chosen.node if chosen else None,
        len(attempt.tried) + 1,
        route.demand.prompt_tokens,
        route.demand.output_tokens,
        chosen.hit_tokens if chosen else 0,
        at_s - attempt.arrived_s,
        route.field,
        answer.ties if isinstance(answer, Choice) else 0,
        _candidates(route, chosen, rows_max),
        _excluded(route, attempt, nodes, rows_max),
    )


def _ruling(answer: Choice | Hold | Refusal) -> Ruling:
    match answer:
        case Choice():
            return Ruling.PLACED
        case Hold():
            return Ruling.HELD
        case Refusal():
            return Ruling.REFUSED


def _why(answer: Choice | Hold | Refusal) -> str:
    if isinstance(answer, Refusal):
        return f"{answer.reason}: {answer.detail}"
    return answer.why


def _candidates(
    route: Route, chosen: Candidate | None, rows_max: int | None
) -> tuple[Candidate, ...]:
    """Best first, the chosen one before its equals."""
    rows = sorted(route.rows, key=_score)
    if chosen is not None and rows[0] is not chosen and rows[0].score == chosen.score:
        rows.remove(chosen)
        rows.insert(0, chosen)
    return tuple(rows[:rows_max])


_score = attrgetter("score")


def _excluded(
    route: Route, attempt: Attempt, nodes: Collection[Node], rows_max: int | None
) -> tuple[Exclusion, ...]:
    if route.field == len(nodes):
        return ()
    return tuple(exclusions(nodes, attempt.request, attempt.tried)[:rows_max])
