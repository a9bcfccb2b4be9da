"""What one client gets: an engine's answer relayed, or one of the gateway's own.

Knows how much is sent already, and so in which form bad news can still be told: as an answer
with a status, as an event in the stream, or only by cutting the connection.
"""

import asyncio
from typing import Final, NamedTuple

from pointsman.core.decision import Prospect
from pointsman.core.errors import FAILURE_REASONS, FailureKind, Reason
from pointsman.core.ids import RequestId
from pointsman.core.request_events import Held, Placed, Refused, Verdict
from pointsman.gateway.heads import STREAM_LINES, Header, RequestHead, reply_pieces, status_line
from pointsman.gateway.keys import Key
from pointsman.gateway.relay import Framing, Relay, framing_line, is_event_stream, reset
from pointsman.gateway.replies import (
    NO_RETRY,
    Reply,
    persistence,
    prospect_lines,
    render,
    stream_error,
    stream_error_of,
    wait_lines,
)
from pointsman.gateway.shared import Shared
from pointsman.gateway.upstream import UpstreamConnection

_EARLY_STREAM: Final = b"content-type: text/event-stream; charset=utf-8\r\n" + STREAM_LINES
_LENGTH: Final = Framing.LENGTH
_BODILESS: Final = frozenset({204, 304})


class EngineAnswer(NamedTuple):
    """An engine's error answer, kept while another node is asked."""

    status: int
    headers: list[Header]
    body: bytes
    kind: FailureKind


