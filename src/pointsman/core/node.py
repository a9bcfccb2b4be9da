"""One node: who it is, how it is, and what of ours runs on it.

A node is an incarnation (`NodeId`): when its engine restarts, a new one takes the name over
and what was booked on the old one stays with the old one. Its health is its `condition`'s.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from pointsman.core.calibration import Calibration, Pace, Speeds
from pointsman.core.condition import Condition
from pointsman.core.events import IndexTrust, ModelCard, NodeFacts, NodeSignals, NodeSpec
from pointsman.core.faded import Faded
from pointsman.core.health import SERVING, Health, Turn
from pointsman.core.ids import ModelName, NodeId, RequestId, Slot
from pointsman.core.limits import (
    LEARN_INTERVAL_S,
    NODE_CONCURRENCY_MAX,
    PREFILL_MEMORY_S,
    RETURN_MEMORY_S,
)
from pointsman.core.placement import Work
from pointsman.core.rules import HealthRules
from pointsman.core.scheme import Scheme, Unit
from pointsman.core.self_check import HitCheck

BLOCK_TOKENS_DEFAULT: Final = 16
"""vLLM's block size on GPUs, until the engine says its own."""

_REQUEST_LOAD_S: Final = 0.05
"""What a request in flight counts beside queued prefill seconds when nodes are only ranked
by load: about the prefill of a short prompt."""

_FULL_LOAD_S: Final = 1e6
"""What a node counts in addition that runs as many as it can: more than any load. So it comes
behind all that have room."""

_FORESEEN_RIGHT_S: Final = 1.0
"""So many prefill seconds are taken to have been foreseen right, until more than that are over."""

_SLO_MEMORY: Final = 16.0  # requests

CONTEXT_TOKENS_UNKNOWN: Final = 1 << 60
"""As good as without a bound: what an engine does not say keeps no prompt from it."""

