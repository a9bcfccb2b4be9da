"""Why a request was refused or broke, and what its client is told.

One table, `ANSWERS`, turns a `Reason` into status, OpenAI error type and retry hint. The
reason itself is the metric label, the log value and the `x-pointsman-reason` header alike.
"""

from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Why a client gets an answer of the gateway's own instead of an engine's."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    PRIORITY_NOT_ALLOWED = "priority_not_allowed"
    KEY_CONCURRENCY = "key_concurrency"
    KEY_REQUESTS = "key_requests"
    KEY_TOKENS = "key_tokens"
    KEY_REQUEST_TOO_LARGE = "key_request_too_large"
    MODEL_NOT_FOUND = "model_not_found"
    RESPONSE_NOT_FOUND = "response_not_found"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    BODY_TIMEOUT = "body_timeout"
    ENCODING_UNSUPPORTED = "encoding_unsupported"
    LOOP = "loop"
    CONNECTIONS_FULL = "connections_full"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    LOW_PRIORITY = "low_priority"
    DEADLINE = "deadline"
    RETRY_EARLY = "retry_early"
    RETRY_STORM = "retry_storm"
    SUPERSEDED = "superseded"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    PREEMPTED = "preempted"
    NO_NODE = "no_node"
    NO_MATCHING_NODE = "no_matching_node"
    DRAINING = "draining"
    NODE_BUSY = "node_busy"
    NODE_UNREACHABLE = "node_unreachable"
    NODE_CLOSED = "node_closed"
    NODE_BROKEN = "node_broken"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 - no password, a token of text
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    INTERNAL = "internal"


class Answer(msgspec.Struct, frozen=True):
    """What the client sees: HTTP status, OpenAI's error type, and whether waiting helps.

    `retry_after_s` is the floor of the `Retry-After` header; None means no such header.
    `code` is OpenAI's where it has one; None is the reason itself. `may_retry` is whether a
    client may try again on its own: not where engines may have worked for it already, nor where
    nothing will have changed.
    """

    status: int
    type: str
    message: str
    retry_after_s: int | None = None
    code: str | None = None
    may_retry: bool = True


_INVALID = "invalid_request_error"
_DENIED = "permission_error"
_LIMITED = "rate_limit_exceeded"
_RATE = "rate_limit_error"
_SERVER = "server_error"

ANSWERS: dict[Reason, Answer] = {
    Reason.BAD_REQUEST: Answer(400, _INVALID, "The request is malformed."),
    Reason.UNAUTHORIZED: Answer(
        401, _INVALID, "The API key is missing or unknown.", code="invalid_api_key"
    ),
    Reason.MODEL_NOT_ALLOWED: Answer(
        403, _DENIED, "The key may not use this model. GET /v1/models lists what it may use."
    ),
    Reason.PRIORITY_NOT_ALLOWED: Answer(403, _DENIED, "The key may not ask for this priority."),
    Reason.KEY_CONCURRENCY: Answer(
        429, "requests", "The key has too many requests in flight.", 1, _LIMITED
    ),
    Reason.KEY_REQUESTS: Answer(
        429, "requests", "The key's requests a minute are used up.", 1, _LIMITED
    ),
    Reason.KEY_TOKENS: Answer(429, "tokens", "The key's tokens a minute are used up.", 1, _LIMITED),
    Reason.KEY_REQUEST_TOO_LARGE: Answer(
        429,
        "tokens",
        "The request has more tokens than the key's minute.",
        code=_LIMITED,
        may_retry=False,
    ),
    Reason.MODEL_NOT_FOUND: Answer(
        404, _INVALID, "No such model. GET /v1/models lists what is served."
    ),
    Reason.RESPONSE_NOT_FOUND: Answer(
        404,
        _INVALID,
        "No engine is known to keep this response: it was not made through here with this key, "
        "its engine has restarted, or it is too long ago.",
    ),
    Reason.ROUTE_NOT_FOUND: Answer(
        404,
        _INVALID,
        "No such route. The API is under /v1, like POST /v1/chat/completions; metrics and state "
        "are on the admin port.",
    ),
    Reason.METHOD_NOT_ALLOWED: Answer(
        405, _INVALID, "The route does not allow this method. The allow header names those it has."
    ),
    Reason.BODY_TOO_LARGE: Answer(413, _INVALID, "The request body is too large."),
    Reason.HEAD_TOO_LARGE: Answer(431, _INVALID, "The request's header fields are too large."),
    Reason.BODY_TIMEOUT: Answer(408, _INVALID, "The request body did not arrive in time."),
    Reason.ENCODING_UNSUPPORTED: Answer(
        415, _INVALID, "The content encoding is not supported. Send identity or gzip."
    ),
    Reason.LOOP: Answer(
        508,
        _SERVER,
        "The request has been here before: the address of an engine leads back to this gateway.",
        may_retry=False,
    ),
    Reason.CONNECTIONS_FULL: Answer(429, _RATE, "The gateway has no free connection.", 1),
    Reason.QUEUE_FULL: Answer(429, _RATE, "The cluster is busy and its queue is full.", 1),
    Reason.QUEUE_TIMEOUT: Answer(429, _RATE, "The cluster stayed busy for too long.", 1),
    Reason.LOW_PRIORITY: Answer(
        429, _RATE, "The cluster is busy, and low priority has its share of it.", 2
    ),
    Reason.DEADLINE: Answer(
        429, _RATE, "The first token cannot come in the time that the request allows.", 1
    ),
    Reason.RETRY_EARLY: Answer(
        429, _RATE, "The request was refused and came back before its Retry-After.", 1
    ),
    Reason.RETRY_STORM: Answer(429, _RATE, "The client was refused and does not wait as told.", 1),
    Reason.SUPERSEDED: Answer(
        409,
        _INVALID,
        "A newer request with the same Idempotency-Key replaces this one.",
        may_retry=False,
    ),
    Reason.IDEMPOTENCY_CONFLICT: Answer(
        422,
        _INVALID,
        "Another request runs under this Idempotency-Key.",
        may_retry=False,
    ),
    Reason.PREEMPTED: Answer(429, _RATE, "More urgent requests needed the room.", 1),
    Reason.NO_NODE: Answer(503, _SERVER, "No engine for this model is up.", 5),
    Reason.NO_MATCHING_NODE: Answer(
        503, _SERVER, "No engine matches the request's pool or labels.", 5
    ),
    Reason.DRAINING: Answer(503, _SERVER, "The gateway is shutting down.", 1),
    Reason.NODE_BUSY: Answer(429, _RATE, "Every engine asked is busy.", 1),
    Reason.NODE_UNREACHABLE: Answer(503, _SERVER, "No engine could be reached.", 1),
    Reason.NODE_CLOSED: Answer(
        502, _SERVER, "The engine closed the connection.", 1, may_retry=False
    ),
    Reason.NODE_BROKEN: Answer(
        502, _SERVER, "The engine answered with a broken reply.", 1, may_retry=False
    ),
    Reason.FIRST_TOKEN_TIMEOUT: Answer(
        504, _SERVER, "The engine did not answer in time.", may_retry=False
    ),
    Reason.IDLE_TIMEOUT: Answer(504, _SERVER, "The engine's answer stalled.", may_retry=False),
    Reason.TOTAL_TIMEOUT: Answer(
        504, _SERVER, "The request took longer than allowed.", may_retry=False
    ),
    Reason.INTERNAL: Answer(
        500, _SERVER, "The gateway failed. Quote the x-request-id.", may_retry=False
    ),
}

