"""One HTTP/1.1 client connection: bytes to an exchange's callbacks, by llhttp.

A connection carries one exchange at a time. Whatever happens (answer complete, peer gone, bytes
that are not HTTP, the client's own abort), the exchange's `done` future is set exactly once.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import cast

import httptools

from pointsman.traffic.outcome import Outcome

HEADERS_MAX = 256
HEADER_BYTES_MAX = 64 * 1024
"""nginx and Node refuse heads of 32 and 16 KiB; a larger one here is a runaway server."""


class Exchange:
    """One request's answer as it arrives. Subclasses take the body.

    `failure` is None while all is well; the first failure stays. `answered` tells whether a single
    byte has come, which decides whether a request on a reused connection may be sent again.
    """

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answered = False
        self.failure: Outcome | None = None
        self.cause = ""
        self.detail = ""
        self.ended_s = 0.0

    def on_head(self) -> None:
        """Status and headers are complete."""

    def on_body(self, data: bytes, now_s: float) -> None:
        """A piece of the body, without its framing."""

    def fail(self, outcome: Outcome, cause: str, detail: str = "") -> None:
        """Note the first failure; the exchange goes on until it is finished."""
        if self.failure is None:
            self.failure, self.cause, self.detail = outcome, cause, detail

    def finish(self, now_s: float) -> None:
        """Nothing more will come."""
        if not self.done.done():
            self.ended_s = now_s
            self.done.set_result(None)


class Connection(asyncio.Protocol):
    """A socket and its parser. `on_idle` is called when an answer ended and the socket lives."""

    def __init__(self, *, on_idle: Callable[["Connection"], None]) -> None:
        self._on_idle = on_idle
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._header_bytes = 0
        self._head_complete = False
        self._until_eof = False  # the body ends where the connection does
        self.idle_since_s = 0.0

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._exchange is None

    def start(self, request: bytes, exchange: Exchange) -> None:
        """Send a request; `exchange.done` tells when its answer is over.

        A peer that closes right after accepting has no answer: the exchange ends at once.
        """
        assert self._exchange is None, "one exchange at a time"
        self._exchange = exchange
        if self._transport is None or self._transport.is_closing():
            self._fail(Outcome.DISCONNECTED, "connection closed before an answer")
            return
        self._header_bytes = 0
        self._head_complete = self._until_eof = False
        self._transport.write(request)

    def abort(self, outcome: Outcome, cause: str) -> None:
        """Drop the socket; a running exchange ends with this failure."""
        self._fail(outcome, cause)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nobody asked: the peer is confused, the next answer would be wrong
            self._close()
            return
        exchange.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Outcome.BAD_RESPONSE, "not HTTP", str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        exchange = self._exchange
        if exchange is None:
            return
        how = "connection reset" if isinstance(error, ConnectionResetError) else "connection closed"
        if not self._head_complete:
            self._fail(Outcome.DISCONNECTED, f"{how} before an answer", str(error or ""))
        elif not self._until_eof or error is not None:
            self._fail(Outcome.TRUNCATED, f"{how} inside the answer", str(error or ""))
        else:
            self._end()

    # llhttp's callbacks, named by httptools

    def on_message_begin(self) -> None:
        """Bytes after the end of an answer begin one that nobody asked for."""
        if self._exchange is None:
            self._close()

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES_MAX or len(exchange.headers) >= HEADERS_MAX:
            self._fail(Outcome.BAD_RESPONSE, "head too large")
            return
        exchange.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        status = self._parser.get_status_code()
        if exchange is None or status < 200:
            return
        self._head_complete = True
        exchange.status = status
        headers = exchange.headers
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._until_eof = not chunked and "content-length" not in headers
        exchange.on_head()

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.on_body(data, perf_counter())
            if exchange.failure is Outcome.BAD_RESPONSE:
                self._fail(Outcome.BAD_RESPONSE, exchange.cause)

    def on_message_complete(self) -> None:
        if not self._head_complete:  # 1xx: the answer proper is still to come
            if self._exchange is not None:
                self._exchange.headers.clear()
            return
        self._end()

    def _end(self) -> None:
        """The answer is complete: keep the socket if both sides want to."""
        exchange = self._exchange
        if exchange is None:
            return
        self._exchange = None
        now_s = perf_counter()
        exchange.finish(now_s)
        if self._parser.should_keep_alive() and self.usable:
            self.idle_since_s = now_s
            self._on_idle(self)
        else:
            self._close()

    def _fail(self, outcome: Outcome, cause: str, detail: str = "") -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail(outcome, cause, detail)
            exchange.finish(perf_counter())
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
