"""The nodes: who they are, how they are, and what of ours runs on them.

A node is an incarnation (`NodeId`): when its engine restarts, a new one takes the name over
and what was booked on the old one stays with the old one. Its health is its `condition`'s.
"""

from collections.abc import Callable, Collection
from functools import partial
from math import exp

from pointsman.core.blocks import Scheme, Unit
from pointsman.core.calibration import Calibration, Pace, Speeds
from pointsman.core.condition import Condition
from pointsman.core.events import IndexTrust, ModelCard, NodeFacts, NodeSignals, NodeSpec, Turned
from pointsman.core.health import SERVING, Cause, Health, Turn
from pointsman.core.ids import ModelName, NodeId, NodeName, RequestId, Slot
from pointsman.core.limits import (
    LEARN_INTERVAL_S,
    NODE_CONCURRENCY_MAX,
    NODES_MAX,
    PREFILL_MEMORY_S,
    HealthRules,
)
from pointsman.core.placement import Work
from pointsman.core.self_check import HitCheck

BLOCK_TOKENS_DEFAULT = 16
"""vLLM's block size on GPUs, until the engine says its own."""

_REQUEST_LOAD_S = 0.05
"""What a request in flight counts beside queued prefill seconds when nodes are only ranked
by load: about the prefill of a short prompt."""

_SLO_MEMORY = 16.0  # requests

_HIT_SAMPLES_MIN = 8
_HIT_TRUST_MIN = 0.1
_HIT_MEMORY = 0.9


