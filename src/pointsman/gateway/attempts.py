"""One try on one node: the head that is sent, and what a bad answer means."""

from typing import Final

from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.ids import RequestId
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.options import GatewayOptions
from pointsman.gateway.relay import is_event_stream
from pointsman.gateway.upstream import NodePool, UpstreamConnection
from pointsman.wire.sse import SseScanner

_ERROR_EVENTS: Final = (b'data: {"error":', b'data: {"object":"error"')
_TOO_LONG: Final = (b"maximum context length", b"maximum model length", b"context_length_exceeded")
_FINISHED: Final = EndCause.FINISHED  # Python 3.11 takes 0.1 us to look an enum's member up
_BAD_REQUEST: Final = 400
_UNAUTHORIZED: Final = 401  # and one of `HTTPStatus` a microsecond
_BUSY_WORDS: Final = (b"busy", b"queue", b"overload", b"capacity", b"saturated")
_NO_SUCH_RANK: Final = b"data_parallel_rank"  # vLLM names it so where it refuses one


def engine_head(
    head: RequestHead,
    pool: NodePool,
    request_id: RequestId,
    body_bytes: int,
    *,
    priority_lines: bytes,
    authorizes: bool,
) -> bytes:
    """The request's head for a node: its own host, our framing, the client's other fields."""
    lines = [
        b"%b %b HTTP/1.1\r\n" % (head.method, head.target),
        pool.own_lines,
        *head.forward,
        pool.via_line,
        b"x-request-id: %b\r\n" % request_id.encode(),
        priority_lines,
    ]
    if body_bytes or head.method == b"POST":
        lines.append(b"content-length: %d\r\n" % body_bytes)
    if head.rank and not pool.has_rank:
        lines.append(b"x-data-parallel-rank: %b\r\n" % head.rank)
    if head.content_type:
        lines.append(b"content-type: %b\r\n" % head.content_type)
    lines += pool.key_line or _client_keys(head, authorizes=authorizes), b"\r\n"
    return b"".join(lines)


def _client_keys(head: RequestHead, *, authorizes: bool) -> bytes:
    """The keys that the client sent, for an engine whose key we do not know."""
    lines = b""
    if authorizes and head.authorization is not None:
        lines += b"authorization: %b\r\n" % head.authorization
    if authorizes and head.api_key:
        lines += b"x-api-key: %b\r\n" % head.api_key
    return lines


def is_retriable(status: int) -> bool:
    """Whether another node may do better. A 4xx is the client's to mend."""
    return status == 429 or status >= 500


def is_stillborn(upstream: UpstreamConnection) -> bool:
    """Whether a 200 is an error all the same, told before anything else: vLLM answers so to
    streams that still wait in it when it is shut down or its core dies."""
    return (
        bool(upstream.pieces)
        and upstream.status == 200
        and is_event_stream(upstream.content_type)
        and upstream.pieces[0].startswith(_ERROR_EVENTS)
    )


def is_of_our_making(upstream: UpstreamConnection, options: GatewayOptions) -> bool:
    """Whether it refuses what we have added: no client could do better there, nor is to be told.
    Such an engine answers at once, and would draw all requests."""
    return _wants_our_key(upstream, options) or _lacks_rank(upstream)


def _wants_our_key(upstream: UpstreamConnection, options: GatewayOptions) -> bool:
    if upstream.status != _UNAUTHORIZED:
        return False
    return bool(upstream.pool.key_line) or not options.forwards_authorization


def _lacks_rank(upstream: UpstreamConnection) -> bool:
    """Its server has fewer data-parallel ranks by now, and we have yet to find out."""
    if upstream.status != _BAD_REQUEST or not upstream.pool.has_rank:
        return False
    return any(_NO_SUCH_RANK in piece for piece in upstream.pieces)


def error_verdict(upstream: UpstreamConnection, options: GatewayOptions) -> tuple[bool, int]:
    """Whether another node may do better than this error, which is here as a whole, and the
    status that its client is to see. vLLM used to say 500 of a prompt that is too long: clients
    would send it again and again, and engines look broken."""
    if upstream.status == 500 and _says_too_long(b"".join(upstream.pieces).lower()):
        return False, 400
    return _is_nodes_failure(upstream, options), upstream.status


def _says_too_long(said: bytes) -> bool:
    return any(words in said for words in _TOO_LONG)


def keeps_answer(
    upstream: UpstreamConnection, options: GatewayOptions, *, is_promised: bool
) -> bool:
    """Whether another node may save the client from this answer, or it must be told in-band:
    a stream `is_promised` already and this is none."""
    is_failure = _is_nodes_failure(upstream, options)
    if is_promised:
        is_stream = upstream.status == 200 and is_event_stream(upstream.content_type)
        return is_failure or not is_stream
    is_ours = is_of_our_making(upstream, options)
    return is_failure and (is_ours or not is_too_long(upstream, options))


def _is_nodes_failure(upstream: UpstreamConnection, options: GatewayOptions) -> bool:
    return (
        is_retriable(upstream.status)
        or is_stillborn(upstream)
        or is_of_our_making(upstream, options)
    )


def is_too_long(upstream: UpstreamConnection, options: GatewayOptions) -> bool:
    """Whether an error's body is longer than what is kept of one."""
    return sum(map(len, upstream.pieces)) > options.error_bytes_max


def failure_kind(upstream: UpstreamConnection, body: bytes) -> FailureKind:
    """Busy or broken. A 503 is both: vLLM's queue limit and a model that is still loading."""
    if upstream.status == 429:
        return FailureKind.BUSY
    if upstream.status == 503:
        said = body.lower()
        if any(name.lower() == b"retry-after" for name, _ in upstream.headers) or any(
            word in said for word in _BUSY_WORDS
        ):
            return FailureKind.BUSY
    return FailureKind.ERROR


def reply_cause(status: int, scanner: SseScanner | None) -> EndCause:
    """How an exchange ends whose reply is relayed whole."""
    if status >= 400:
        return error_cause(status)
    if scanner is not None and scanner.error is not None:
        return EndCause.ENGINE_ERROR
    return _FINISHED


def error_cause(status: int) -> EndCause:
    """How an exchange ends whose client gets this status from an engine."""
    is_refusal = 400 <= status < 500 or status == 503
    return EndCause.ENGINE_REFUSED if is_refusal else EndCause.ENGINE_ERROR