assert set(ANSWERS) == set(Reason), "every reason has an answer"


class FailureKind(StrEnum):
    """How an attempt on a node ended before its first byte reached the client."""

    UNREACHABLE = "unreachable"  # no connection
    CLOSED = "closed"  # connection died before a reply
    TIMEOUT = "timeout"  # no first byte in time
    BUSY = "busy"  # 429, or 503 from the engine's queue limit
    ERROR = "error"  # any other 5xx
    BROKEN = "broken"  # not HTTP
    RECALLED = "recalled"  # none: the scheduler took it back


FAILURE_REASONS: dict[FailureKind, Reason] = {
    FailureKind.UNREACHABLE: Reason.NODE_UNREACHABLE,
    FailureKind.CLOSED: Reason.NODE_CLOSED,
    FailureKind.TIMEOUT: Reason.FIRST_TOKEN_TIMEOUT,
    FailureKind.BUSY: Reason.NODE_BUSY,
    FailureKind.ERROR: Reason.NODE_BROKEN,
    FailureKind.BROKEN: Reason.NODE_BROKEN,
    FailureKind.RECALLED: Reason.PREEMPTED,
}
"""What the client is told when an attempt failed and no other may be made."""

FAILURE_WORDS: dict[FailureKind, str] = {
    FailureKind.UNREACHABLE: "nobody answers there",
    FailureKind.CLOSED: "it closes connections without an answer, or in the middle of one",
    FailureKind.TIMEOUT: "no first byte in time (timeouts.first_byte_s)",
    FailureKind.BUSY: "it says that it is busy",
    FailureKind.ERROR: "it answers with an error of its own (5xx)",
    FailureKind.BROKEN: "its answers are not HTTP",
    FailureKind.RECALLED: "taken back",
}
"""What an operator is told of a node on which attempts failed like this."""


class EndCause(StrEnum):
    """How a request ended, for logs, metrics and the ledger."""

    FINISHED = "finished"
    CLIENT_GONE = "client_gone"
    REFUSED = "refused"
    ENGINE_REFUSED = "engine_refused"  # a 4xx or 429/503 of the engine's, passed on
    ENGINE_ERROR = "engine_error"  # a 5xx, or an error frame inside the stream
    TRUNCATED = "truncated"  # the engine's answer broke off
    TIMEOUT = "timeout"
