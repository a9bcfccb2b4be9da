"""What became of one request, whether it was sent or simulated."""

from enum import StrEnum

import msgspec

DETAIL_LENGTH_MAX = 200
"""Long enough for an engine's message, too short for a body."""


class Outcome(StrEnum):
    """How a request ended. Everything but `ok` and `interrupted` is an error."""

    OK = "ok"
    HTTP_ERROR = "http_error"  # a status of 400 or more
    STREAM_ERROR = "stream_error"  # an error frame inside a stream that began with 200
    TRUNCATED = "truncated"  # the stream ended without a finish reason
    BAD_RESPONSE = "bad_response"  # not HTTP, or an event that is not the JSON of a completion
    CONNECT_ERROR = "connect_error"  # no connection: refused, unreachable, no such host
    DISCONNECTED = "disconnected"  # the connection died before any byte of the answer
    TIMEOUT = "timeout"  # not over within the total timeout
    INTERRUPTED = "interrupted"  # the user stopped the run


class RequestRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One line of a run. Times in seconds from the start of the run, durations from `due_s`.

    `due_s` is when the request should have been sent and the origin of `ttft_s` and `e2e_s`: a
    client that lags behind does not hide the wait (no coordinated omission). `sent_s - due_s` is
    the client's own lag. Counts are None where the engine did not report them. `cause` groups
    errors; `detail` is the message of this one. `tries` is how often the client sent it,
    `placements` how often an engine got it.
    """

    index: int
    due_s: float
    sent_s: float
    outcome: Outcome
    e2e_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    chunks: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    http_status: int | None = None
    cause: str = ""
    detail: str = ""
    node: str = ""
    request_id: str = ""
    session: str = ""
    turn: int = 0
    tenant: str = ""
    priority: int = 0
    part: str = ""
    tries: int = 1
    placements: int = 0

    @property
    def failed(self) -> bool:
        """Whether the request counts as an error; an interrupted one does not."""
        return self.outcome not in (Outcome.OK, Outcome.INTERRUPTED)

    @property
    def lag_s(self) -> float:
        """How late the client itself was."""
        return self.sent_s - self.due_s
