"""Which nodes may serve a request, and why the others may not."""

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from operator import attrgetter

from pointsman.core.blocks import Scheme
from pointsman.core.cluster import Cluster, Health, Node
from pointsman.core.decision import Exclusion, Ineligible
from pointsman.core.ids import NodeId
from pointsman.core.limits import CANDIDATES_MAX
from pointsman.core.request import Request
from pointsman.core.residency import Levels


def eligible(cluster: Cluster, request: Request, tried: Sequence[NodeId]) -> list[Node]:
    """Nodes that may take `request` at this moment, in order of joining."""
    nodes = [n for n in cluster.serving(request.model) if n.inflight < n.concurrency_max]
    if request.pool is not None or request.zone is not None or request.labels:
        nodes = [n for n in nodes if _mismatch(n, request) is None]
    if tried:
        nodes = [n for n in nodes if n.id not in tried]
    return nodes


def exclusions(nodes: Iterable[Node], request: Request, tried: Sequence[NodeId]) -> list[Exclusion]:
    """Every node that may not take `request`, with the first reason that holds."""
    reasons = ((node, ineligibility(node, request, tried)) for node in nodes)
    return [Exclusion(node.name, why) for node, why in reasons if why is not None]


def ineligibility(node: Node, request: Request, tried: Sequence[NodeId]) -> Ineligible | None:
    """Why `node` may not take `request`; None if it may. The permanent reasons come first."""
    if node.health is Health.JOINING:
        return Ineligible.JOINING
    if all(card.name != request.model for card in node.models):
        return Ineligible.MODEL
    return _mismatch(node, request) or _unavailable(node, tried)


def _unavailable(node: Node, tried: Sequence[NodeId]) -> Ineligible | None:
    if node.health is Health.DOWN:
        return Ineligible.DOWN
    if node.draining:
        return Ineligible.DRAINING
    if node.id in tried:
        return Ineligible.TRIED
    if node.inflight >= node.concurrency_max:
        return Ineligible.CONCURRENCY
    return None


def matches(node: Node, request: Request) -> bool:
    """Whether the node could ever take the request, were it up and free."""
    served = any(card.name == request.model for card in node.models)
    return served and _mismatch(node, request) is None


def _mismatch(node: Node, request: Request) -> Ineligible | None:
    spec = node.spec
    if request.pool is not None and spec.pool != request.pool:
        return Ineligible.POOL
    if request.zone is not None and spec.zone != request.zone:
        return Ineligible.ZONE
    if request.labels and not set(request.labels) <= set(spec.labels):
        return Ineligible.LABELS
    return None


def shortlist(nodes: list[Node], levels: dict[Scheme, Levels], turn: int) -> list[Node]:
    """At most `CANDIDATES_MAX` nodes that can win: half of them the holders of the longest
    prefixes, half the least loaded of the rest.

    A node outside both holds less of the prompt than the holders and is busier than the
    rest, so every cost policy puts one of those before it. `turn` rotates the order of equal
    load, so that idle nodes take turns in being seen.
    """
    if len(nodes) <= CANDIDATES_MAX:
        return nodes
    holders = _deepest_holders(nodes, levels, CANDIDATES_MAX // 2)
    start = turn % len(nodes)
    rotated = nodes[start:] + nodes[:start]
    loads = nsmallest(CANDIDATES_MAX, rotated, key=attrgetter("load_s"))
    rest = [node for node in loads if node.id not in holders]
    return [*holders.values(), *rest[: CANDIDATES_MAX - len(holders)]]


def _deepest_holders(
    nodes: list[Node], levels: dict[Scheme, Levels], count: int
) -> dict[NodeId, Node]:
    by_slot = {node.slot: node for node in nodes}
    found: dict[NodeId, Node] = {}
    depths = [(-depth, mask) for rows in levels.values() for mask, depth in rows]
    for _, mask in sorted(depths):
        remaining = mask
        while remaining:
            low = remaining & -remaining
            remaining ^= low
            node = by_slot.get(low.bit_length() - 1)  # type: ignore[call-overload]
            if node is not None:
                found[node.id] = node
                if len(found) == count:
                    return found
    return found
