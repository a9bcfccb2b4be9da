"""What shells report of nodes, applied: joining, health, facts, load and cache events.

Owns nothing: it changes the scheduler's cluster, ledger and residency on its behalf, and
says whether held requests may find room that was not there before.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from pointsman.core.busy import narrow
from pointsman.core.calibration import TokenRatio
from pointsman.core.cluster import Cluster, Health, Node
from pointsman.core.errors import FailureKind
from pointsman.core.events import (
    Admitted,
    CacheChanged,
    IndexTrusted,
    Left,
    NodeChanged,
    NodeDescribed,
    NodeDraining,
    NodeJoined,
    NodeLeft,
    NodeProbed,
    NodeReported,
)
from pointsman.core.ids import ModelName
from pointsman.core.ledger import Ledger
from pointsman.core.residency import Residency

_NODE_FAULTS = frozenset({FailureKind.UNREACHABLE, FailureKind.CLOSED, FailureKind.BROKEN})
"""Failures that speak against the node: a busy or slow one, or a 5xx, may be the request's."""

NodeEvent = (
    NodeLeft | NodeDescribed | NodeReported | NodeProbed | NodeDraining | NodeChanged | CacheChanged
)
NODE_EVENTS = (
    NodeLeft,
    NodeDescribed,
    NodeReported,
    NodeProbed,
    NodeDraining,
    NodeChanged,
    CacheChanged,
    IndexTrusted,
)


class Change(msgspec.Struct, frozen=True):
    """What came of a node event. `stale` is an event about an incarnation that has ended;
    `room` means that a held request may now be placed, or can no longer be."""

    effects: tuple[Admitted | Left, ...] = ()
    room: bool = False
    stale: bool = False


_NOTHING = Change()


class Membership:
    """Applies node events."""

    def __init__(
        self, *, cluster: Cluster, ledger: Ledger, residency: Residency, ratios: TokenRatio
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._residency = residency
        self._ratios = ratios
        self._appliers: dict[type, Callable[[Node, Any], Change]] = {
            NodeLeft: self._left,
            NodeDescribed: self._described,
            NodeReported: self._reported,
            NodeProbed: self._probed,
            NodeDraining: self._draining,
            NodeChanged: self._respecified,
            CacheChanged: self._cache_changed,
            IndexTrusted: self._trusted,
        }

    def apply(self, event: NodeEvent | IndexTrusted) -> Change:
        """One event about a known incarnation."""
        node = self._cluster.get(event.node_id)
        if node is None:
            return Change(stale=True)
        return self._appliers[type(event)](node, event)

    def join(self, event: NodeJoined) -> Change:
        """A new incarnation. What the machine can do is carried over; what it holds is not.

        Raises ValueError when the cluster is full.
        """
        effects: list[Admitted | Left] = []
        before = self._cluster.named(event.spec.name)
        if before is not None:
            effects += self._remove(before)
        node = self._cluster.add(event.spec)
        if before is not None and before.spec.url == event.spec.url:
            node.calibration = before.calibration
        return Change((*effects, Admitted(node.name, node.id)), room=True)

    def failed(self, node: Node, kind: FailureKind, now_s: float) -> None:
        """An attempt on `node` ended before its first byte.

        The last node of a model is given up only if nothing listens there: one that breaks
        some of its answers serves the others, and with no node at all every request fails.
        Probes take it out all the same.
        """
        if kind is FailureKind.BUSY:
            narrow(node, now_s)
        if kind not in _NODE_FAULTS:
            return
        if kind is not FailureKind.UNREACHABLE and self._is_last(node):
            return
        before = node.health
        node.unreachable(f"requests fail: {kind}")
        if node.health is not before:
            self._cluster.changed()

    def _is_last(self, node: Node) -> bool:
        return any(len(self._cluster.serving(card.name)) < 2 for card in node.models)

    def _left(self, node: Node, event: NodeLeft) -> Change:
        return Change(tuple(self._remove(node)), room=True)

    def _remove(self, node: Node) -> list[Left]:
        self._ledger.forget(node.id)
        self._residency.forget(node)
        self._cluster.remove(node)
        return [Left(node.name, node.id)]

    def _described(self, node: Node, event: NodeDescribed) -> Change:
        node.describe(event.facts)
        self._cluster.classify(node)
        self._ledger.set_capacity(node.id, event.facts.kv_blocks)
        model = node.models[0].name if node.models else ModelName("")
        self._residency.describe(node, self._ratios.bytes_per_token(model))
        return self._changed()

    def _reported(self, node: Node, event: NodeReported) -> Change:
        node.report(event.signals, event.at_s)
        return _NOTHING

    def _probed(self, node: Node, event: NodeProbed) -> Change:
        before = node.health
        node.probed(event.healthy, event.detail)
        return _NOTHING if node.health is before else self._changed()

    def _draining(self, node: Node, event: NodeDraining) -> Change:
        node.draining = event.draining
        return self._changed()

    def _respecified(self, node: Node, event: NodeChanged) -> Change:
        assert (event.spec.name, event.spec.url) == (node.name, node.spec.url), event
        node.respecify(event.spec)
        if node.health is Health.JOINING:
            return self._changed()
        return self._described(node, NodeDescribed(node.id, node.facts))

    def _cache_changed(self, node: Node, event: CacheChanged) -> Change:
        self._residency.apply(node, event.changes)
        return _NOTHING

    def _trusted(self, node: Node, event: IndexTrusted) -> Change:
        self._residency.trust(node, event.trust)
        return _NOTHING

    def _changed(self) -> Change:
        self._cluster.changed()
        return Change(room=True)
