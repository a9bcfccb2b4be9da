"""The life of one client request: which steps are allowed, what may be tried, when it is late.

The gateway reports what happened; an exchange says whether that may happen, whether another
node may be tried, and until when it will wait. It ends exactly once, with an `Outcome`.

`TRANSITIONS` is the whole machine, and docs/exchange.md draws it from there. A step that is
not in it raises `IllegalTransition`, after which the exchange is settled for good.
"""

from enum import StrEnum
from typing import Final

from pointsman.core.admission.retry_budget import may_go_on
from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.ids import RequestId
from pointsman.core.request import Outcome
from pointsman.core.rules import RetryRules, Timeouts


class State(StrEnum):
    """Where a request is. A state says what is waited for."""

    RECEIVED = "received"  # the scheduler's first word
    QUEUED = "queued"  # a node: held by the scheduler, or after a failed or recalled attempt
    PLACED = "placed"  # a connection to the node
    DIALLED = "dialled"  # the first byte of the node's answer
    STREAMING = "streaming"  # the rest of the answer
    SETTLED = "settled"  # nothing


class Step(StrEnum):
    """What moves a request on. What ends it is an `EndCause`."""

    HOLD = "hold"
    PLACE = "place"
    DIAL = "dial"
    REDIAL = "redial"
    FAIL = "fail"
    RECALL = "recall"
    START = "start"


_ABANDONED: dict[Step | EndCause, State] = {
    EndCause.REFUSED: State.SETTLED,
    EndCause.CLIENT_GONE: State.SETTLED,
    EndCause.TIMEOUT: State.SETTLED,
}
_ANSWERED_WITH_ERROR: dict[Step | EndCause, State] = {
    EndCause.ENGINE_REFUSED: State.SETTLED,
    EndCause.ENGINE_ERROR: State.SETTLED,
}

TRANSITIONS: Final[dict[State, dict[Step | EndCause, State]]] = {
    State.RECEIVED: {Step.HOLD: State.QUEUED, Step.PLACE: State.PLACED, **_ABANDONED},
    # After a failed attempt the node's own answer may be what the client gets.
    State.QUEUED: {
        Step.HOLD: State.QUEUED,
        Step.PLACE: State.PLACED,
        **_ANSWERED_WITH_ERROR,
        **_ABANDONED,
    },
    State.PLACED: {
        Step.DIAL: State.DIALLED,
        Step.FAIL: State.QUEUED,
        Step.RECALL: State.QUEUED,
        **_ABANDONED,
    },
    State.DIALLED: {
        Step.START: State.STREAMING,
        Step.REDIAL: State.PLACED,
        Step.FAIL: State.QUEUED,
        Step.RECALL: State.QUEUED,
        **_ABANDONED,
    },
    State.STREAMING: {
        EndCause.FINISHED: State.SETTLED,
        EndCause.TRUNCATED: State.SETTLED,
        EndCause.CLIENT_GONE: State.SETTLED,
        EndCause.TIMEOUT: State.SETTLED,
        **_ANSWERED_WITH_ERROR,
    },
    State.SETTLED: {},
}


# Python 3.11 takes 0.1 us to look an enum's member up and a tenth of that for a global.
_RECEIVED: Final = State.RECEIVED
_STREAMING: Final = State.STREAMING
_SETTLED: Final = State.SETTLED
_HOLD: Final = Step.HOLD
_PLACE: Final = Step.PLACE
_DIAL: Final = Step.DIAL
_START: Final = Step.START


_RETRIES: Final = RetryRules()


class IllegalTransition(Exception):  # noqa: N818 - names what happened
    """A step that the table does not allow: a bug of the driver's."""


