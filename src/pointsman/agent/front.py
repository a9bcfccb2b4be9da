"""Stands in front of an engine as a relay: holds back what the engine cannot start, and hands back
what would wait too long.

A request that is handed back is answered 503 with `x-pointsman-hand-back` and a text that says
"busy". So the gateway places it elsewhere. What is let through is relayed byte for byte as it
comes. When the client is gone, so is its request.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from pointsman.agent.queue import FrontQueue, Ticket, lane_of
from pointsman.core.errors import ANSWERS, Reason
from pointsman.core.limits import PRIORITY_NORMAL
from pointsman.decoding import decoded_or_none
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.adapters.address import server_of
from pointsman.wire.endpoints import endpoint_of
from pointsman.wire.openai import error_body
from pointsman.wire.priority import (
    ENGINES_HEADER,
    PRIORITY_HEADER,
    body_priority,
    clamped,
    read_engines_priority,
    read_priority,
)

BODY_BYTES_MAX: Final = 64 * 1_024 * 1_024
BODIES_BYTES_MAX: Final = 1_024 * 1_024 * 1_024
"""The most bytes of all bodies at once: as much as the gateway holds."""
HEAD_BYTES_MAX: Final = 64 * 1_024
"""The most bytes of one header line: as much as the gateway lets through in all."""
CONNECT_S_MAX: Final = 5.0
HAND_BACK: Final = "x-pointsman-hand-back"

_NOT_PASSED_ON = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect"),
        PRIORITY_HEADER,
    )
)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_ADDED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")  # by aiohttp, if not there

log = logging.getLogger(__name__)


def _tells_of_us(record: logging.LogRecord) -> bool:
    """aiohttp's server has a stack trace for whatever it is sent that is no HTTP."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_http_log = logging.getLogger(f"{__name__}.http")
_http_log.addFilter(_tells_of_us)


class FrontOptions(msgspec.Struct, frozen=True, kw_only=True):
    """port 0 takes a free one.

    running_max  requests on the engine at once: what it can start, its max_num_seqs
    waiting_max  requests held back; more are handed back at once
    wait_s_max   for one of them to begin; what would wait longer is handed back
    """

    host: str = "127.0.0.1"
    port: int = 0
    running_max: int = 256
    waiting_max: int = 256
    wait_s_max: float = 2.0


