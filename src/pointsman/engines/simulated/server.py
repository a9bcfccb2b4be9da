"""Sockets and life cycle of one engine."""

import asyncio
import contextlib
import errno
import functools
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import zmq
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from pointsman.engines.simulated.anthropic_messages import MessagesDialect
from pointsman.engines.simulated.bodies import (
    ChatBody,
    CompletionBody,
    MessagesBody,
)
from pointsman.engines.simulated.engine import Route, SimulatedEngine
from pointsman.engines.simulated.kept_responses import PREFIX, KeptResponses
from pointsman.engines.simulated.kv_events import EventPublisher
from pointsman.engines.simulated.openai_chat import ChatDialect
from pointsman.engines.simulated.openai_completions import CompletionDialect
from pointsman.engines.simulated.options import EngineOptions
from pointsman.engines.simulated.side_routes import SideRoutes

BODY_BYTES_MAX = 64 * 1024 * 1024
BACKLOG = 4096
STOP_S_MAX = 2.0  # for answers in progress to write their error


class PortInUseError(Exception):
    """A port that the options name is taken."""


class RunningEngine:
    """An engine that serves. `url` is its HTTP root."""

    def __init__(self, engine: SimulatedEngine, web_server: web.Server) -> None:
        self.engine = engine
        self.options = engine.options
        self.port = engine.port
        self.url = f"http://{engine.options.host}:{engine.port}"
        self._web_server = web_server

    @property
    def transports(self) -> list[asyncio.Transport]:
        """The open connections."""
        handlers = self._web_server.connections
        return [handler.transport for handler in handlers if handler.transport is not None]


async def serve(
    options: EngineOptions, ready: Callable[[RunningEngine], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUseError."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with start(options) as running:
        if ready is not None:
            ready(running)
        await stopped.wait()


@contextlib.asynccontextmanager
async def start(options: EngineOptions) -> AsyncIterator[RunningEngine]:
    """Serve while the context is open. Raises PortInUseError."""
    with _listening(options.host, options.port) as listener:
        port: int = listener.getsockname()[1]
        with _publishers(options, port) as publishers:
            engine = SimulatedEngine(options, port=port, publishers=publishers)
            kept = KeptResponses(engine)
            engine.add_routes(_generating_routes(engine, kept) | SideRoutes(engine).table())
            engine.add_routes_under(PREFIX, kept.route)
            async with _replays(publishers), _http(engine, listener) as web_server:
                yield RunningEngine(engine, web_server)


@contextlib.asynccontextmanager
async def _replays(publishers: Sequence[EventPublisher]) -> AsyncIterator[None]:
    """Answer whoever missed events."""
    tasks = [asyncio.create_task(publisher.serve_replay()) for publisher in publishers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _generating_routes(
    engine: SimulatedEngine, kept: KeptResponses
) -> dict[tuple[str, str], Route]:
    serve_by = functools.partial
    generate = engine.generate
    return {
        ("POST", "/v1/chat/completions"): serve_by(
            generate, body_type=ChatBody, dialect_type=ChatDialect, id_prefix="chatcmpl-"
        ),
        ("POST", "/v1/completions"): serve_by(
            generate, body_type=CompletionBody, dialect_type=CompletionDialect, id_prefix="cmpl-"
        ),
        ("POST", "/v1/responses"): kept.respond,
        ("POST", "/v1/messages"): serve_by(
            generate, body_type=MessagesBody, dialect_type=MessagesDialect, id_prefix="msg_"
        ),
    }


@contextlib.asynccontextmanager
async def _http(engine: SimulatedEngine, listener: socket.socket) -> AsyncIterator[web.Server]:
    """aiohttp's low-level server: no router, no middleware; a handler dies with its client."""
    loop = asyncio.get_running_loop()

    def make_request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES_MAX
        )

    web_server = web.Server(engine.handle, request_factory=make_request, handler_cancellation=True)

    def make_protocol() -> web.RequestHandler:
        # By hand for the keep-alive time, which a fault may change between two connections.
        return web.RequestHandler(
            web_server, loop=loop, keepalive_timeout=engine.faults.idle_close_s
        )

    server = await loop.create_server(make_protocol, sock=listener, backlog=BACKLOG)
    try:
        yield web_server
    finally:
        server.close()
        engine.close()
        web_server.pre_shutdown()
        await web_server.shutdown(STOP_S_MAX)
        await server.wait_closed()


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise _port_error(error, "port", host, port) from error


@contextlib.contextmanager
def _publishers(options: EngineOptions, port: int) -> Iterator[Sequence[EventPublisher]]:
    """One for each rank on ports in a row, then those of their replays; none if not wanted."""
    first = options.kv_events_port
    ranks = range(0 if first is None else options.data_parallel_size)
    with contextlib.ExitStack() as stack:
        publishers: list[EventPublisher] = []
        for rank in ranks:
            at = first + rank if first else 0
            replay_at = first + len(ranks) + rank if first else 0
            publisher = _publisher(options, port, at, replay_at)
            stack.callback(publisher.close)
            publishers.append(publisher)
        yield publishers


def _publisher(options: EngineOptions, port: int, at: int, replay_at: int) -> EventPublisher:
    topic = options.kv_events_topic
    if topic is None:
        topic = f"kv@{options.host}:{port}@{options.model}"
    try:
        return EventPublisher(host=options.host, port=at, replay_port=replay_at, topic=topic)
    except zmq.ZMQError as error:
        raise _port_error(error, "KV events port", options.host, at) from error


def _port_error(error: OSError | zmq.ZMQError, what: str, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(f"{what} {port} on {host} is in use")
    known = error.errno or 0
    cause = zmq.strerror(known) if known > 0 else "no such host"  # resolvers count below zero
    return PortInUseError(f"cannot listen on {what} {port} of {host}: {cause}")