RUNNING_MAX_UNKNOWN: Final = 1 << 60
"""As good as without a bound: most engines do not say how many requests they run at once."""


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
        self.running_max = RUNNING_MAX_UNKNOWN
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
        self.prefilled_tokens = 0
        self.prefilled_attention = 0.0
        self._prefilled_lately_s = Faded()
        self._foreseen_lately_s = Faded()  # for what was prefilled
        self._foreseen_per_s = 1.0  # what is over in a second of what was foreseen
        self._returned_lately = Faded()
        self.kv_tokens = 0
        self.output_tokens = 0
        self.prefills: dict[RequestId, Work] = {}  # that are not over, oldest first
        self._head_since_s = 0.0
        self._head_s = 0.0  # what its present prefill was foreseen to take
        self.alive_s = float("-inf")  # when something last came from there
        # Polled: corrects, never leads.
        self.signals = NodeSignals()
        self.signals_at_s: float | None = None
        self._foreign = 0
        self._foreign_steady = 0
        self._foreign_until_s = 0.0
        self.queue_growths = 0  # reports in a row in which its queue grew and nothing came
        # Learned.
        self.calibration = Pace(Calibration(), rules=rules)
        self._learns_next_s = 0.0
        self.hits = HitCheck()
        self.slo_share = 1.0

    # --- what routing asks -------------------------------------------------------------

    @property
    def serving(self) -> bool:
        return self.condition.state in SERVING and not (self.draining or self.withheld)

    @property
    def health(self) -> Health:
        return self.condition.state

    @property
    def speeds(self) -> Speeds:
        return self.calibration.speeds()

    @property
    def models(self) -> tuple[ModelCard, ...]:
        """What it serves: as configured, else as it says."""
        if self.spec.models:
            return tuple(ModelCard(name=name) for name in self.spec.models)
        return self.facts.models

    def context_tokens(self, model: ModelName) -> int:
        """What the model's context holds here; 0 if it is not served."""
        found = [card.context_tokens_max for card in self.models if card.name == model]
        return max((CONTEXT_TOKENS_UNKNOWN if n is None else n for n in found), default=0)

    def foreign(self, now_s: float) -> int:
        """Requests there that are not ours, from the last two scrapes; 0 when unknown."""
        return self._foreign_steady if now_s < self._foreign_until_s else 0

    def runs_one_more(self, now_s: float) -> bool:
        """Whether a newcomer would not wait for others to end inside the engine. One of ours may,
        or the work of others could keep all of ours out."""
        return not self.inflight or self.inflight + self.foreign(now_s) < self.running_max

    def queue_ahead_s(self, now_s: float) -> float:
        """Prefill seconds still ahead of a newcomer: what the head's elapsed time is worth is taken
        off, but no more than the head itself, whose prediction may have been short."""
        if not self.prefills:
            return 0.0
        done_s = self._foreseen_per_s * (now_s - self._head_since_s)
        done_s = min(done_s, self._head_s)
        return self.queue_s - done_s if self.queue_s > done_s else 0.0

    def head_took_s(self, now_s: float) -> float:
        """For how long it is at its present prefill, and no longer than that was foreseen."""
        return min(now_s - self._head_since_s, self._head_s) if self.prefills else 0.0

    def head_late_s(self, now_s: float) -> float:
        """How far its present prefill is behind the time foreseen; below 0 while it is on time."""
        return now_s - self._head_since_s - self._head_s if self.prefills else 0.0

    def prefill_share(self, now_s: float) -> float:
        """Share of its time in which there were prefills of late: by the clock, whatever they were
        foreseen to take."""
        return self._prefilled_lately_s.at(now_s, PREFILL_MEMORY_S) / PREFILL_MEMORY_S

    def returns_per_s(self, now_s: float) -> float:
        """How often requests came of late for what it holds: one counts as the share of its prompt
        that is cached here. They will come again, wherever there is less to do."""
        return self._returned_lately.at(now_s, RETURN_MEMORY_S) / RETURN_MEMORY_S

    def takes_sample(self, now_s: float) -> bool:
        """Whether to learn from the answer that ends now: from each until the speeds are known,
        then from one in `LEARN_INTERVAL_S`. After a yes that time begins anew."""
        if self.calibration.calibrated and now_s < self._learns_next_s:
            return False
        self._learns_next_s = now_s + LEARN_INTERVAL_S
        return True

    # --- own work ----------------------------------------------------------------------

    def book(self, request_id: RequestId, work: Work, now_s: float) -> None:
        assert request_id not in self.prefills, request_id
        if not self.prefills:
            self._head_since_s, self._head_s = now_s, work.prefill_s
        self.prefills[request_id] = work
        self.calibration.tried(now_s, idle=not self.inflight)
        self.condition.placed(request_id)
        self._returned_lately.add(work.hit_share, now_s, RETURN_MEMORY_S)
        self.inflight += 1
        self.waiting += 1
        self.queue_tokens += work.new_tokens
        self.queue_attention += work.attention
        self.queue_s += work.prefill_s
        self.kv_tokens += work.kv_tokens
        self.output_tokens += work.output_tokens
        self._rank()

    def start(self, request_id: RequestId, now_s: float) -> None:
        """The prefill is over. Changes nothing if it was already."""
        self._end_prefill(request_id, now_s)
        self._rank()

    def _end_prefill(self, request_id: RequestId, now_s: float) -> None:
        work = self.prefills.pop(request_id, None)
        if work is None:
            return
        self._note_prefilled(work.prefill_s, now_s)
        head = next(iter(self.prefills.values()), None)
        self._head_since_s, self._head_s = now_s, 0.0 if head is None else head.prefill_s
        self.waiting -= 1
        self.queue_tokens -= work.new_tokens
        self.queue_attention -= work.attention
        self.queue_s -= work.prefill_s
        self.prefilled_tokens += work.new_tokens
        self.prefilled_attention += work.attention
        if not self.prefills:
            self.queue_s = self.queue_attention = 0.0  # rounding does not add up

    def _note_prefilled(self, foreseen_s: float, now_s: float) -> None:
        """A prefill is over, and the clock says what it took. What is foreseen for those that wait
        goes by in as much more or less time."""
        memory_s, lately_s = PREFILL_MEMORY_S, self._prefilled_lately_s
        lately_s.add(now_s - self._head_since_s, now_s, memory_s)
        self._foreseen_lately_s.add(foreseen_s, now_s, memory_s)
        known_s = _FORESEEN_RIGHT_S + self._foreseen_lately_s.at(now_s, memory_s)
        self._foreseen_per_s = known_s / (_FORESEEN_RIGHT_S + lately_s.at(now_s, memory_s))

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
        if self.inflight >= self.running_max:
            self.load_s += _FULL_LOAD_S

    def respecify(self, spec: NodeSpec) -> None:
        """Configure it like this from here on."""
        self.spec = spec
        self.concurrency_max = self.concurrency_configured = (
            spec.concurrency_max or NODE_CONCURRENCY_MAX
        )
        self.widens_at_s = 0.0

    # --- what shells report ------------------------------------------------------------

    def describe(self, facts: NodeFacts) -> None:
        self.facts = facts
        self.running_max = facts.running_max or RUNNING_MAX_UNKNOWN
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
        """Note whether a request's first token came within its bound."""
        self.slo_share += (met - self.slo_share) / _SLO_MEMORY

    def __repr__(self) -> str:
        return (
            f"<Node {self.name}#{self.id} {self.health}{' draining' if self.draining else ''}, "
            f"{self.inflight} in flight, {len(self.prefills)} in prefill>"
        )
