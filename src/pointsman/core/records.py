"""Frozen pictures of the scheduler's state, for people and metrics: a decision, a node."""

from collections.abc import Collection
from operator import attrgetter

import msgspec

from pointsman.core.calibration import Speeds
from pointsman.core.candidates import exclusions
from pointsman.core.cluster import Health, Node
from pointsman.core.cost import running_s
from pointsman.core.decision import Candidate, Decision, Ruling
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
    """The node as it is at `now_s`."""
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
        remaining_s=node.queue_ahead_s(now_s) + running_s(node, node.speeds),
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
    request, demand, tried = attempt.request, route.demand, attempt.tried
    node, hit_tokens, ties = None, 0, 0
    rows = sorted(route.rows, key=_score)
    match route.answer:
        case Choice(row, ties, why):
            ruling, node, hit_tokens = _PLACED, row.node, row.hit_tokens
            _put_before_equals(rows, row)
        case Hold(why):
            ruling = Ruling.HELD
        case Refusal(reason, detail):
            ruling, why = Ruling.REFUSED, f"{reason}: {detail}"
    excluded = exclusions(nodes, request, tried) if route.field < len(nodes) else ()
    return Decision(
        request.id,
        request.model,
        at_s,
        ruling,
        policy,
        why,
        node,
        len(tried) + 1,
        demand.prompt_tokens,
        demand.output_tokens,
        hit_tokens,
        at_s - attempt.arrived_s,
        route.field,
        ties,
        tuple(rows[:rows_max]),
        tuple(excluded[:rows_max]),
    )


_score = attrgetter("score")
_PLACED = Ruling.PLACED  # Python 3.11 takes 0.1 us to look an enum's member up


def _put_before_equals(rows: list[Candidate], chosen: Candidate) -> None:
    """What was chosen comes first, if only a tie put another before it."""
    if rows[0] is not chosen and rows[0].score == chosen.score:
        rows.remove(chosen)
        rows.insert(0, chosen)
