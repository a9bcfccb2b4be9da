"""Answers of the gateway's own: errors in OpenAI's shape, CORS, and the bytes around them."""

from collections.abc import Sequence
from math import ceil, inf
from random import Random

import msgspec

from pointsman.core.admission.pressure import jittered_s
from pointsman.core.decision import Prospect
from pointsman.core.errors import ANSWERS, Reason
from pointsman.decoding import decoded_or_none
from pointsman.gateway.heads import RequestHead, status_line
from pointsman.wire.openai import error_body

NO_RETRY = b"x-should-retry: false\r\n"
"""OpenAI's and Anthropic's clients try 409, 429 and every 5xx again unless told this."""

JSON = b"content-type: application/json\r\n"
_EXPOSED = (
    b"x-request-id, x-pointsman-node, x-pointsman-policy, x-pointsman-reason, "
    b"x-pointsman-queue-position, x-pointsman-expected-wait-ms, "
    b"retry-after, retry-after-ms, x-should-retry, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A whole answer but for framing and request id. `lines` are header lines."""

    status: int
    body: bytes
    lines: bytes = JSON


def error_reply(
    reason: Reason,
    detail: str = "",
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after_s: float | None = None,
    rng: Random,
    allow: bytes = b"",
) -> Reply:
    """The answer that `reason` calls for. `detail` replaces the table's message.

    `retry_after_s` is jittered already, and is never shown where waiting does not help. Without it
    the table's is told, with jitter from `rng`: those who are turned away together are not to
    come back together.
    """
    answer = ANSWERS[reason]
    lines = [JSON, b"x-pointsman-reason: %b\r\n" % reason.encode()]
    if (floor_s := answer.retry_after_s) is not None:
        wait_s = jittered_s(floor_s, rng) if retry_after_s is None else max(floor_s, retry_after_s)
        lines.append(wait_lines(wait_s))
    if not answer.may_retry:
        lines.append(NO_RETRY)
    if answer.status == 401:
        lines.append(b"www-authenticate: Bearer\r\n")
    if allow:
        lines.append(b"allow: %b\r\n" % allow)
    body = error_body(detail or answer.message, answer.type, code or _code(reason), param)
    return Reply(answer.status, body, b"".join(lines))


def wait_lines(wait_s: float) -> bytes:
    """When to come again: in whole seconds for everybody, rounded up, and in milliseconds for
    OpenAI's clients, which go by them first: jitter would be lost on seconds."""
    return b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (ceil(wait_s), ceil(wait_s * 1_000))


def stream_error(reason: Reason, detail: str = "") -> bytes:
    """The same inside an event stream whose head is sent: an error event, then the end mark.

    OpenAI's clients raise on the first and stop at the second.
    """
    answer = ANSWERS[reason]
    return stream_error_of(error_body(detail or answer.message, answer.type, _code(reason), None))


def _code(reason: Reason) -> str:
    return ANSWERS[reason].code or reason.value


def stream_error_of(body: bytes) -> bytes:
    """An error body as events. What is no JSON of one line is not shown."""
    fields = decoded_or_none(_decode_fields, body)
    if fields is None:
        answer = ANSWERS[Reason.NODE_BROKEN]
        line = error_body(answer.message, answer.type, Reason.NODE_BROKEN.value, None)
    else:
        line = msgspec.json.encode(fields).translate(None, b"\r\n")
    return b"data: %b\n\ndata: [DONE]\n\n" % line


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def render(
    reply: Reply, head: RequestHead | None, *, request_id: str, extra: bytes, close: bool
) -> bytes:
    """The reply's bytes. `head` is None where none could be read."""
    no_body = head is not None and head.method == b"HEAD"
    parts = [
        status_line(reply.status),
        reply.lines,
        b"content-length: %d\r\n" % len(reply.body) if reply.status != 204 else b"",
        b"x-request-id: %b\r\n" % request_id.encode(),
        extra,
        persistence(head, close=close),
        b"\r\n",
        b"" if no_body else reply.body,
    ]
    return b"".join(parts)


def prospect_lines(prospect: Prospect | None) -> bytes:
    """What a request that had to wait, or could not, was foretold. A wait without end, or
    of which nothing is known, has no milliseconds."""
    if prospect is None:
        return b""
    lines = b"x-pointsman-queue-position: %d\r\n" % prospect.position
    if prospect.wait_s in (None, inf):
        return lines
    return lines + b"x-pointsman-expected-wait-ms: %d\r\n" % round(prospect.wait_s * 1_000)


def persistence(head: RequestHead | None, *, close: bool) -> bytes:
    """The connection line: HTTP/1.1 stays open unless told, HTTP/1.0 closes unless told."""
    if close:
        return b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if head is not None and head.is_http_10 else b""


class Cors:
    """Which browser origins may call, and the header lines that say so."""

    def __init__(self, origins: Sequence[str]) -> None:
        self.enabled = bool(origins)
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def lines(self, origin: bytes | None) -> bytes:
        """For an answer to a request from `origin`; empty where there is none to tell."""
        if origin is None or not self._allows(origin):
            return b""
        return b"%baccess-control-expose-headers: %b\r\n" % (self._allow_line(origin), _EXPOSED)

    def preflight(self, head: RequestHead, allow: bytes) -> Reply:
        """The answer to OPTIONS: without a key, since browsers send none with it."""
        lines = [b"allow: %b\r\n" % allow]
        if head.origin is not None and self._allows(head.origin):
            lines += (
                self._allow_line(head.origin),
                b"access-control-allow-methods: %b\r\n" % allow,
                b"access-control-allow-headers: %b\r\n"
                % (head.preflight_headers or b"authorization, content-type"),
                b"access-control-max-age: 600\r\n",
            )
        return Reply(204, b"", b"".join(lines))

    def _allows(self, origin: bytes) -> bool:
        return self._any or origin in self._origins

    def _allow_line(self, origin: bytes) -> bytes:
        if self._any:
            return b"access-control-allow-origin: *\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin
