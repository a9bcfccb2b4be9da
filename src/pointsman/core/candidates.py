"""Which nodes may serve a request, and why the others may not."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from pointsman.core.cluster import Cluster
from pointsman.core.decision import Exclusion, Ineligible
from pointsman.core.health import Health
from pointsman.core.ids import NodeId, Slot
from pointsman.core.limits import CANDIDATES_MAX
from pointsman.core.node import Node
from pointsman.core.prefix import slots
from pointsman.core.request import Request
from pointsman.core.residency import Levels


def eligible(
    cluster: Cluster, request: Request, tried: Sequence[NodeId], tokens: int = 0
) -> list[Node]:
    """Nodes that may take `request`, whose context must hold so many tokens, at this moment, in
    order of joining. What ends one rank of a server often ends them all: so other ranks than those
    that were tried are left out while there are other servers."""
    serving = cluster.serving(request.model)
    if request.home is not None:
        serving = [n for n in serving if n.id == request.home]
    if request.pool is not None or request.zone is not None or request.labels:
        serving = [n for n in serving if _mismatch(n, request) is None]
    if tokens > cluster.context_tokens_least and _has_context(cluster.nodes, request, tokens):
        serving = [n for n in serving if n.context_tokens(request.model) >= tokens]
    if tried:
        serving = [n for n in serving if n.id not in tried]
    nodes = [n for n in serving if n.inflight < n.concurrency_max]
    if tried:
        servers = _servers(cluster, tried)
        nodes = [n for n in nodes if n.spec.server not in servers] or nodes
    return _within_share(nodes, serving, request) if cluster.weights_differ else nodes


def _servers(cluster: Cluster, node_ids: Iterable[NodeId]) -> list[str]:
    """Of those nodes that are still there."""
    found = map(cluster.get, node_ids)
    return [node.spec.server for node in found if node is not None]


def _has_context(nodes: Iterable[Node], request: Request, tokens: int) -> bool:
    """Whether any node, up or not, could hold the prompt. If none could, any may be asked: the
    engine's own refusal says best what is too long."""
    return any(n.context_tokens(request.model) >= tokens and matches(n, request) for n in nodes)


def _within_share(nodes: list[Node], serving: Sequence[Node], request: Request) -> list[Node]:
    """Leave out those of less than full weight that have their share of work already. Where no node
    of full weight serves all stay, since a node that is suspected is better than none."""
    full = [node for node in serving if node.condition.weight == 1.0]
    if not full:
        return nodes
    mean = sum(node.inflight for node in full) / len(full)
    queue_s = sum(node.queue_s for node in full) / len(full)
    return [
        n
        for n in nodes
        if n.condition.weight == 1.0
        or n.condition.may_take(
            n.inflight,
            n.queue_s,
            peers_mean=mean,
            peers_s=queue_s,
            priority=request.priority,
        )
    ]


def exclusions(
    cluster: Cluster,
    request: Request,
    tried: Sequence[NodeId],
    tokens: int = 0,
    most: int | None = None,
) -> list[Exclusion]:
    """The nodes that are not `eligible`, the first `most` of them, each with the first reason that
    holds."""
    willing = {node.id for node in eligible(cluster, request, tried, tokens)}
    needed = tokens if _has_context(cluster.nodes, request, tokens) else 0
    excluded = [node for node in cluster.nodes if node.id not in willing]
    servers = _servers(cluster, tried)
    return [
        Exclusion(
            node.name,
            ineligibility(node, request, tried, needed)
            or (Ineligible.TRIED if node.spec.server in servers else Ineligible.SHARE),
        )
        for node in excluded[:most]
    ]


def ineligibility(
    node: Node, request: Request, tried: Sequence[NodeId], tokens: int = 0
) -> Ineligible | None:
    """Why `node` may not take `request`, whatever its share; None if it may. The permanent
    reasons come first."""
    if node.health is Health.JOINING:
        return Ineligible.JOINING
    if all(card.name != request.model for card in node.models):
        return Ineligible.MODEL
    if (why := _mismatch(node, request)) is not None:
        return why
    if node.context_tokens(request.model) < tokens:
        return Ineligible.CONTEXT
    return _unavailable(node, tried)


