"""What shells report of nodes, applied: joining, health, facts, load and cache events.

Owns nothing: it changes the scheduler's cluster, ledger and residency on its behalf, and
says whether held requests may find room that was not there before.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from pointsman.core.busy import widen
from pointsman.core.calibration import TokenRatio
from pointsman.core.cluster import Cluster
from pointsman.core.events import (
    Admitted,
    CacheChanged,
    CacheTold,
    IndexTrusted,
    Left,
    NodeChanged,
    NodeDescribed,
    NodeDraining,
    NodeEvent,
    NodeJoined,
    NodeJudged,
    NodeLeft,
    NodeProbed,
    NodeReported,
    NodeWarmed,
    Turned,
    WarmUp,
)
from pointsman.core.health import Health
from pointsman.core.ids import ModelName, NodeName
from pointsman.core.judge import Judge
from pointsman.core.ledger import Ledger
from pointsman.core.node import Node
from pointsman.core.residency import Residency
from pointsman.core.rules import Rules
from pointsman.core.warm_ups import WarmUps


class Change(msgspec.Struct, frozen=True):
    """What came of a node event. `stale` is an event about an incarnation that has ended;
    `room` means that a held request may now be placed, or can no longer be; `gone` names the
    node that has left and was not replaced."""

    effects: tuple[Admitted | Left, ...] = ()
    room: bool = False
    stale: bool = False
    gone: NodeName | None = None


_NOTHING = Change()


class Membership:
    """Applies node events."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        judge: Judge,
        ledger: Ledger,
        residency: Residency,
        ratios: TokenRatio,
        rules: Rules,
    ) -> None:
        self._cluster = cluster
        self._judge = judge
        self._ledger = ledger
        self._residency = residency
        self._ratios = ratios
        self._warm_ups = WarmUps(rules, cluster, judge, residency)
        self._appliers: dict[type, Callable[[Node, Any, float], Change]] = {
            NodeLeft: self._left,
            NodeDescribed: self._described,
            NodeWarmed: self._warmed,
            NodeReported: self._reported,
            NodeProbed: self._probed,
            NodeJudged: self._judged,
            NodeDraining: self._draining,
            NodeChanged: self._respecified,
            CacheChanged: self._cache_changed,
            CacheTold: self._cache_told,
            IndexTrusted: self._trusted,
        }

    def take_in(self, event: NodeJoined | NodeEvent, now_s: float) -> Change:
        """One event about an incarnation, a new one or one that is known.

        Raises ValueError when the cluster is full.
        """
        if isinstance(event, NodeJoined):
            return self._warmed_enough(self._join(event, now_s))
        node = self._cluster.get(event.node_id)
        if node is None:
            return Change(stale=True)
        change = self._appliers[type(event)](node, event, now_s)
        return self._warmed_enough(change)

    def apply(self, rules: Rules) -> None:
        """Judge nodes' health, and warm them up, by these from here on."""
        self._cluster.apply(rules.health)
        self._warm_ups.apply(rules)

    def pass_time(self, now_s: float) -> None:
        """End what was only for a while."""
        widen(self._cluster.nodes, now_s)
        self._warm_ups.expire(now_s)
        self.give_way()

    def give_way(self) -> bool:
        """Let nodes that warm up serve where others have gone. Returns whether that makes room."""
        return self._warm_ups.give_way()

    def news(self, now_s: float) -> list[Turned | WarmUp]:
        """What is to be told of nodes' health, and of those that came into service."""
        self.give_way()
        warm_ups = self._warm_ups.begin(now_s) if self._cluster.cold else []
        return [*self._cluster.take_turns(), *warm_ups]

    def _warmed_enough(self, change: Change) -> Change:
        """Let nodes that warm up serve at once where an event has left no others."""
        return msgspec.structs.replace(change, room=True) if self.give_way() else change

    def _join(self, event: NodeJoined, now_s: float) -> Change:
        """What the machine can do is carried over; what it holds is not."""
        effects: list[Admitted | Left] = []
        before = self._cluster.named(event.spec.name)
        if before is not None:
            effects += self._remove(before)
        node = self._cluster.add(event.spec)
        node.condition.since_s = now_s
        if before is not None and before.spec.url == event.spec.url:
            node.calibration = before.calibration
            node.condition.follows(before.condition, now_s, planned=before.draining)
        return Change((*effects, Admitted(node.name, node.id)), room=True)

    def _left(self, node: Node, event: NodeLeft, now_s: float) -> Change:
        return Change(tuple(self._remove(node)), room=True, gone=node.name)

    def _remove(self, node: Node) -> list[Left]:
        self._ledger.forget(node.id)
        self._residency.forget(node)
        self._cluster.remove(node)
        return [Left(node.name, node.id)]

    def _described(self, node: Node, event: NodeDescribed, now_s: float) -> Change:
        node.describe(event.facts)
        warms, spared = self._judge.warms(node, now_s), self._judge.is_last(node)
        node.condition.described(now_s, warms=warms, spared=spared)
        self._cluster.classify(node)
        self._ledger.set_capacity(node.id, event.facts.kv_blocks)
        model = node.models[0].name if node.models else ModelName("")
        self._residency.describe(node, self._ratios.bytes_per_token(model))
        return self._changed()

    def _warmed(self, node: Node, event: NodeWarmed, now_s: float) -> Change:
        return Change(room=self._warm_ups.warmed(node, event))

    def _reported(self, node: Node, event: NodeReported, now_s: float) -> Change:
        self._judge.reported(node, event.signals, event.at_s)
        node.report(event.signals, event.at_s)
        return _NOTHING

    def _probed(self, node: Node, event: NodeProbed, now_s: float) -> Change:
        before = node.health
        node.condition.probed(event.healthy, event.detail, now_s)
        return Change(room=node.health is not before)

    def _judged(self, node: Node, event: NodeJudged, now_s: float) -> Change:
        before = node.health
        self._judge.heard(node, event, now_s)
        return Change(room=node.health is not before)

    def _draining(self, node: Node, event: NodeDraining, now_s: float) -> Change:
        node.draining = event.draining
        return self._changed()

    def _respecified(self, node: Node, event: NodeChanged, now_s: float) -> Change:
        assert (event.spec.name, event.spec.url) == (node.name, node.spec.url), event
        node.respecify(event.spec)
        if node.health is Health.JOINING:
            return self._changed()
        return self._described(node, NodeDescribed(node.id, node.facts), now_s)

    def _cache_changed(self, node: Node, event: CacheChanged, now_s: float) -> Change:
        self._residency.cache_changed(node, event.changes)
        return _NOTHING

    def _cache_told(self, node: Node, event: CacheTold, now_s: float) -> Change:
        self._residency.cache_told(node, event)
        return _NOTHING

    def _trusted(self, node: Node, event: IndexTrusted, now_s: float) -> Change:
        self._residency.trust(node, event.trust)
        return _NOTHING

    def _changed(self) -> Change:
        self._cluster.changed()
        return Change(room=True)