class Node:
    """One incarnation of an engine. Only the scheduler changes it."""

    def __init__(
        self,
        node_id: NodeId,
        slot: Slot,
        spec: NodeSpec,
        rules: HealthRules,
        on_turn: Callable[["Node", Turn], None],
    ) -> None:
        self.id = node_id
        self.slot = slot
        self.name = spec.name
        self.rules = rules
        self.facts = NodeFacts()
        self.respecify(spec)
        self.block_tokens = BLOCK_TOKENS_DEFAULT
        self.condition = Condition(rules, partial(on_turn, self))
        self.draining = False
        self.withheld = False  # until it is warmed up
        self.trust = IndexTrust.HISTORY
        self.restore_share = 0.0  # of prefill, for blocks in slower tiers; 0: it has none
        self.token_scheme = Scheme(Unit.TOKENS, BLOCK_TOKENS_DEFAULT)
        # Own work: exact, changed by placements and settlements.
        self.inflight = 0
        self.waiting = 0  # their prefill is not over
        self.load_s = 0.0
        self.placed_order = 0
        self.queue_tokens = 0
        self.queue_attention = 0.0
        self.queue_s = 0.0
        self.prefilled_s = 0.0
        self._prefilled_lately_s = 0.0
        self._prefilled_at_s = 0.0
        self.kv_tokens = 0
        self.output_tokens = 0
        self.prefills: dict[RequestId, Work] = {}  # that are not over, oldest first
        self._head_since_s = 0.0
        self.alive_s = float("-inf")  # when something last came from there
        # Polled: corrects, never leads.
        self.signals = NodeSignals()
        self.signals_at_s: float | None = None
        self._foreign = 0
        self._foreign_steady = 0
        self._foreign_until_s = 0.0
        self.queue_growths = 0  # reports in a row in which its queue grew and nothing came
        # Learned.
        self.calibration = Pace(Calibration())
        self._learns_next_s = 0.0
        self.predicted_tokens = 0
        self.reported_tokens = 0
        self.hits = HitCheck()
        self.cache_believed = True  # an engine may cache nothing, whatever is predicted
        self._hit_trust = 1.0
        self._hit_samples = 0
        self.slo_share = 1.0

    # --- what routing asks -------------------------------------------------------------

    @property
    def serving(self) -> bool:
        return self.condition.state in SERVING and not (self.draining or self.withheld)

    @property
    def health(self) -> Health:
        return self.condition.state

    @property
    def troubled(self) -> bool:
        """Whether what waits on it had better wait elsewhere."""
        return self.condition.is_stuck

    @property
    def speeds(self) -> Speeds:
        return self.calibration.speeds()

    @property
    def models(self) -> tuple[ModelCard, ...]:
        """What it serves: as configured, else as it says."""
        if self.spec.models:
            return tuple(ModelCard(name=name) for name in self.spec.models)
        return self.facts.models

    def foreign(self, now_s: float) -> int:
        """Requests there that are not ours, from the last two scrapes; 0 when unknown."""
        return self._foreign_steady if now_s < self._foreign_until_s else 0

    def queue_ahead_s(self, now_s: float) -> float:
        """Prefill seconds still ahead of a newcomer: the head's elapsed time is taken off,
        but no more than the head itself, whose prediction may have been short."""
        prefills = self.prefills
        if not prefills:
            return 0.0
        head = next(iter(prefills.values()))
        elapsed_s = now_s - self._head_since_s
        done_s = elapsed_s if elapsed_s < head.prefill_s else head.prefill_s
        return self.queue_s - done_s if self.queue_s > done_s else 0.0

    def head_late_s(self, now_s: float) -> float:
        """How much longer than foreseen its present prefill is at it; below 0 while it is not."""
        head = next(iter(self.prefills.values()), None)
        return 0.0 if head is None else now_s - self._head_since_s - head.prefill_s

    def prefill_share(self, now_s: float) -> float:
        """Share of its time that went to prefills of late."""
        return self._faded_s(now_s) / PREFILL_MEMORY_S

    def _faded_s(self, now_s: float) -> float:
        return self._prefilled_lately_s * exp((self._prefilled_at_s - now_s) / PREFILL_MEMORY_S)

    def learns(self, now_s: float) -> bool:
        """Whether a sample that ends now is worth learning from: all until the speeds are
        known, then one in `LEARN_INTERVAL_S`."""
        if self.calibration.calibrated and now_s < self._learns_next_s:
            return False
        self._learns_next_s = now_s + LEARN_INTERVAL_S
        return True

    # --- own work ----------------------------------------------------------------------

    def book(self, request_id: RequestId, work: Work, now_s: float) -> None:
        assert request_id not in self.prefills, request_id
        if not self.prefills:
            self._head_since_s = now_s
        self.prefills[request_id] = work
        self.calibration.tried(now_s, idle=not self.inflight)
        self.condition.placed(request_id)
        self.inflight += 1
        self.waiting += 1
        self.queue_tokens += work.new_tokens
        self.queue_attention += work.attention
        self.queue_s += work.prefill_s
        self.kv_tokens += work.kv_tokens
        self.output_tokens += work.output_tokens
        self._rank()

    def start(self, request_id: RequestId, now_s: float) -> None:
        """The prefill is over. Harmless when it was already."""
        self._end_prefill(request_id, now_s)
        self._rank()

    def _end_prefill(self, request_id: RequestId, now_s: float) -> None:
        work = self.prefills.pop(request_id, None)
        if work is None:
            return
        self._head_since_s = now_s
        self.waiting -= 1
        self.queue_tokens -= work.new_tokens
        self.queue_attention -= work.attention
        self.queue_s -= work.prefill_s
        self.prefilled_s += work.prefill_s
        self._prefilled_lately_s = self._faded_s(now_s) + work.prefill_s
        self._prefilled_at_s = now_s
        if not self.prefills:
            self.queue_s = self.queue_attention = 0.0  # rounding does not add up

    def unbook(self, request_id: RequestId, work: Work, now_s: float) -> None:
        self._end_prefill(request_id, now_s)
        self.condition.ended(request_id)
        self.inflight -= 1
        self.kv_tokens -= work.kv_tokens
        self.output_tokens -= work.output_tokens
        self._rank()
        assert self.inflight >= 0, (self.name, self.inflight)
        assert self.kv_tokens >= 0, (self.name, self.kv_tokens)

    def _rank(self) -> None:
        self.load_s = self.queue_s + _REQUEST_LOAD_S * self.inflight

    def respecify(self, spec: NodeSpec) -> None:
        """It is configured like this from here on."""
        self.spec = spec
        self.concurrency_max = self.concurrency_configured = (
            spec.concurrency_max or NODE_CONCURRENCY_MAX
        )
        self.widens_at_s = 0.0

    # --- what shells report ------------------------------------------------------------

    def describe(self, facts: NodeFacts) -> None:
        self.facts = facts
        if facts.block_tokens is not None:
            self.block_tokens = facts.block_tokens
            self.token_scheme = Scheme(Unit.TOKENS, facts.block_tokens)

    def report(self, signals: NodeSignals, at_s: float) -> None:
        self.signals, self.signals_at_s = signals, at_s
        before = self._foreign
        if signals.running is not None:
            total = signals.running + (signals.waiting or 0)
            self._foreign = max(0, total - self.inflight)
        self._foreign_steady = min(self._foreign, before)
        self._foreign_until_s = at_s + self.rules.signal_age_max_s

    def slo_seen(self, met: bool) -> None:
        """A request's first token came within its bound, or late."""
        self.slo_share += (met - self.slo_share) / _SLO_MEMORY

    def hit_reported(self, predicted_tokens: int, reported_tokens: int) -> None:
        """Compare a predicted prefix hit with the engine's own count."""
        self.predicted_tokens += predicted_tokens
        self.reported_tokens += reported_tokens
        if predicted_tokens < self.block_tokens:
            return
        ratio = min(1.0, reported_tokens / predicted_tokens)
        self._hit_trust = _HIT_MEMORY * self._hit_trust + (1 - _HIT_MEMORY) * ratio
        self._hit_samples += 1
        unproven = self._hit_samples < _HIT_SAMPLES_MIN
        self.cache_believed = unproven or self._hit_trust >= _HIT_TRUST_MIN

    def __repr__(self) -> str:
        return (
            f"<Node {self.name}#{self.id} {self.health}{' draining' if self.draining else ''}, "
            f"{self.inflight} in flight, {len(self.prefills)} in prefill>"
        )


