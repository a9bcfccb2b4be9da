"""All nodes of the cluster; their names, models and speeds, and what changes of their health."""

from collections.abc import Collection

from pointsman.core.calibration import Calibration
from pointsman.core.events import ModelCard, NodeSpec, Turned
from pointsman.core.health import SERVING, Cause, Health, Turn
from pointsman.core.ids import ModelName, NodeId, NodeName, Slot
from pointsman.core.limits import NODES_MAX
from pointsman.core.node import CONTEXT_TOKENS_UNKNOWN, Node
from pointsman.core.rules import HealthRules

_RULES = HealthRules()


class Cluster:
    """All nodes, by incarnation and by name, and which of them serve a model."""

    def __init__(self, rules: HealthRules = _RULES) -> None:
        self._rules = rules
        self._nodes: dict[NodeId, Node] = {}
        self._by_name: dict[NodeName, Node] = {}
        self._serving: dict[ModelName, list[Node]] | None = None
        self._first_names: dict[ModelName, ModelName] = {}
        # Of the nodes that serve, as `serving` was last asked:
        self.weights_differ = False  # some have less than their full weight
        self.context_tokens_least = CONTEXT_TOKENS_UNKNOWN
        self.turns: list[Turned] = []  # of health, not told yet
        self.cold: list[Node] = []  # came into service, not looked at yet
        self.turned: dict[tuple[Health, Cause], int] = {}
        self._classes: dict[tuple[object, ...], Calibration] = {}
        self._free_slots: list[Slot] = []
        self._next_slot = 0
        self._next_id = 1
        self.placements = 0
        self.version = 0  # counts changes of who serves what

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nodes(self) -> Collection[Node]:
        return self._nodes.values()

    def get(self, node_id: NodeId) -> Node | None:
        return self._nodes.get(node_id)

    def named(self, name: NodeName) -> Node | None:
        return self._by_name.get(name)

    def serving(self, model: ModelName) -> list[Node]:
        """Nodes in service that have `model`, in order of joining. Do not change it."""
        return self._groups().get(model, [])

    def first_name(self, model: ModelName) -> ModelName | None:
        """Of a model that engines serve under several names, the first, where `model` is not it."""
        self._groups()
        return self._first_names.get(model)

    def knows(self, model: ModelName) -> bool:
        """Whether any node serves the model, up or not."""
        return any(card.name == model for node in self.nodes for card in node.models)

    def models(self) -> list[ModelCard]:
        """Every served model once, in order of joining."""
        cards = {card.name: card for node in reversed(list(self.nodes)) for card in node.models}
        order = dict.fromkeys([card.name for node in self.nodes for card in node.models])
        return [cards[name] for name in order]

    def add(self, spec: NodeSpec) -> Node:
        """A new incarnation. The name must be free; raises ValueError when the cluster is full."""
        assert spec.name not in self._by_name, spec.name
        if len(self._nodes) >= NODES_MAX:
            raise ValueError(f"the cluster is full: {NODES_MAX} nodes")
        node = Node(NodeId(self._next_id), self._take_slot(), spec, self._rules, self._turn)
        self._next_id += 1
        self._nodes[node.id] = self._by_name[spec.name] = node
        self.changed()
        return node

    def apply(self, rules: HealthRules) -> None:
        """Judge every node's health by these from here on."""
        self._rules = rules
        for node in self.nodes:
            node.rules = node.condition.rules = node.calibration.rules = rules

    def remove(self, node: Node) -> None:
        """The incarnation ends. The index must have forgotten its slot before."""
        node.condition.left()
        del self._nodes[node.id], self._by_name[node.name]
        self._free_slots.append(node.slot)
        self.changed()

    def classify(self, node: Node) -> None:
        """Let `node` learn together with the engines that describe themselves alike. It is as
        fast as it was, wherever it belongs."""
        known = node.facts
        key = (known.kind, node.models[:1], known.block_tokens, known.kv_blocks)
        if key not in self._classes and len(self._classes) >= NODES_MAX:
            self._classes.clear()
        shared = self._classes.setdefault(key, Calibration())
        node.calibration = node.calibration.within(shared)

    def changed(self) -> None:
        """Note that health, draining or models of a node have changed."""
        self._serving = None
        self.version += 1

    def _turn(self, node: Node, turn: Turn) -> None:
        """Its health has changed. That it joins or leaves has effects of its own."""
        self.changed()
        count = (turn.after, turn.cause)
        self.turned[count] = self.turned.get(count, 0) + 1
        if turn.before not in SERVING and turn.after in SERVING:
            self.cold.append(node)
        if turn.cause not in (Cause.JOINED, Cause.LEFT):
            turned = Turned(node.name, node.id, turn.before, turn.after, turn.cause, turn.detail)
            self.turns.append(turned)

    def take_turns(self) -> list[Turned]:
        """Changes of nodes' health that have not been reported yet; from now on they have."""
        turns, self.turns = self.turns, []
        return turns

    def placed(self, node: Node) -> None:
        """Remember the order of placements: among equals, the one not chosen for longest."""
        self.placements += 1
        node.placed_order = self.placements

    def _take_slot(self) -> Slot:
        if self._free_slots:
            return self._free_slots.pop()
        self._next_slot += 1
        return Slot(self._next_slot - 1)

    def _groups(self) -> dict[ModelName, list[Node]]:
        if self._serving is None:
            self._serving = self._group_by_model()
        return self._serving

    def _group_by_model(self) -> dict[ModelName, list[Node]]:
        groups: dict[ModelName, list[Node]] = {}
        self.weights_differ, self._first_names = False, {}
        self.context_tokens_least = CONTEXT_TOKENS_UNKNOWN
        for node in self.nodes:
            self._first_names |= node.facts.first_names()
            if node.serving:
                self.weights_differ |= node.condition.weight < 1.0
                for card in node.models:
                    known = card.context_tokens_max
                    if known is not None and known < self.context_tokens_least:
                        self.context_tokens_least = known
                    groups.setdefault(card.name, []).append(node)
        return groups

    def check(self) -> None:
        """Names and ids agree, slots are unique, nothing is negative."""
        assert len(self._nodes) == len(self._by_name), (self._nodes, self._by_name)
        slots = [node.slot for node in self.nodes]
        assert len(set(slots)) == len(slots), slots
        assert not set(slots) & set(self._free_slots), (slots, self._free_slots)
        for node in self.nodes:
            assert node.inflight >= 0, node
            assert 0 <= node.waiting <= node.inflight, node
            assert node.queue_tokens >= 0, node
            assert node.kv_tokens >= 0, node
            node.condition.check()