class Front:
    """The front of one engine. While `draining` it hands everything new back."""

    def __init__(
        self,
        url: str,
        options: FrontOptions,
        *,
        keys: EngineKeys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = 0
        self.draining = False
        self.handed_back = 0
        self.bodies_bytes = 0
        self.queue = FrontQueue(options.running_max, options.waiting_max)
        self._server = server_of(url)
        self._options = options
        self._keys = keys or EngineKeys()
        self._clock = clock
        self._turns: dict[Ticket, asyncio.Event] = {}
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Front"]:
        """Listen while the context lasts. Raises OSError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX)
        # Engines close idle connections without notice, llama.cpp after each stream; on the same
        # machine a new one costs less than a request that is lost to that.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # one client's are not another's
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=_ADDED,
            middlewares=(self._keys.authorize,),
        ) as self._session:
            server = web.Server(
                self._handle,
                handler_cancellation=True,
                access_log=None,
                logger=_http_log,
                auto_decompress=False,
                max_line_size=HEAD_BYTES_MAX,
                max_field_size=HEAD_BYTES_MAX,
            )
            runner = web.ServerRunner(server, shutdown_timeout=1.0)
            await runner.setup()
            try:
                await web.TCPSite(runner, self._options.host, self._options.port).start()
                self.port = int(runner.addresses[0][1])
                yield self
            finally:
                await runner.cleanup()

    def engine_says(self, running: int | None, waiting: int | None) -> None:
        """Learn what the engine runs, and what waits in it although it was let through: then it
        cannot start as much as is believed."""
        if running is not None and waiting is not None:
            self.queue.adapt(running, waiting, self._options.running_max)
            self._begin_next()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request.raw_path.startswith("/"):
            return _refused(400, "Send the path alone.", Reason.BAD_REQUEST)
        if request.headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
        body = bytearray()
        try:
            async for piece in request.content.iter_any():
                body += piece
                self.bodies_bytes += len(piece)
                if len(body) > BODY_BYTES_MAX:
                    detail = f"The request body is larger than {BODY_BYTES_MAX} bytes."
                    return _refused(413, detail, Reason.BODY_TOO_LARGE)
                if self.bodies_bytes > BODIES_BYTES_MAX:
                    return self._hand_back()
            return await self._serve(request, body)
        finally:
            self.bodies_bytes -= len(body)

    async def _serve(self, request: web.BaseRequest, body: bytearray) -> web.StreamResponse:
        if request.method != "POST" or endpoint_of(request.path) is None:
            return await self._relay(request, body)
        ticket = await self._turn(request, body)
        if ticket is None:
            return self._hand_back()
        begun_s = self._clock()
        try:
            response = await self._relay(request, body)
            self._leave(ticket, self._clock() - begun_s)
            return response
        finally:
            self._leave(ticket)

    # --- waiting ------------------------------------------------------------------------

    async def _turn(self, request: web.BaseRequest, body: bytearray) -> Ticket | None:
        """Wait for the engine to have room. None if that would take, or has taken, too long."""
        queue, wait_s_max = self.queue, self._options.wait_s_max
        if self.draining or queue.expected_wait_s() > wait_s_max:
            return None
        ticket = queue.enter(_priority(request, body), lane_of(len(body)))
        if ticket is None:
            return None
        event = self._turns[ticket] = asyncio.Event()
        self._begin_next()
        try:
            async with asyncio.timeout(wait_s_max):
                await event.wait()
        except TimeoutError:
            if not ticket.begun:
                self._leave(ticket)
                return None
        except asyncio.CancelledError:
            self._leave(ticket)
            raise
        return ticket

    def _begin_next(self) -> None:
        while (ticket := self.queue.next()) is not None:
            self._turns[ticket].set()

    def _leave(self, ticket: Ticket, service_s: float | None = None) -> None:
        self.queue.leave(ticket, service_s)
        self._turns.pop(ticket, None)
        self._begin_next()

    def _hand_back(self) -> web.Response:
        self.handed_back += 1
        answer = _refused(503, "The engine is busy: place it elsewhere.", Reason.NODE_BUSY)
        answer.headers.update({HAND_BACK: "busy", "retry-after": "1"})
        return answer

    # --- relaying -----------------------------------------------------------------------

    async def _relay(self, request: web.BaseRequest, body: bytearray) -> web.StreamResponse:
        assert self._session is not None, "not serving"
        try:
            async with self._session.request(
                request.method,
                URL(self._server + request.raw_path, encoded=True),
                headers=_passed_on(request.headers.items()),
                data=body or None,
                allow_redirects=False,
            ) as answer:
                return await self._answer(request, answer)
        except aiohttp.ClientError as error:
            log.info("the engine is not reached: %s", error)
            return _refused(502, "The engine is not reached.", Reason.NODE_UNREACHABLE)

    async def _answer(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Relay the answer's bytes as they come. What breaks off in the engine breaks off here,
        too."""
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers.items())
        )
        if answer.content_length is not None:
            response.content_length = answer.content_length
        await response.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await response.write(piece)
        except (aiohttp.ClientError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the answer is cut off") from None
        await response.write_eof()
        return response


def _refused(status: int, message: str, reason: Reason) -> web.Response:
    """An error in OpenAI's shape, as the gateway would give it: it may reach the client."""
    body = error_body(message, ANSWERS[reason].type, reason, None)
    return web.Response(status=status, body=body, content_type="application/json")


class _Urgency(msgspec.Struct):
    """The fields of a body that say how urgent it is."""

    priority: int | None = None
    service_tier: str | None = None


_urgency = msgspec.json.Decoder(_Urgency, strict=False).decode


def _priority(request: web.BaseRequest, body: bytearray) -> int:
    """A request's priority, larger is more urgent: as the gateway has decided it, else as the
    gateway would read it."""
    headers = request.headers
    with contextlib.suppress(KeyError, ValueError):
        return read_priority(headers[PRIORITY_HEADER])
    engines = read_engines_priority(headers.get(ENGINES_HEADER, ""))
    if engines is not None:
        return clamped(-engines)
    said = decoded_or_none(_urgency, body)
    if said is None:
        return PRIORITY_NORMAL
    return body_priority(said.priority, said.service_tier)


def _passed_on(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    """The header fields that go on: those that are neither of one connection alone nor for a
    front."""
    kept = [(name, value) for name, value in headers if name.lower() not in _NOT_PASSED_ON]
    return CIMultiDict(kept)