def _unavailable(node: Node, tried: Sequence[NodeId]) -> Ineligible | None:
    if node.health is Health.OPEN:
        return Ineligible.OPEN
    if node.draining:
        return Ineligible.DRAINING
    if node.withheld:
        return Ineligible.WITHHELD
    if node.id in tried:
        return Ineligible.TRIED
    if node.inflight >= node.concurrency_max:
        return Ineligible.CONCURRENCY
    return None


def matches(node: Node, request: Request) -> bool:
    """Whether the node could ever take the request, were it up and free."""
    served = any(card.name == request.model for card in node.models)
    return served and _mismatch(node, request) is None


def matches_constraints(node: Node, request: Request) -> bool:
    """Whether the node is where the request wants to go: its pool, zone and labels."""
    return _unmet_constraint(node, request) is None


def _mismatch(node: Node, request: Request) -> Ineligible | None:
    if request.home is not None and node.id != request.home:
        return Ineligible.RESPONSE
    return _unmet_constraint(node, request)


def _unmet_constraint(node: Node, request: Request) -> Ineligible | None:
    spec = node.spec
    if request.pool is not None and spec.pool != request.pool:
        return Ineligible.POOL
    if request.zone is not None and spec.zone != request.zone:
        return Ineligible.ZONE
    if request.labels and not set(request.labels) <= set(spec.labels):
        return Ineligible.LABELS
    return None


def shortlist(nodes: list[Node], levels: Levels, turn: int) -> list[Node]:
    """At most `CANDIDATES_MAX` nodes that can win: half of them the holders of the longest
    prefixes, half the least loaded of the rest.

    A node outside both holds no more of the prompt than the holders and is no less busy than
    the rest, so a cost policy hardly ever puts it before one of those. `turn` rotates the
    order of equal load, so that idle nodes take turns in being seen.
    """
    if len(nodes) <= CANDIDATES_MAX:
        return nodes
    start = turn % len(nodes)
    in_turn = nodes[start:] + nodes[:start]
    holders = _deepest_holders(in_turn, levels, CANDIDATES_MAX // 2)
    rest = [n for n in _least_loaded(in_turn, CANDIDATES_MAX) if n.slot not in holders]
    return [*holders.values(), *rest[: CANDIDATES_MAX - len(holders)]]


def _deepest_holders(nodes: list[Node], levels: Levels, count: int) -> dict[Slot, Node]:
    """Those that hold most; of equal holders the least loaded."""
    by_slot: dict[Slot, Node] = {}
    found: dict[Slot, Node] = {}
    for mask, _ in levels:
        if mask.bit_count() >= _MANY_HOLDERS:
            holders = [node for node in nodes if mask >> node.slot & 1]
        else:
            by_slot = by_slot or {node.slot: node for node in nodes}
            holders = [by_slot[slot] for slot in slots(mask) if slot in by_slot]
        for node in _least_loaded(holders, count - len(found)):
            found[node.slot] = node
        if len(found) == count:
            break
    return found


_MANY_HOLDERS: Final = 64
"""From here on looking at every node is sooner done than looking for every holder."""


def _least_loaded(nodes: list[Node], count: int) -> list[Node]:
    """The `count` least loaded, the least first; of equal ones those that come first."""
    if len(nodes) <= count:
        return sorted(nodes, key=_load_s)
    bound_s = sorted([node.load_s for node in nodes])[count - 1]
    least = [node for node in nodes if node.load_s < bound_s]
    least.sort(key=_load_s)
    for node in nodes:
        if node.load_s == bound_s:
            least.append(node)
            if len(least) == count:
                break
    return least


_load_s: Final = attrgetter("load_s")
