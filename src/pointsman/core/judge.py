"""What speaks for a node and what against it, weighed beside its peers.

Each request tells: that it failed and how, when its first token came against when it was foreseen,
how long its answer took, that nothing came at all. Probes and what people say come on top.
A `Condition` counts; what only shows beside other nodes is found here:

    slow      the median of its last answers took `slow_factor` times as long as foreseen, and as
              many times its peers' own median
    overdue   a first token is due for `overdue_factor` times as long as foreseen and
              `overdue_min_s`, nothing has come from there since that request was placed, and a
              peer has answered since
    queue     its reported queue grew three times in a row with nothing coming from there, and the
              prefill whose turn it is is over a second late

The last node of a model in its pool stays in service whatever its requests say, unless nobody
listens there: one that breaks some of its answers serves the others. And at most half of a
model's nodes are slow, overdue or stuck: if more seem so, it is the load, or the prediction.
Failures count for as many as there are, for they are facts.

A request that fails alike on two nodes is the one that is broken: it counts on neither, and
nowhere when its client sends it again.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from statistics import median
from typing import Final, NamedTuple

from pointsman.core.busy import narrow
from pointsman.core.cluster import Cluster
from pointsman.core.condition import Condition, Pacing
from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import NodeJudged, NodeSignals
from pointsman.core.flight import Flight
from pointsman.core.health import SERVING, Cause, Health
from pointsman.core.health_limits import (
    POISON_PROMPTS_MAX,
    POISON_S,
    QUEUE_GROWTHS_MAX,
    QUEUE_LATE_S,
    SLOW_SLACK_S,
    SUSPECT_WEIGHT_MIN,
)
from pointsman.core.ids import NodeId
from pointsman.core.node import Node
from pointsman.core.request import Outcome

_FINISHED: Final = EndCause.FINISHED  # Python 3.11 takes 0.1 us to look an enum's member up
_READY: Final = Health.READY
_MAY_BE_THE_REQUESTS: Final = frozenset({FailureKind.CLOSED, FailureKind.BROKEN, FailureKind.ERROR})

_BROKEN_OFF: Final = {
    EndCause.TRUNCATED: FailureKind.CLOSED,
    EndCause.ENGINE_ERROR: FailureKind.ERROR,
    EndCause.TIMEOUT: FailureKind.TIMEOUT,
}


class _FailedOn(NamedTuple):
    """How and where a prompt failed. `node_id` is None for poison: it failed on two nodes."""

    kind: FailureKind
    node_id: NodeId | None
    at_s: float


_FIRST_TOKENS: Final = attrgetter("first_tokens")
_DECODES: Final = attrgetter("decodes")


class Judge:
    """Changes the conditions of the cluster's nodes, and nothing else."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._failed: dict[int, _FailedOn] = {}  # by prompt

    # --- requests ----------------------------------------------------------------------

    def began(self, flight: Flight, now_s: float) -> None:
        """The first byte of its answer is there."""
        node = flight.node
        node.alive_s = now_s
        condition = node.condition
        if condition.failures or condition.state is not _READY:
            condition.succeeded(now_s, whole=False)
        if flight.attempt.tried:
            self._failed.pop(flight.request.prompt.fingerprint(), None)  # it is not the prompt
        if flight.request.stream and flight.predicted.calibrated:
            foreseen_s = flight.predicted.first_token_s + SLOW_SLACK_S
            ratio = (now_s - flight.placed_s) / foreseen_s
            if flight.placed_s >= condition.since_s:
                condition.first_token(ratio, now_s)
                if ratio > node.rules.slow_factor:
                    self._suspect(node, _FIRST_TOKENS, now_s)

    def ended(self, flight: Flight, outcome: Outcome, now_s: float) -> None:
        """It is over, some way other than by `failed`."""
        node = flight.node
        if outcome.end is _FINISHED:
            node.alive_s = now_s
            condition = node.condition
            if condition.failures or condition.state is not _READY:
                condition.succeeded(now_s, whole=True)
            self._decoded(flight, outcome, now_s)
            return
        kind = _BROKEN_OFF.get(outcome.end)
        if kind is not None:
            spared = self.is_last(node)
            began = flight.started_s is not None
            node.condition.failed(kind, now_s, spared=spared, began=began)

    def failed(self, flight: Flight, kind: FailureKind, now_s: float) -> None:
        """The attempt ended before its first byte. To be busy speaks against no node."""
        if kind is FailureKind.BUSY:
            narrow(flight.node, now_s)
            return
        node = flight.node
        if kind in _MAY_BE_THE_REQUESTS and self._is_poison(flight, kind, now_s):
            return
        spared = kind is not FailureKind.UNREACHABLE and self.is_last(node)
        node.condition.failed(kind, now_s, spared=spared, began=False)

    def _is_poison(self, flight: Flight, kind: FailureKind, now_s: float) -> bool:
        """Whether its prompt failed like this before on another node, which is forgiven then."""
        prompt, here = flight.request.prompt.fingerprint(), flight.node.id
        if not prompt:
            return False
        before = self._failed.pop(prompt, None)
        if before is None or now_s - before.at_s > POISON_S or before.kind is not kind:
            self._remember(prompt, _FailedOn(kind, here, now_s))
            return False
        if before.node_id == here:
            self._remember(prompt, before)
            return False
        node = None if before.node_id is None else self._cluster.get(before.node_id)
        if node is not None:
            node.condition.forgive(now_s)
        self._remember(prompt, _FailedOn(kind, None, now_s))
        return True

    def _remember(self, prompt: int, failed: _FailedOn) -> None:
        self._failed[prompt] = failed
        if len(self._failed) > POISON_PROMPTS_MAX:
            del self._failed[next(iter(self._failed))]

    def _decoded(self, flight: Flight, outcome: Outcome, now_s: float) -> None:
        """Compare how long its tokens took with what was foreseen for so many."""
        predicted, tokens = flight.predicted, flight.demand.output_tokens
        got = outcome.output_tokens or outcome.streamed_tokens
        known = predicted.calibrated and flight.started_s is not None and outcome.streamed
        if not known or got < 2 or not tokens:
            return
        node, decode_s = flight.node, (outcome.decode_s or 0.0) - flight.stalled_s(now_s)
        foreseen_s = predicted.decode_s * got / tokens + SLOW_SLACK_S
        ratio = max(decode_s, 0.0) / foreseen_s
        if flight.placed_s >= node.condition.since_s:
            node.condition.decodes.observe(ratio)
            if ratio > node.rules.slow_factor:
                self._suspect(node, _DECODES, now_s)

    def _suspect(self, node: Node, of: Callable[[Condition], Pacing], now_s: float) -> None:
        """Its last answer was slow: suspect the node if its typical one is, too, beside its peers'.
        Answers to what was placed before its last turn are not among them: they say nothing of how
        it is now. To go on with a suspicion few are enough, so long as most of them are slow."""
        condition = node.condition
        if condition.state is Health.SUSPECT and condition.cause is Cause.SLOW:
            if of(condition).so_far > node.rules.slow_factor:
                condition.suspect(Cause.SLOW, condition.detail, now_s, weight=condition.weight)
            return
        typical = of(condition).typical
        ratios = [of(peer.condition).typical for peer in self._peers(node)]
        known = [ratio for ratio in ratios if ratio > 0]
        factor = typical / max(1.0, median(known)) if known else 0.0
        if factor > node.rules.slow_factor and self._may_be_relative(node):
            detail = f"answers take {typical:.1f} times as long as foreseen"
            condition.suspect(Cause.SLOW, detail, now_s, weight=1.0 / factor)
            node.calibration.slowed(factor, now_s)

    # --- what is told of nodes ---------------------------------------------------------

    def reported(self, node: Node, signals: NodeSignals, at_s: float) -> None:
        """Look at signals before `node` takes them in: a queue that only grows shows before
        anything is late."""
        waiting, before, since_s = signals.waiting, node.signals.waiting, node.signals_at_s
        if waiting is None or before is None or since_s is None:
            return
        late = node.calibration.calibrated and node.head_late_s(at_s) > QUEUE_LATE_S
        if waiting <= before or node.alive_s > since_s or not late:
            node.queue_growths = 0
            return
        node.queue_growths += 1
        stuck = node.queue_growths >= QUEUE_GROWTHS_MAX and self._peer_answered(node, since_s)
        if stuck and self._may_be_relative(node):
            detail = f"its queue has grown to {waiting} and nothing comes of it"
            node.condition.suspect(Cause.QUEUE, detail, at_s, weight=SUSPECT_WEIGHT_MIN)

    def heard(self, node: Node, event: NodeJudged, now_s: float) -> None:
        """Somebody who used it says how it is."""
        if event.healthy:
            node.alive_s = now_s
            node.condition.succeeded(now_s, whole=True)
        else:
            node.condition.blamed(event.cause, event.detail, now_s, spared=self.is_last(node))

    # --- time --------------------------------------------------------------------------

    def look(self, flights: Iterable[Flight], now_s: float) -> None:
        """Once a second or so. `flights` are in order of placement: of each node the oldest without
        a first token is looked at, for the others wait behind it."""
        for node in self._cluster.nodes:
            if node.condition.state is not _READY:
                is_slow = node.calibration.slowdown > node.rules.well_factor
                node.condition.pass_time(now_s, is_slow=is_slow)
        oldest: dict[NodeId, Flight] = {}
        for flight in flights:
            if now_s - flight.placed_s < flight.node.rules.overdue_min_s:
                break
            if _is_awaited(flight):
                oldest.setdefault(flight.node.id, flight)
        for flight in oldest.values():
            self._overdue(flight, now_s - flight.placed_s, now_s)

    def _overdue(self, flight: Flight, waited_s: float, now_s: float) -> None:
        node, predicted = flight.node, flight.predicted
        if not predicted.calibrated or node.condition.state not in SERVING:
            return
        foreseen_s = predicted.first_token_s
        if not flight.request.stream:
            foreseen_s += predicted.decode_s
        due_s = node.rules.overdue_factor * foreseen_s + node.rules.overdue_min_s
        if waited_s < due_s or not self._peer_answered(node, flight.placed_s):
            return
        if not self._may_be_relative(node):
            return
        detail = f"nothing has come for {waited_s:.0f} s, and {foreseen_s:.2f} s was foreseen"
        node.condition.suspect(Cause.OVERDUE, detail, now_s, weight=SUSPECT_WEIGHT_MIN)
        on_trial = node.condition.state is Health.HALF_OPEN
        if (on_trial or waited_s >= 2 * due_s) and not self.is_last(node):
            node.condition.give_up(Cause.OVERDUE, detail, now_s)

    def warms(self, node: Node, now_s: float) -> bool:
        """Whether a node that begins now is to begin slowly: where others serve already. When a
        whole cluster is new, there is nobody to protect; one that has restarted is the only one
        that is cold."""
        slow_start_s = 0.0 if node.condition.is_restart else node.rules.slow_start_s
        return any(
            peer is not node and now_s - peer.condition.joined_s >= slow_start_s
            for card in node.models
            for peer in self._cluster.serving(card.name)
        )

    # --- beside the others -------------------------------------------------------------

    def _peers(self, node: Node) -> list[Node]:
        """The others that serve its first model."""
        if not node.models:
            return []
        serving = self._cluster.serving(node.models[0].name)
        return [peer for peer in serving if peer is not node]

    def _peer_answered(self, node: Node, since_s: float) -> bool:
        return any(peer.alive_s > since_s for peer in self._peers(node))

    def is_last(self, node: Node) -> bool:
        """Whether in its pool one of its models would be left to nodes on trial, or to none."""
        return any(
            not any(
                peer is not node
                and peer.spec.pool == node.spec.pool
                and peer.condition.state is not Health.HALF_OPEN
                for peer in self._cluster.serving(card.name)
            )
            for card in node.models
        )

    def _may_be_relative(self, node: Node) -> bool:
        """Whether at most half of its model's nodes would be slow, overdue or stuck."""
        if node.condition.is_relative:
            return True
        model = node.models[0].name if node.models else None
        fellows = [n for n in self._cluster.nodes if any(c.name == model for c in n.models)]
        found = sum(fellow.condition.is_relative for fellow in fellows)
        return found + 1 <= node.rules.slow_share_max * len(fellows)


def _is_awaited(flight: Flight) -> bool:
    """Whether its node owes it a first token, and has told of nothing since it was placed. What is
    compensated its engine does not even know of; of a node on trial only the trial tells."""
    if flight.started_s is not None or flight.compensated:
        return False
    node, condition = flight.node, flight.node.condition
    if condition.state is Health.HALF_OPEN and flight.placed_s < condition.since_s:
        return False
    return flight.placed_s >= node.alive_s