class Exchange:
    """One request from its arrival (`now_s`) on. Every method that takes a step raises
    IllegalTransition if the step is not allowed. Not shared: its handler owns it."""

    attempts = 0
    outcome: Outcome | None = None
    placed_s: float | None = None
    dialled_s: float | None = None
    first_byte_s: float | None = None
    ended_s: float | None = None
    _failed_attempts = 0
    _busy_attempts = 0

    def __init__(
        self,
        request_id: RequestId,
        timeouts: Timeouts,
        now_s: float,
        retries: RetryRules = _RETRIES,
    ) -> None:
        self.request_id = request_id
        self._retries = retries
        self.state = _RECEIVED
        self.arrived_s = self.waits_since_s = now_s
        self._timeouts = timeouts
        self._total_deadline_s = now_s + timeouts.total_s
        self._deadline_s = self._total_deadline_s

    # --- steps --------------------------------------------------------------------------

    def held(self) -> None:
        """The scheduler holds the request in its queue."""
        self._step(_HOLD)

    def placed(self, now_s: float) -> None:
        """The scheduler chose a node. Needs `may_be_placed`."""
        assert self.may_be_placed, f"{self.request_id}: {self.attempts} attempts are enough"
        self._step(_PLACE)
        self.attempts += 1
        if self.placed_s is None:
            self.placed_s = now_s
        self._wait(now_s, self._timeouts.connect_s)

    def dialled(self, now_s: float) -> None:
        """The request is on its way to the node."""
        self._step(_DIAL)
        self.dialled_s = now_s
        self._wait(now_s, self._timeouts.first_byte_s)

    def redialled(self, now_s: float) -> None:
        """The node had closed the reused connection: the same attempt, on a fresh one."""
        self._step(Step.REDIAL)
        self._wait(now_s, self._timeouts.connect_s)

    def failed(self, kind: FailureKind) -> None:
        """The attempt is over and no byte of it reached the client."""
        self._step(Step.FAIL)
        if kind is FailureKind.BUSY:
            self._busy_attempts += 1
        else:
            self._failed_attempts += 1
        self._deadline_s = self._total_deadline_s

    def recalled(self) -> None:
        """The scheduler takes the attempt back, which was nobody's fault. Needs
        `may_be_recalled`."""
        self._step(Step.RECALL)
        self._deadline_s = self._total_deadline_s

    def started(self, now_s: float) -> None:
        """The first byte of the answer goes to the client: no other node may be tried."""
        self._step(_START)
        self.first_byte_s = now_s
        self._wait(now_s, self._timeouts.idle_s)

    def progressed(self, now_s: float) -> None:
        """Bytes of the answer have passed."""
        self._wait(now_s, self._timeouts.idle_s)

    def ended(
        self,
        cause: EndCause,
        now_s: float,
        *,
        status: int | None = None,
        streamed: bool = False,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        streamed_tokens: int = 0,
        first_tokens: int = 0,
        response_id: str = "",
    ) -> Outcome:
        """The request is over. Fields as in `Outcome`."""
        self._step(cause)
        self.ended_s = now_s
        self.outcome = Outcome(
            end=cause,
            streamed=streamed,
            ttft_s=_between(self.dialled_s, self.first_byte_s),
            decode_s=_between(self.first_byte_s, now_s),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            streamed_tokens=streamed_tokens,
            first_tokens=first_tokens,
            status=status,
            response_id=response_id,
        )
        return self.outcome

    # --- questions ----------------------------------------------------------------------

    @property
    def may_be_placed(self) -> bool:
        """Whether the request may go to a (further) node."""
        if self.state is _STREAMING or self.state is _SETTLED:
            return False
        return may_go_on(self._retries, failed=self._failed_attempts, busy=self._busy_attempts)

    @property
    def may_be_recalled(self) -> bool:
        """Whether there is an attempt, and no byte of its answer."""
        return Step.RECALL in TRANSITIONS[self.state]

    def deadline_s(self) -> float:
        """When the present state will have lasted too long."""
        return self._deadline_s

    def overdue(self, now_s: float) -> Reason | None:
        """Which bound has passed, None if none has.

        NODE_UNREACHABLE is a failed attempt, after which another node may be tried.
        """
        if now_s < self._deadline_s or self.state is _SETTLED:
            return None
        if now_s >= self._total_deadline_s:
            return Reason.TOTAL_TIMEOUT
        return _OVERDUE[self.state]

    @property
    def queue_s(self) -> float | None:
        """From arrival to the first placement; None if there was none."""
        return _between(self.arrived_s, self.placed_s)

    # --- helpers ------------------------------------------------------------------------

    def _step(self, step: Step | EndCause) -> None:
        following = TRANSITIONS[self.state].get(step)
        if following is None:
            state, self.state = self.state, _SETTLED
            raise IllegalTransition(f"{self.request_id}: {step} while {state}")
        self.state = following

    def _wait(self, now_s: float, stage_s: float) -> None:
        self.waits_since_s = now_s
        deadline_s, total_s = now_s + stage_s, self._total_deadline_s
        self._deadline_s = deadline_s if deadline_s < total_s else total_s


_OVERDUE: Final[dict[State, Reason]] = {
    State.PLACED: Reason.NODE_UNREACHABLE,
    State.DIALLED: Reason.FIRST_TOKEN_TIMEOUT,
    State.STREAMING: Reason.IDLE_TIMEOUT,
}


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
