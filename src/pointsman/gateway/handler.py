"""One client request from its last byte to its settlement.

Drives one `Exchange`: asks the placer, dials, has the reply relayed, tries another node where it
may, and settles once from every state. All in callbacks on the loop's thread; nothing is awaited.
"""

import logging
from typing import Final, assert_never

from pointsman.core.errors import FAILURE_REASONS, EndCause, FailureKind, Reason
from pointsman.core.exchange import Exchange, State
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Held, Placed, Recalled, Refused, Verdict
from pointsman.gateway.answer import Answer, EngineAnswer
from pointsman.gateway.arrival import Arrival
from pointsman.gateway.attempts import (
    error_cause,
    error_verdict,
    failure_kind,
    is_of_our_making,
    is_too_long,
    keeps_answer,
    reply_cause,
)
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.keys import Key
from pointsman.gateway.pools import Dial
from pointsman.gateway.record import ended, exchange_record
from pointsman.gateway.relay import Relay
from pointsman.gateway.routing import RequestRefused
from pointsman.gateway.shared import Client, Shared
from pointsman.gateway.upstream import NodePool, UpstreamConnection
from pointsman.wire.endpoints import Endpoint
from pointsman.wire.openai import BadRequest

log = logging.getLogger(__name__)

# Python 3.11 takes 0.1 us to look an enum's member up and a tenth of that for a global.
_SETTLED: Final = State.SETTLED
_NEVER_S: Final = float("inf")


