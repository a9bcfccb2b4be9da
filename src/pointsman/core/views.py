"""Frozen pictures of nodes, for people and metrics."""

from collections.abc import Collection, Iterable
from math import inf

import msgspec

from pointsman.core.admission.admission import Admission
from pointsman.core.admission.gate import Watermark
from pointsman.core.blocks import Prompt
from pointsman.core.calibration import Speeds
from pointsman.core.cost import running_s
from pointsman.core.events import IndexTrust, ModelCard, NodeFacts, NodeSignals
from pointsman.core.health import Cause, Health
from pointsman.core.ids import ModelName, NodeId, NodeName, RequestId
from pointsman.core.ledger import Ledger
from pointsman.core.node import Node
from pointsman.core.request import Request
from pointsman.core.residency import Residency
from pointsman.core.scheme import Namespace
from pointsman.core.self_check import Doubt


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment. `weight` is the share of its peers' work that it may have, and
    `health_cause` and `health_detail` say why; `failures` are requests in a row that came to
    nothing there. `remaining_s` is the work it has left, in seconds; `kv_blocks_reserved` are
    those of the leased that requests without a token yet took; `signals_age_s` is None when it was
    never scraped. Hits are in tokens; `hit_match_share` is of the answers whose hit was foretold,
    None before there was one; `index_doubt` says why its events are not believed."""

    name: NodeName
    incarnation: NodeId
    url: str
    health: Health
    health_cause: Cause
    health_detail: str
    weight: float
    failures: int
    draining: bool
    pool: str
    zone: str
    labels: dict[str, str]
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
    kv_blocks_reserved: int
    kv_blocks: int | None
    index_trust: IndexTrust
    index_blocks: int
    calibrated: bool
    speeds: Speeds
    cached_tokens_predicted: int
    cached_tokens_reported: int
    hit_match_share: float | None
    index_doubt: str


def node_views(
    nodes: Iterable[Node], ledger: Ledger, residency: Residency, now_s: float
) -> list[NodeView]:
    """All nodes, each as it is at `now_s`."""
    return [node_view(node, ledger, residency, now_s) for node in nodes]


def node_view(node: Node, ledger: Ledger, residency: Residency, now_s: float) -> NodeView:
    """The node as it is at `now_s`."""
    account = ledger.account(node.id)
    age_s = None if node.signals_at_s is None else now_s - node.signals_at_s
    return NodeView(
        name=node.name,
        incarnation=node.id,
        url=node.spec.url,
        health=node.health,
        health_cause=node.condition.cause,
        health_detail=node.condition.detail,
        weight=node.condition.weight,
        failures=node.condition.failures,
        draining=node.draining,
        pool=node.spec.pool,
        zone=node.spec.zone,
        labels=dict(node.spec.labels),
        models=node.models,
        facts=node.facts,
        signals=node.signals,
        signals_age_s=age_s,
        inflight=node.inflight,
        foreign=node.foreign(now_s),
        concurrency_max=node.concurrency_max,
        queue_s=node.queue_ahead_s(now_s),
        remaining_s=node.queue_ahead_s(now_s) + running_s(node, node.calibration.in_force),
        kv_blocks_leased=account.leased,
        kv_blocks_reserved=account.reserved,
        kv_blocks=node.facts.kv_blocks,
        index_trust=node.trust,
        index_blocks=residency.blocks(node),
        calibrated=node.calibration.calibrated,
        speeds=node.speeds,
        cached_tokens_predicted=node.hits.foretold_tokens,
        cached_tokens_reported=node.hits.found_tokens,
        hit_match_share=node.hits.match_share if node.hits.samples else None,
        index_doubt=node.hits.doubt if node.trust is IndexTrust.DISTRUSTED else Doubt.NONE,
    )


HOT_PREFIXES_SHOWN = 8
"""The hottest that people and metrics see: what comes after them is not hot."""


class HotPrefixView(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that many requests share. `block` names it; `requests` are those of the last
    seconds, `share` theirs of their model's, `hit_share` of those the part that went to one of
    its `holders`."""

    block: str
    model: ModelName
    tokens: int
    share: float
    requests: float
    hit_share: float
    holders: tuple[NodeName, ...]


def hot_prefix_views(
    nodes: Collection[Node], residency: Residency, count: int, now_s: float
) -> list[HotPrefixView]:
    """The `count` hottest, the hottest first."""
    return [
        HotPrefixView(
            block=f"{prefix.block:016x}",
            model=prefix.model,
            tokens=prefix.tokens,
            share=prefix.share,
            requests=prefix.requests,
            hit_share=prefix.hit_share,
            holders=tuple(node.name for node in nodes if mask >> node.slot & 1),
        )
        for prefix in residency.hot.hottest(count, now_s)
        for mask in (residency.holders(prefix.block),)
    ]


class AdmissionView(msgspec.Struct, frozen=True, kw_only=True):
    """How full the nodes of a model are, and what comes of that. `load` is the share taken of
    their slots or KV blocks, `backlog` of the prompts that may wait on them; `low_share` and
    `long_share` are what low priority and very long prompts hold. `wait_s` is what a newcomer of
    normal priority would have to expect if it had to wait; None is without end."""

    model: ModelName
    watermark: Watermark
    load: float
    backlog: float
    low_share: float
    long_share: float
    wait_s: float | None


def admission_views(
    admission: Admission, models: Iterable[ModelCard], now_s: float
) -> list[AdmissionView]:
    """How full the nodes are of each model that is served."""
    return [_admission_view(admission, card.name, now_s) for card in models]


def _admission_view(admission: Admission, model: ModelName, now_s: float) -> AdmissionView:
    newcomer = Request(id=RequestId(""), model=model, prompt=Prompt(Namespace(model), text=b""))
    part, wait_s = admission.loads.part(newcomer), admission.wait_s(newcomer, now_s)
    return AdmissionView(
        model=model,
        watermark=admission.watermark(newcomer, now_s),
        load=part.fill(now_s),
        backlog=admission.backlog(newcomer, now_s),
        low_share=part.low_share(),
        long_share=part.long_share(),
        wait_s=None if wait_s == inf else wait_s,
    )
