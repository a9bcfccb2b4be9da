"""Frozen pictures of the scheduler's state, for people and metrics: a decision, a node."""

from collections.abc import Iterable

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
    nodes: Iterable[Node],
    *,
    policy: str,
    at_s: float,
    rows_max: int | None = DECISION_ROWS_MAX,
) -> Decision:
    """The record of `route`, with the `rows_max` best candidates; None keeps all."""
    answer, request = route.answer, attempt.request
    chosen = answer.row if isinstance(answer, Choice) else None
    return Decision(
        request_id=request.id,
        model=request.model,
        at_s=at_s,
        ruling=_ruling(route),
        policy=policy,
        why=_why(answer),
        node=chosen.node if chosen else None,
        attempt=len(attempt.tried) + 1,
        prompt_tokens=route.demand.prompt_tokens,
        output_tokens_expected=route.demand.output_tokens,
        hit_tokens=chosen.hit_tokens if chosen else 0,
        queued_s=at_s - attempt.arrived_s,
        candidate_count=route.field,
        tie_count=answer.ties if isinstance(answer, Choice) else 0,
        candidates=_candidates(route, chosen, rows_max),
        excluded=_excluded(route, attempt, nodes, rows_max),
    )


def _ruling(route: Route) -> Ruling:
    match route.answer:
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
    rows = sorted(route.rows, key=lambda row: (row.score, row is not chosen))
    return tuple(rows[:rows_max])


def _excluded(
    route: Route, attempt: Attempt, nodes: Iterable[Node], rows_max: int | None
) -> tuple[Exclusion, ...]:
    everyone = list(nodes)
    if route.field == len(everyone):
        return ()
    return tuple(exclusions(everyone, attempt.request, attempt.tried)[:rows_max])