class Handler:
    """Handles one request of one client; is the `Caller` of its engine connections."""

    _owes_settlement = False
    _redialled = False
    _swept_bytes = 0  # that were relayed up to the last sweep
    _placed: Placed | None = None
    _dial: Dial | None = None
    _upstream: UpstreamConnection | None = None
    _kept_answer: EngineAnswer | None = None
    _last_failure: FailureKind | None = None
    _relay: Relay | None = None

    def __init__(
        self,
        shared: Shared,
        client: Client,
        head: RequestHead,
        endpoint: Endpoint,
        key: Key | None = None,
    ) -> None:
        now_s = shared.now_s()
        request_id = shared.request_id(head.request_id)
        self._shared = shared
        self._client = client
        self._head = head
        self._exchange = Exchange(
            request_id, shared.options.timeouts, now_s, shared.options.retries
        )
        self._arrival = Arrival(shared, client, head, endpoint, key)
        self._answer = Answer(shared, client.transport, head, request_id, key)
        self._quiet_since_s = now_s
        self._comment_every_s = shared.options.sse_comment_s or _NEVER_S
        shared.live[request_id] = self

    def start(self, body: bytes) -> None:
        """Take the request up. It may be over when this returns."""
        if self._arrival.decode(body, self):
            self.read()

    def read(self) -> None:
        try:
            request = self._arrival.read(self._exchange.request_id)
        except RequestRefused as refused:
            self._refuse(refused.reason, refused.detail, retry_after_s=refused.wait_s)
        except BadRequest as bad:
            self._refuse(Reason.BAD_REQUEST, bad.message, param=bad.param, code=bad.code)
        else:
            self._arrival.tokenize(request, self._arrive, self.crashed)

    def _arrive(self, request: Request) -> None:
        """Its prompt is known as well as it can be: ask for a node."""
        self._owes_settlement = True
        self._arrival.ask(request, self.on_verdict)

    # --- the placer's word --------------------------------------------------------------

    def on_verdict(self, verdict: Verdict) -> None:
        """The scheduler's answer; one that comes after the end is void."""
        if self._exchange.state is _SETTLED:
            return
        try:
            self._answer.heard(verdict)
            match verdict:
                case Placed():
                    self._place(verdict)
                case Held():
                    self._exchange.held()
                case Refused():
                    self._refused(verdict)
                case Recalled():
                    self._recalled(verdict)
                case _:
                    assert_never(verdict)
        except Exception:  # the driver's outermost loop: the placer must not see our bugs
            log.exception("a verdict on %s could not be carried out", self._exchange.request_id)
            self.crashed()

    def _place(self, placed: Placed) -> None:
        exchange = self._exchange
        if not exchange.may_be_placed:
            self._pay(Outcome(end=EndCause.REFUSED))  # this node has not run it
            self._give_up(None)
            return
        self._placed = placed
        now_s = self._shared.now_s()
        exchange.placed(now_s)
        self._redialled = False
        pools = self._shared.pools
        pool = pools.node(placed.node_id, placed.url)
        if (upstream := pool.take(now_s)) is None:
            self._dial = pools.dial(pool, self)
        else:
            self._send(upstream, now_s)

    def _refused(self, refused: Refused) -> None:
        self._owes_settlement = False
        if self._last_failure is None:
            self._refuse(refused.reason, refused.detail, retry_after_s=refused.retry_after_s)
        else:
            self._give_up(refused)

    def _recalled(self, recalled: Recalled) -> None:
        """Give the attempt back, unless it is void: the first byte won, or it failed."""
        assert self._placed is not None, "only what is placed is recalled"
        if self._placed.node_id != recalled.node_id:
            return
        if self._exchange.may_be_recalled:
            self._drop_engine()
            self._exchange.recalled()
            self._arrival.placer.failed(self._exchange.request_id, FailureKind.RECALLED)
        elif recalled.breaks and self._relay is not None:
            self._drop_engine()
            self._break_off(EndCause.TRUNCATED, Reason.PREEMPTED)

    def _give_up(self, refused: Refused | None) -> None:
        """No further node: the client gets the last engine's answer, or what went wrong."""
        failure, kept = self._last_failure, self._kept_answer
        assert failure is not None, "only a failed attempt leads here"
        retry_after_s = None if refused is None else refused.retry_after_s
        if kept is None:
            detail = "" if refused is None else refused.detail
            self._refuse(FAILURE_REASONS[failure], detail, retry_after_s=retry_after_s)
        else:
            self._pass_on(kept, retry_after_s)

    def _pass_on(self, kept: EngineAnswer, retry_after_s: float | None = None) -> None:
        self._answer.pass_on_error(kept, retry_after_s)
        self._end(error_cause(kept.status), FAILURE_REASONS[kept.kind])
        self._client.answered(close=self._answer.closes)

    # --- attempts: what engine connections say ------------------------------------------

    def dialled(self, upstream: UpstreamConnection) -> None:
        self._send(upstream, self._shared.now_s())

    def unreachable(self, *, is_ours: bool) -> None:
        self._dial = None
        if is_ours:  # no node's fault, and none would be reached
            self._refuse(Reason.CONNECTIONS_FULL)
        else:
            self._attempt_failed(FailureKind.UNREACHABLE)

    def reply_progressed(self, upstream: UpstreamConnection) -> None:
        if self._relay is not None:
            if upstream.complete:
                self._relay.finish(upstream.take())
                self._finished(upstream)
            elif upstream.pieces:
                self._relay.pass_on(upstream.take())
        elif upstream.has_head:
            is_promised = self._answer.relay is not None
            if keeps_answer(upstream, self._shared.options, is_promised=is_promised):
                self._answering_with_error(upstream)
            elif upstream.pieces or upstream.complete:
                self._open(upstream)

    def reply_lost(self, upstream: UpstreamConnection, *, is_http: bool) -> None:
        self._upstream = None
        kind = FailureKind.CLOSED if is_http else FailureKind.BROKEN
        if self._relay is not None:
            self._break_off(EndCause.TRUNCATED, FAILURE_REASONS[kind])
        elif upstream.is_reused and not upstream.has_bytes and not self._redialled:
            self._redial(upstream.pool)
        else:
            self._attempt_failed(kind)

    def crashed(self) -> None:
        """A bug: end in whatever state it is, so that nothing leaks."""
        self._drop_engine()
        if self._exchange.outcome is None:
            cause = EndCause.REFUSED if self._relay is None else EndCause.TRUNCATED
            outcome = Outcome(end=cause, status=500)
            self._settle(outcome)
            self._tell(outcome, Reason.INTERNAL)
        is_untold = self._answer.status is None
        if is_untold:
            self._answer.refuse(self._shared.refusal(Reason.INTERNAL), Reason.INTERNAL)
        self._client.answered(close=True)
        if not is_untold:
            self._client.abort()

    # --- attempts: what we do -----------------------------------------------------------

    def _send(self, upstream: UpstreamConnection, now_s: float) -> None:
        self._dial, self._upstream = None, upstream
        self._exchange.dialled(now_s)
        head = self._arrival.engine_head(upstream.pool, self._exchange.request_id)
        upstream.send(self, head, self._arrival.body)

    def _redial(self, pool: NodePool) -> None:
        """The engine closed the reused connection as we wrote to it; nothing was answered."""
        self._redialled = True
        self._exchange.redialled(self._shared.now_s())
        self._dial = self._shared.pools.dial(pool, self)

    def _attempt_failed(self, kind: FailureKind, kept: EngineAnswer | None = None) -> None:
        self._last_failure = kind
        if kept is not None:
            self._kept_answer = kept
        self._exchange.failed(kind)
        self._arrival.placer.failed(self._exchange.request_id, kind)

    def _answering_with_error(self, upstream: UpstreamConnection) -> None:
        if upstream.complete:
            self._answered_with_error(upstream)
        elif is_too_long(upstream, self._shared.options):
            self._drop_engine()
            self._attempt_failed(FailureKind.BROKEN)

    def _answered_with_error(self, upstream: UpstreamConnection) -> None:
        options = self._shared.options
        is_failure, status = error_verdict(upstream, options)
        is_ours = is_of_our_making(upstream, options)
        body = upstream.take()
        kind = failure_kind(upstream, body)
        kept = EngineAnswer(status, upstream.headers, body, kind)
        self._upstream = None
        upstream.release(self._shared.now_s())
        if is_failure:
            self._attempt_failed(kind, None if is_ours else kept)
        else:
            self._exchange.started(self._shared.now_s())
            self._pass_on(kept)

    def _open(self, upstream: UpstreamConnection) -> None:
        """The first byte is here: from now on it is this node or none."""
        assert self._placed is not None
        self._exchange.started(self._shared.now_s())
        self._arrival.forget_body()
        self._relay = self._answer.open(upstream, self._placed, upstream.take())
        if upstream.complete:
            self._finished(upstream)
            return
        if self._client.is_paused:  # it has yet to read the answer before this one
            self.client_paused()
        if upstream.status < 400:
            self._arrival.placer.started(self._exchange.request_id)

    def _finished(self, upstream: UpstreamConnection) -> None:
        """The reply is relayed whole."""
        assert self._relay is not None
        self._upstream = None
        cause = reply_cause(upstream.status, self._relay.scanner)
        upstream.release(self._shared.now_s())
        self._end(cause)
        self._client.answered(close=self._answer.closes)

    # --- the client's side --------------------------------------------------------------

    def client_gone(self) -> None:
        """The client left: whatever runs for it ends here, at once."""
        self._drop_engine()
        self._end(EndCause.CLIENT_GONE)

    def client_paused(self) -> None:
        """The client reads slower than the engine writes."""
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def client_resumed(self) -> None:
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    def cut_off(self, reason: Reason) -> None:
        """End now: what has begun breaks off, what has not is refused."""
        self._drop_engine()
        if self._relay is None:
            self._answer.closes = True
            self._refuse(reason)
        else:
            self._break_off(EndCause.TRUNCATED, reason)

    # --- time ---------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Look at the deadline, and break the silence of a stream."""
        if (relay := self._relay) is not None and relay.bytes_out != self._swept_bytes:
            self._swept_bytes = relay.bytes_out
            self._exchange.progressed(now_s)
            self._quiet_since_s = now_s
        elif self._arrival.wants_stream and now_s - self._quiet_since_s >= self._comment_every_s:
            self._quiet_since_s = now_s
            self._answer.comment()
        if (reason := self._exchange.overdue(now_s)) is not None:
            self._overdue(reason)
        elif (upstream := self._upstream) is not None and not self._client.is_paused:
            silent_s = now_s - self._exchange.waits_since_s
            if self._shared.lookout.is_deserted(upstream.pool, now_s, silent_s):
                upstream.abort()
                self.reply_lost(upstream, is_http=True)

    def _overdue(self, reason: Reason) -> None:
        self._drop_engine()
        if reason is Reason.NODE_UNREACHABLE:
            self._attempt_failed(FailureKind.UNREACHABLE)
        elif self._relay is None:
            self._refuse(reason, cause=EndCause.TIMEOUT)
        else:
            self._break_off(EndCause.TIMEOUT, reason)

    # --- the end ------------------------------------------------------------------------

    def _refuse(
        self,
        reason: Reason,
        detail: str = "",
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        cause: EndCause = EndCause.REFUSED,
    ) -> None:
        reply = self._shared.refusal(
            reason, detail, param=param, code=code, retry_after_s=retry_after_s
        )
        self._answer.refuse(reply, reason, detail)
        self._end(cause, reason)
        self._client.answered(close=self._answer.closes)

    def _break_off(self, cause: EndCause, reason: Reason) -> None:
        self._answer.break_off(reason)
        self._end(cause, reason)
        self._client.answered(close=True)

    def _end(self, cause: EndCause, reason: Reason | None = None) -> None:
        relay, status = self._relay, self._answer.status
        told = relay if self._arrival.reads_usage else None
        outcome = ended(self._exchange, cause, self._shared.now_s(), status=status, relay=told)
        self._settle(outcome)
        self._tell(outcome, reason)

    def _tell(self, outcome: Outcome, reason: Reason | None) -> None:
        if self._shared.observer is not None:
            bytes_out = 0 if self._relay is None else self._relay.bytes_out
            record = exchange_record(
                self._exchange, outcome, reason, self._arrival, self._placed, bytes_out=bytes_out
            )
            self._shared.observer.exchange_ended(record)

    def _settle(self, outcome: Outcome) -> None:
        """Give back what the request holds, each thing once."""
        self._arrival.leave(outcome)
        self._shared.ended(self._exchange.request_id)
        self._pay(outcome)

    def _pay(self, outcome: Outcome) -> None:
        if self._owes_settlement:
            self._owes_settlement = False
            self._arrival.placer.settle(self._exchange.request_id, outcome)

    def _drop_engine(self) -> None:
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
