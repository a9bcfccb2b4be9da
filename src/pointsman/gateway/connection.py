"""A client's connection: requests in, one at a time to a handler, answers out in order.

A client that closes its sending side is taken to have left, as nginx and uvicorn take it:
HTTP has no use for a half-closed request, and this is how most cancellations look. It is not
noticed while the client has sent so much ahead that nothing more is read from it.
"""

import asyncio
import logging
from typing import Final, assert_never, cast

from pointsman.core.errors import Reason
from pointsman.gateway.handler import Handler
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.keys import Key
from pointsman.gateway.reader import RequestReader
from pointsman.gateway.replies import Reply, render
from pointsman.gateway.routes import (
    LocalRoute,
    NoRoute,
    allowed_methods,
    health_reply,
    model_reply,
    models_reply,
    ready_reply,
    route_of,
)
from pointsman.gateway.routing import can_decode
from pointsman.gateway.shared import Shared
from pointsman.wire.endpoints import Endpoint

AHEAD_BYTES_MAX: Final = 64 * 1024
"""Unparsed bytes of requests sent ahead; above it the client has to wait."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LIVENESS: Final = (b"GET /health ", b"HEAD /health ")
"""What a gateway that is full answers all the same: who asks would restart it."""

_NEVER_S: Final = float("inf")
_OPEN_ROUTES: Final = frozenset({LocalRoute.HEALTH, LocalRoute.READY, LocalRoute.PREFLIGHT})

log = logging.getLogger(__name__)


class ClientConnection(asyncio.Protocol):
    """One accepted connection. `sweep` looks at its deadline, or at its handler's."""

    transport: asyncio.Transport

    def __init__(self, shared: Shared) -> None:
        self.is_paused = False
        self._address: str | None = None
        self._shared = shared
        self._reader = RequestReader(shared)
        self._handler: Handler | None = None
        self._ahead = bytearray()
        self._is_surplus = False  # there are as many as may be without it
        self._is_over = False  # nothing more is read: lingering, closing or lost
        self._deadline_s = _NEVER_S
        self._head_deadline_s = self._body_deadline_s = _NEVER_S

    # --- the transport's side -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport = transport = cast("asyncio.Transport", transport)
        shared = self._shared
        transport.set_write_buffer_limits(shared.options.write_buffer_bytes)
        shared.clients[self] = None
        surplus = len(shared.clients) - shared.clients_max
        self._is_surplus = surplus > 0
        self._deadline_s = shared.now_s() + shared.options.head_s
        if surplus > shared.turned_away_max:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._is_surplus and not data.startswith(_LIVENESS):
            self._turn_away(Reason.CONNECTIONS_FULL)
            return
        if self._reader.ready:  # a whole request waits; what follows it has time
            self._ahead += data
            if len(self._ahead) > AHEAD_BYTES_MAX:
                self.transport.pause_reading()
            return
        self._reader.feed(data)
        if self._handler is None:
            self._proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._shared.clients.pop(self, None)
        handler, self._handler = self._handler, None
        try:
            if handler is not None:
                handler.client_gone()
        finally:
            self._reader.forget()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self._handler is not None:
            self._handler.client_paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._handler is not None:
            self._handler.client_resumed()

    # --- the handler's side -------------------------------------------------------------

    @property
    def address(self) -> str:
        """The peer's, without its port; empty where it has none."""
        if self._address is None:
            peer = self.transport.get_extra_info("peername")
            self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        return self._address

    def answered(self, *, close: bool) -> None:
        """The answer is written, and the next request may be taken up."""
        self._handler = None
        if close or self._is_over or self._shared.draining:
            self._close()
        elif self._reader.ready or self._ahead or self._reader.refusal is not None:
            asyncio.get_running_loop().call_soon(self._proceed)
        else:
            self._deadline_s = self._shared.now_s() + self._shared.options.keep_alive_s

    def hold_bytes(self, body_bytes: int) -> None:
        self._reader.hold(body_bytes)

    def abort(self) -> None:
        self._is_over = True
        self.transport.abort()

    # --- requests in turn ---------------------------------------------------------------

    def _proceed(self) -> None:
        """With no handler at work: take up the next request, read on, or turn the client
        away."""
        reader = self._reader
        if self._is_over or self._handler is not None:
            return
        if not reader.ready and self._ahead:
            data, self._ahead = bytes(self._ahead), bytearray()
            self.transport.resume_reading()
            reader.feed(data)
        if reader.ready:
            head, body = reader.ready.popleft()
            self._serve(head, body)
        elif reader.refusal is not None:
            self._turn_away(*reader.refusal)
        else:
            self._await_more()

    def _await_more(self) -> None:
        reader, options = self._reader, self._shared.options
        now_s = self._shared.now_s()
        if reader.wants_continue:
            reader.wants_continue = False
            if self._is_declined(reader.head):
                return
            self.transport.write(_CONTINUE)
        if not reader.is_amid:
            self._deadline_s = now_s + options.keep_alive_s
        elif reader.head is None:
            if self._head_deadline_s == _NEVER_S:
                self._head_deadline_s = now_s + options.head_s
            self._deadline_s = self._head_deadline_s
        else:
            if self._body_deadline_s == _NEVER_S:
                self._body_deadline_s = now_s + options.body_s
            self._deadline_s = min(now_s + options.body_gap_s, self._body_deadline_s)

    def _is_declined(self, head: RequestHead | None) -> bool:
        """Whether no body can change the answer, which is given without it (RFC 9110 section
        10.1.1). What the reader refuses does not come here."""
        assert head is not None, "it is the head that asks"
        route = route_of(head.method, head.path)
        if isinstance(route, NoRoute):
            self._turn_away(route.reason, allow=route.allow)
        elif isinstance(route, LocalRoute):
            return False
        elif self._shared.draining:
            self._turn_away(Reason.DRAINING)
        elif not can_decode(head.content_encoding):
            self._turn_away(Reason.ENCODING_UNSUPPORTED)
        return self._is_over

    def _serve(self, head: RequestHead, body: bytes) -> None:
        self._head_deadline_s = self._body_deadline_s = _NEVER_S
        self._reader.wants_continue = False
        route, keys = route_of(head.method, head.path), self._shared.keys
        key = keys.find(head) if keys else None
        if key is None and keys and route not in _OPEN_ROUTES:
            self._reader.hold(-len(body))
            self._reply(
                head,
                self._shared.refusal(Reason.UNAUTHORIZED),
                refused=Reason.UNAUTHORIZED,
            )
        elif isinstance(route, Endpoint):
            handler = self._handler = Handler(self._shared, self, head, route, key)
            try:
                handler.start(body)
            except Exception:  # the driver's outermost loop: one request must not take others along
                log.exception("a request could not be taken up")
                handler.crashed()
        else:
            self._reader.hold(-len(body))
            self._serve_here(head, route, key)

    def _serve_here(self, head: RequestHead, route: LocalRoute | NoRoute, key: Key | None) -> None:
        placer = self._shared.placer
        match route:
            case NoRoute():
                reply = self._shared.refusal(route.reason, allow=route.allow)
                self._reply(head, reply, key, refused=route.reason)
            case LocalRoute.MODELS:
                self._reply(head, models_reply(placer, key), key)
            case LocalRoute.MODEL:
                self._reply(head, model_reply(self._shared, key, head.path), key)
            case LocalRoute.HEALTH:
                self._reply(head, health_reply())
            case LocalRoute.READY:
                self._reply(head, ready_reply(self._shared))
            case LocalRoute.PREFLIGHT:
                allow = allowed_methods(head.path) or b"GET, POST, OPTIONS"
                self._reply(head, self._shared.cors.preflight(head, allow))
            case _:
                assert_never(route)

    def _reply(
        self,
        head: RequestHead,
        reply: Reply,
        key: Key | None = None,
        *,
        refused: Reason | None = None,
    ) -> None:
        close = self._shared.draining or not head.keep_alive or self._is_surplus
        limits = b"" if key is None else key.lines(self._shared.now_s())
        self._write(reply, head, limits, close=close)
        if refused is not None:
            self._tell_refused(refused)
        self.answered(close=close)

    # --- endings ------------------------------------------------------------------------

    def _turn_away(self, reason: Reason, detail: str = "", *, allow: bytes = b"") -> None:
        """Answer what cannot be served and read no further; linger, since what the client
        still sends would otherwise reset the connection and cost it the answer."""
        reply = self._shared.refusal(reason, detail, allow=allow)
        self._write(reply, self._reader.head, close=True)
        self._tell_refused(reason)
        self._is_over = True
        self._deadline_s = self._shared.now_s() + self._shared.options.linger_s
        self.transport.write_eof()

    def _write(
        self, reply: Reply, head: RequestHead | None, limits: bytes = b"", *, close: bool
    ) -> None:
        shared = self._shared
        self.transport.write(
            render(
                reply,
                head,
                request_id=shared.request_id("" if head is None else head.request_id),
                extra=limits if head is None else limits + shared.cors.lines(head.origin),
                close=close,
            )
        )

    def _tell_refused(self, reason: Reason) -> None:
        if self._shared.observer is not None:
            self._shared.observer.client_refused(reason)

    def _close(self) -> None:
        """Close once everything is sent; a client that does not read gets keep_alive_s."""
        self._is_over = True
        self._deadline_s = self._shared.now_s() + self._shared.options.keep_alive_s
        self.transport.close()

    def close_if_idle(self) -> None:
        if self._handler is None and not self._is_over and not self._reader.is_amid:
            self._close()

    def sweep(self, now_s: float) -> None:
        if self._handler is not None:
            self._handler.sweep(now_s)
        elif now_s >= self._deadline_s:
            if self._is_over:
                self.abort()
            elif self._reader.is_amid:
                self._turn_away(Reason.BODY_TIMEOUT)
            else:
                self._close()