_RULES = HealthRules()


class Cluster:
    """All nodes, by incarnation and by name, and which of them serve a model."""

    def __init__(self, rules: HealthRules = _RULES) -> None:
        self._rules = rules
        self._nodes: dict[NodeId, Node] = {}
        self._by_name: dict[NodeName, Node] = {}
        self._serving: dict[ModelName, list[Node]] | None = None
        self.first_names: dict[ModelName, ModelName] = {}  # as `serving` was last asked
        self.shares = False  # some nodes serve with less than their full weight
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
        """Nodes that are ready and serve `model`, in order of joining. Do not change it."""
        if self._serving is None:
            self._serving = self._group_by_model()
        return self._serving.get(model, [])

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
            node.rules = node.condition.rules = rules

    def remove(self, node: Node) -> None:
        """The incarnation ends. The index must have forgotten its slot before."""
        node.condition.left()
        del self._nodes[node.id]
        del self._by_name[node.name]
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
        """Health, draining or models of a node are not what they were."""
        self._serving = None
        self.version += 1

    def _turn(self, node: Node, turn: Turn) -> None:
        """Its health has changed. That it joins or leaves has effects of its own."""
        self.changed()
        count = (turn.after, turn.cause)
        self.turned[count] = self.turned.get(count, 0) + 1
        if turn.before not in SERVING and turn.after in SERVING:
            self.cold.append(node)
        if Health.JOINING is not turn.before and turn.cause is not Cause.LEFT:
            turned = Turned(node.name, node.id, turn.before, turn.after, turn.cause, turn.detail)
            self.turns.append(turned)

    def take_turns(self) -> list[Turned]:
        """What is not told yet of nodes' health, to be told now."""
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

    def _group_by_model(self) -> dict[ModelName, list[Node]]:
        groups: dict[ModelName, list[Node]] = {}
        self.shares, self.first_names = False, {}
        for node in self.nodes:
            self.first_names |= node.facts.first_names()
            if node.serving:
                self.shares = self.shares or node.condition.weight < 1.0
                for card in node.models:
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
