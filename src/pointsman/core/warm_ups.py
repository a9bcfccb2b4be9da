"""Nodes that compute the hottest prefixes before they get work, where that is configured.

A node that joins, or returns, is withheld from routing while a shell replays real requests to it
(`WarmUp`), each of which is credited as it is told of (`NodeWarmed`); until the shell says that it
is done, or its time has passed. Only what is hot and not held there is asked for, and only
while other nodes of its pool serve all its models: rather a cold node than none. After it the
node's share grows from little, as any other's (`warming`).
"""

from collections.abc import Iterator

from pointsman.core.cluster import Cluster
from pointsman.core.events import IndexTrust, NodeWarmed, WarmUp
from pointsman.core.hot_prefixes import HotPrefix
from pointsman.core.ids import NodeId
from pointsman.core.judge import Judge
from pointsman.core.node import Node
from pointsman.core.residency import Residency
from pointsman.core.rules import Rules


class WarmUps:
    """Those under way. Changes whether nodes are withheld, and credits what they computed."""

    def __init__(self, rules: Rules, cluster: Cluster, judge: Judge, residency: Residency) -> None:
        self._cluster = cluster
        self._judge = judge
        self._residency = residency
        self._until_s: dict[NodeId, float] = {}
        self.apply(rules)

    def apply(self, rules: Rules) -> None:
        """Go by these rules from here on."""
        self._rules = rules.warm_up

    def begin(self, now_s: float) -> list[WarmUp]:
        """Withhold those that came into service and lack what is hot."""
        cold, self._cluster.cold = self._cluster.cold, []
        if not self._rules.prefixes:
            return []
        return [
            self._withhold(node, missing, now_s)
            for node in cold
            if node.id not in self._until_s
            and not self._judge.is_last(node)
            and (missing := tuple(self._missing(node, now_s)))
        ]

    def _withhold(self, node: Node, missing: tuple[HotPrefix, ...], now_s: float) -> WarmUp:
        self._until_s[node.id] = now_s + self._rules.within_s
        node.withheld = True
        self._cluster.changed()
        blocks = tuple(prefix.block for prefix in missing)
        return WarmUp(node.name, node.id, node.spec.url, blocks, self._rules.within_s)

    def _missing(self, node: Node, now_s: float) -> Iterator[HotPrefix]:
        models = {card.name for card in node.models}
        for prefix in self._residency.hot.hottest(self._rules.prefixes, now_s):
            is_held = self._residency.holders(prefix.block) >> node.slot & 1
            if prefix.model in models and not is_held:
                yield prefix

    def warmed(self, node: Node, event: NodeWarmed) -> bool:
        """A prompt is computed there, or all are. Returns whether that makes room."""
        if event.prompt is None:
            return self._release(node.id)
        if event.prompt.token_count is None or node.trust is not IndexTrust.EXACT:
            self._residency.credit(node, event.prompt)
        return False

    def give_way(self) -> bool:
        """Let a withheld node serve cold where it is the last one that could. Returns whether that
        makes room."""
        released = False
        for node_id in list(self._until_s):
            node = self._cluster.get(node_id)
            if node is not None and self._judge.is_last(node):
                released = self._release(node_id) or released
        return released

    def expire(self, now_s: float) -> None:
        """Let nodes serve cold whose warm-up takes too long."""
        for node_id in [n for n, until_s in self._until_s.items() if now_s >= until_s]:
            self._release(node_id)

    def _release(self, node_id: NodeId) -> bool:
        node = self._cluster.get(node_id)
        if self._until_s.pop(node_id, None) is None or node is None:
            return False
        node.withheld = False
        self._cluster.changed()
        return True
