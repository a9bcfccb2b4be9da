"""One gateway process: a real `Scheduler`, and a real `Exchange` for each request.

It does what the HTTP gateway and the scheduler service do, with delays instead of sockets.
"""

from collections.abc import Callable
from typing import assert_never

from pointsman.core.errors import ANSWERS, EndCause, FailureKind, Reason
from pointsman.core.events import Admitted, Effect, Event, Left, Tick, Turned, WarmUp
from pointsman.core.exchange import Exchange
from pointsman.core.health import WATCHED, Health
from pointsman.core.ids import NodeId, NodeName, RequestId
from pointsman.core.limits import TICK_S_MAX, TICK_S_MIN
from pointsman.core.options import SchedulerOptions
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import (
    Arrived,
    Compensated,
    Failed,
    Held,
    Placed,
    Recalled,
    Refused,
    Settled,
    Started,
)
from pointsman.core.rules import Timeouts
from pointsman.core.scheduler import Scheduler
from pointsman.engines.compute_model import Job
from pointsman.sim.answer import Answer, Caller
from pointsman.sim.clock import Clock, Timer
from pointsman.sim.node import NodeDownError, SimulatedNode
from pointsman.sim.scenario import Knowledge, Network

_ATTEMPT = "#"  # between a request's id and the number of the attempt: the engine's job

_TIMEOUTS = Timeouts()  # the gateway's own


class _Open:
    """A request between arrival and settlement."""

    __slots__ = (
        "caller",
        "exchange",
        "incarnation",
        "job_id",
        "node",
        "output_tokens",
        "placements",
        "request",
    )

    def __init__(
        self, request: Request, output_tokens: int, exchange: Exchange, caller: Caller
    ) -> None:
        self.request = request
        self.output_tokens = output_tokens
        self.exchange = exchange
        self.caller = caller
        self.node: SimulatedNode | None = None
        self.incarnation = 0
        self.job_id = ""  # of the present attempt: what comes of an earlier one is void
        self.placements = 0


class SimulatedGateway:
    """`watch` in sim/watch.py feeds its scheduler with what nodes tell."""

    def __init__(
        self,
        clock: Clock,
        nodes: dict[NodeName, SimulatedNode],
        options: SchedulerOptions,
        *,
        network: Network,
        knowledge: Knowledge,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        self.scheduler = Scheduler(options)
        self.node_ids: dict[NodeName, NodeId] = {}
        self.health: dict[NodeName, Health] = {}  # of those that have turned
        self.decision_s: list[float] = []
        self.on_trouble: Callable[[NodeName], None] = lambda name: None
        self.hold_s = options.hold_s
        self._retries = options.retries
        self.held_longest_s = 0.0
        self._clock = clock
        self._nodes = nodes
        self._network = network
        self._knowledge = knowledge
        self._stopwatch = stopwatch
        self._open: dict[RequestId, _Open] = {}
        self._held_since_s: dict[RequestId, float] = {}
        self._tick: Timer | None = None

    @property
    def unsettled(self) -> int:
        """Requests that arrived and are not over."""
        return len(self._open)

    # --- requests ----------------------------------------------------------------------

    def arrive(self, request: Request, output_tokens: int, caller: Caller) -> None:
        """`caller` is answered once. Only engines know of `output_tokens`."""
        exchange = Exchange(request.id, _TIMEOUTS, self._clock.now_s, self._retries)
        self._open[request.id] = _Open(request, output_tokens, exchange, caller)
        self._arm(self._clock.now_s + TICK_S_MAX)
        if self._stopwatch is None:
            self.step(Arrived(request))
            return
        began_s = self._stopwatch()
        effects = self.scheduler.step(Arrived(request), self._clock.now_s)
        self.decision_s.append(self._stopwatch() - began_s)
        self._deliver(effects)

    def client_gone(self, request_id: RequestId) -> None:
        """The client has left. Changes nothing when the request is over."""
        entry = self._open.get(request_id)
        if entry is not None:
            self._abort(entry)
            self._end(entry, EndCause.CLIENT_GONE)

    def step(self, event: Event) -> None:
        """Step the scheduler, and do what it says."""
        self._deliver(self.scheduler.step(event, self._clock.now_s))

    def _deliver(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Placed():
                    self._placed(effect)
                case Held():
                    self._held(effect)
                case Refused():
                    self._refused(effect)
                case Recalled():
                    self._recalled(effect)
                case Compensated():
                    pass  # its engine or its client says how it ends
                case Admitted():
                    self.node_ids[effect.name] = effect.node_id
                case WarmUp():
                    pass  # off
                case Turned():
                    self.health[effect.name] = effect.after
                    if effect.after in WATCHED:
                        self.on_trouble(effect.name)
                case Left():
                    self.health.pop(effect.name, None)
                case _:
                    assert_never(effect)

    def _placed(self, effect: Placed) -> None:
        entry, now_s = self._open[effect.request_id], self._clock.now_s
        self._no_longer_held(effect.request_id)
        entry.exchange.placed(now_s)
        entry.exchange.dialled(now_s)
        entry.node = node = self._nodes[effect.node]
        entry.job_id = job_id = f"{effect.request_id}{_ATTEMPT}{entry.exchange.attempts}"
        network = self._network
        self._clock.after(network.engine_s + network.dispatch_s, self._submit, job_id, node)

    def _held(self, effect: Held) -> None:
        self._open[effect.request_id].exchange.held()
        self._held_since_s[effect.request_id] = self._clock.now_s
        self._arm_for_held()

    def _recalled(self, effect: Recalled) -> None:
        entry = self._open.get(effect.request_id)
        if entry is None:
            return
        if entry.exchange.may_be_recalled:
            self._abort(entry)
            entry.exchange.recalled()
            entry.job_id = ""
            self._clock.after(0.0, self._give_back, entry)
        elif effect.breaks and entry.exchange.first_byte_s is not None:
            self._abort(entry)
            self._end(entry, EndCause.TRUNCATED, reason=Reason.PREEMPTED)

    def _give_back(self, entry: _Open) -> None:
        if self._open.get(entry.request.id) is entry:
            self.step(Failed(entry.request.id, FailureKind.RECALLED))

    def _refused(self, effect: Refused) -> None:
        entry = self._open.pop(effect.request_id)
        self._no_longer_held(effect.request_id)
        now_s = self._clock.now_s
        entry.exchange.ended(EndCause.REFUSED, now_s)
        answer = Answer(
            end=EndCause.REFUSED,
            reason=effect.reason,
            status=ANSWERS[effect.reason].status,
            retry_after_s=effect.retry_after_s,
            ended_s=now_s,
            placements=entry.placements,
        )
        entry.caller.answered(answer)

    def _no_longer_held(self, request_id: RequestId) -> None:
        since_s = self._held_since_s.pop(request_id, None)
        if since_s is not None:
            self.held_longest_s = max(self.held_longest_s, self._clock.now_s - since_s)

    def _running(self, job_id: str) -> _Open | None:
        """The request whose present attempt this is."""
        entry = self._open.get(RequestId(job_id.rpartition(_ATTEMPT)[0]))
        return entry if entry is not None and entry.job_id == job_id else None

    def _submit(self, job_id: str, node: SimulatedNode) -> None:
        """The request has come to the engine, unless its client left on the way."""
        entry = self._running(job_id)
        if entry is None:
            return
        try:
            node.submit(_job(entry, node), self)
        except NodeDownError:
            delay_s = self._network.engine_s
            self._clock.after(delay_s, self._failed, job_id, FailureKind.UNREACHABLE)
        except ValueError:
            self._clock.after(self._network.engine_s, self._rejected, job_id)
        else:
            entry.placements += 1
            entry.incarnation = node.incarnation

    # --- what engines answer -------------------------------------------------------------

    def first_token(self, job_id: str) -> None:
        entry = self._running(job_id)
        if entry is not None and entry.request.stream:
            self._clock.after(self._network.engine_s, self._started, job_id)

    def finished(self, job_id: str, cached_tokens: int) -> None:
        self._clock.after(self._network.engine_s, self._finished, job_id, cached_tokens)

    def broken(self, job_id: str) -> None:
        self._clock.after(self._network.engine_s, self._broken, job_id)

    def _started(self, job_id: str) -> None:
        entry = self._running(job_id)
        if entry is not None:
            entry.exchange.started(self._clock.now_s)
            self.step(Started(entry.request.id))

    def _finished(self, job_id: str, cached_tokens: int) -> None:
        if (entry := self._running(job_id)) is None:
            return
        if not entry.request.stream:
            self._started(job_id)
        self._end(entry, EndCause.FINISHED, cached_tokens=cached_tokens)

    def _broken(self, job_id: str) -> None:
        entry = self._running(job_id)
        if entry is None:
            return
        if entry.exchange.first_byte_s is None:
            self._failed(job_id, FailureKind.CLOSED)
        else:
            self._end(entry, EndCause.TRUNCATED, reason=Reason.NODE_CLOSED)

    def _rejected(self, job_id: str) -> None:
        """The engine answers 400 by itself: the prompt does not fit its context."""
        entry = self._running(job_id)
        if entry is not None:
            entry.exchange.started(self._clock.now_s)
            self._end(entry, EndCause.ENGINE_REFUSED, reason=Reason.BAD_REQUEST)

    def _failed(self, job_id: str, kind: FailureKind) -> None:
        entry = self._running(job_id)
        if entry is None:
            return
        entry.exchange.failed(kind)
        assert entry.node is not None
        self.on_trouble(entry.node.name)
        self.step(Failed(entry.request.id, kind))

    # --- ends --------------------------------------------------------------------------

    def _abort(self, entry: _Open) -> None:
        node = entry.node
        if node is not None:
            delay_s, job_id = self._network.engine_s, entry.job_id
            self._clock.after(delay_s, self._abort_there, job_id, entry.incarnation, node)

    def _abort_there(self, job_id: str, incarnation: int, node: SimulatedNode) -> None:
        if node.incarnation == incarnation:
            node.abort(job_id)

    def _end(
        self,
        entry: _Open,
        cause: EndCause,
        *,
        reason: Reason | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """A status of its own goes to the client where no byte of an answer has."""
        del self._open[entry.request.id]
        self._no_longer_held(entry.request.id)
        exchange, now_s = entry.exchange, self._clock.now_s
        began = exchange.first_byte_s is not None and cause is not EndCause.ENGINE_REFUSED
        status = 200 if began or reason is None else ANSWERS[reason].status
        outcome = exchange.ended(
            cause,
            now_s,
            status=status,
            streamed=entry.request.stream,
            prompt_tokens=entry.request.prompt.token_count,
            output_tokens=entry.output_tokens if cause is EndCause.FINISHED else None,
            cached_tokens=cached_tokens,
        )
        self.step(Settled(entry.request.id, self._measured(outcome)))
        answer = Answer(
            end=cause,
            reason=reason or ("" if cause is EndCause.FINISHED else cause),
            status=status,
            node="" if entry.node is None else entry.node.name,
            first_byte_s=exchange.first_byte_s,
            ended_s=now_s,
            cached_tokens=cached_tokens,
            placements=entry.placements,
        )
        entry.caller.answered(answer)

    def _measured(self, outcome: Outcome) -> Outcome:
        """What the scheduler is told of the times it learns from."""
        measured = self._knowledge.measured
        if measured.prefill == measured.decode == 1.0:
            return outcome
        return outcome.but(
            ttft_s=None if outcome.ttft_s is None else outcome.ttft_s * measured.prefill,
            decode_s=None if outcome.decode_s is None else outcome.decode_s * measured.decode,
        )

    # --- time --------------------------------------------------------------------------

    def _arm(self, due_s: float) -> None:
        """Tick at that time, unless a tick is due before."""
        if self._tick is not None:
            if self._tick.due_s <= due_s:
                return
            self._tick.cancel()
        self._tick = self._clock.at(due_s, self._ticked)

    def _arm_for_held(self) -> None:
        """Tick at the first deadline; only what is held has one."""
        deadline_s = self.scheduler.next_deadline_s()
        if deadline_s is not None:
            self._arm(max(deadline_s, self._clock.now_s + TICK_S_MIN))

    def _ticked(self) -> None:
        """At the next deadline of what is held, and as often as the scheduler service does while
        there are requests."""
        self._tick = None
        self.step(Tick())
        self._sweep()
        if self._open:
            self._arm(self._clock.now_s + TICK_S_MAX)
            self._arm_for_held()

    def _sweep(self) -> None:
        """End what has waited too long for its first token, or is too old. Streams are taken to
        be alive: chunks are not simulated, so nobody knows of a silence."""
        now_s = self._clock.now_s
        overdue = []
        for entry in self._open.values():  # in order of arrival
            exchange = entry.exchange
            if now_s - exchange.arrived_s < _TIMEOUTS.first_byte_s:
                break
            if exchange.first_byte_s is not None:
                exchange.progressed(now_s)
            if (reason := exchange.overdue(now_s)) is not None:
                overdue.append((entry, reason))
        for entry, reason in overdue:
            self._abort(entry)
            self._end(entry, EndCause.TIMEOUT, reason=reason)


def _job(entry: _Open, node: SimulatedNode) -> Job:
    prompt = entry.request.prompt
    assert prompt.token_count is not None, "traces count tokens"
    chain = prompt.chain(node.scheme)
    priority = node.priority(prompt.token_count, chain)
    return Job(entry.job_id, prompt.token_count, entry.output_tokens, chain, priority)