class Answer:
    """The answer to one request. `closes` is whether the connection ends with it; `status`
    is what the client was told, None before that."""

    def __init__(
        self,
        shared: Shared,
        transport: asyncio.Transport,
        head: RequestHead,
        request_id: RequestId,
        key: Key | None,
    ) -> None:
        self.relay: Relay | None = None
        self.status: int | None = None
        self.closes = not head.keep_alive
        self._shared = shared
        self._transport = transport
        self._head = head
        self._request_id = request_id
        self._key = key
        self._prospect: Prospect | None = None

    def heard(self, verdict: Verdict) -> None:
        """Remember what a request that had to wait was foretold: its answer tells of it."""
        match verdict:
            case Held(decision=decision) | Refused(decision=decision):
                self._prospect = decision.prospect or self._prospect

    # --- the engine's answer ------------------------------------------------------------

    def open(self, upstream: UpstreamConnection, placed: Placed, body: bytes) -> Relay:
        """Send the head of the engine's answer with its first bytes; with its last, too, if
        it is complete."""
        is_stream = is_event_stream(upstream.content_type)
        if self.relay is not None:  # the stream began with a comment
            self._follow_on(self.relay, upstream, body)
            upstream.passes_chunks_to(self.relay)
            return self.relay
        self.status = upstream.status
        framing, length = self._framing(upstream, len(body))
        relay = self.relay = Relay(self._transport, framing)
        self._look_along(relay, upstream, is_stream=is_stream)
        lines = self._engines_lines(upstream.headers, is_stream=is_stream)
        if is_stream:
            lines.append(STREAM_LINES)
        if upstream.status not in _BODILESS:
            lines.append(framing_line(framing, length))
        relay.open(self._rendered(upstream.status, lines, placed), body, is_whole=upstream.complete)
        upstream.passes_chunks_to(relay)
        return relay

    def pass_on_error(self, answer: EngineAnswer, retry_after_s: float | None) -> None:
        """Give the client what the last engine said."""
        if self.relay is not None:
            self._fail_stream(stream_error_of(answer.body if answer.status >= 400 else b""))
            return
        self.status = answer.status
        lines = self._engines_lines(answer.headers, is_stream=False)
        reason = FAILURE_REASONS[answer.kind]
        if answer.status in (429, 503):
            if not _has(answer.headers, b"retry-after"):
                lines.append(wait_lines(max(1.0, retry_after_s or 1.0)))
        elif answer.status >= 500 and not _has(answer.headers, b"x-should-retry"):
            lines.append(NO_RETRY)  # engines have worked for it, in vain
        lines += (
            b"x-pointsman-reason: %b\r\n" % reason.encode(),
            framing_line(Framing.LENGTH, len(answer.body)),
        )
        self._transport.write(self._rendered(answer.status, lines, None) + answer.body)

    # --- the gateway's own --------------------------------------------------------------

    def refuse(self, reply: Reply, reason: Reason, detail: str = "") -> None:
        """Tell the client no, in the form that is still possible."""
        if self.relay is not None:
            self._fail_stream(stream_error(reason, detail))
            return
        self.status = reply.status
        self.closes = self.closes or self._shared.draining
        self._transport.write(
            render(
                reply,
                self._head,
                request_id=self._request_id,
                extra=b"".join(
                    (
                        self._shared.cors.lines(self._head.origin),
                        self._limit_lines(),
                        prospect_lines(self._prospect),
                    )
                ),
                close=self.closes,
            )
        )

    def break_off(self, reason: Reason) -> None:
        """The engine's answer ends before its end. Never looks like a whole one."""
        assert self.relay is not None, "nothing is sent: refuse instead"
        if self.relay.is_stream and self.relay.framing is not Framing.LENGTH:
            self._fail_stream(stream_error(reason))
        else:
            self.closes = True
            reset(self._transport)

    def comment(self) -> None:
        """Break the silence of a stream, and begin it if need be."""
        if self.relay is None:
            self._begin_early()
        elif self.relay.is_stream and self.relay.framing is not Framing.LENGTH:
            self.relay.comment()

    # --- helpers ------------------------------------------------------------------------

    def _engines_lines(self, headers: list[Header], *, is_stream: bool) -> list[bytes]:
        has_cors = self._shared.cors.enabled
        has_limits = self._key is not None and self._key.has_limits
        return reply_pieces(headers, is_stream=is_stream, has_cors=has_cors, has_limits=has_limits)

    def _limit_lines(self) -> bytes:
        return b"" if self._key is None else self._key.lines(self._shared.now_s())

    def _framing(self, upstream: UpstreamConnection, body_bytes: int) -> tuple[Framing, int]:
        if upstream.length is not None:
            return _LENGTH, upstream.length
        if upstream.complete:
            return _LENGTH, body_bytes
        return self._open_ended(), 0

    def _open_ended(self) -> Framing:
        if not self._head.is_http_10:
            return Framing.CHUNKED
        self.closes = True
        return Framing.CLOSE

    def _look_along(self, relay: Relay, upstream: UpstreamConnection, *, is_stream: bool) -> None:
        if upstream.is_encoded:
            return
        if is_stream:
            relay.scan_events()
        elif upstream.content_type[:16].lower() == b"application/json":
            relay.keep_for_usage()

    def _follow_on(self, relay: Relay, upstream: UpstreamConnection, body: bytes) -> None:
        if upstream.complete:
            relay.finish(body)
        else:
            relay.pass_on(body)

    def _begin_early(self) -> None:
        self.status = 200
        framing = self._open_ended()
        self.relay = Relay(self._transport, framing)
        self.relay.scan_events()
        lines = [_EARLY_STREAM, framing_line(framing, 0)]
        self.relay.open(self._rendered(200, lines, None), b"", is_whole=False)
        self.relay.comment()

    def _fail_stream(self, events: bytes) -> None:
        assert self.relay is not None
        self.relay.fail(events)
        self.closes = True

    def _rendered(self, status: int, lines: list[bytes], placed: Placed | None) -> bytes:
        lines.append(b"x-request-id: %b\r\n" % self._request_id.encode())
        if placed is not None and self._shared.options.reply_headers:
            lines += (
                b"x-pointsman-node: %b\r\n" % _field(placed.node),
                b"x-pointsman-policy: %b\r\n" % _field(placed.decision.policy),
            )
        if self._prospect is not None:
            lines.append(prospect_lines(self._prospect))
        self.closes = self.closes or self._shared.draining
        if self._key is not None:
            lines.append(self._limit_lines())
        if self._head.origin is not None:
            lines.append(self._shared.cors.lines(self._head.origin))
        return b"%b%b%b\r\n" % (
            status_line(status),
            b"".join(lines),
            persistence(self._head, close=self.closes),
        )


def _field(value: str) -> bytes:
    return value.encode("ascii", "replace")


def _has(headers: list[Header], name: bytes) -> bool:
    return any(known.lower() == name for known, _ in headers)
