"""Raw TCP engines that behave as badly as a test wants, and a raw client to look closely."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.support.ports import free_ports

Behaviour = Callable[["Served"], Awaitable[None]]

OK_BODY = (
    b'{"id":"x","choices":[{"text":"hi","finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}'
)


class Served:
    """One request as an engine got it, and the connection to answer on."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.head = head
        self.body = body

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    def header(self, name: str) -> str | None:
        found = re.search(rb"(?mi)^" + name.encode() + rb": *(.*?)\r?$", self.head)
        return None if found is None else found.group(1).decode()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: int, body: bytes, *lines: str) -> None:
        head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *lines]
        if not any(line.lower().startswith("content-type") for line in lines):
            head.append("Content-Type: application/json")
        await self.send("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    async def begin_stream(self, *lines: str) -> None:
        head = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream; charset=utf-8", *lines]
        await self.send("\r\n".join([*head, "Transfer-Encoding: chunked"]).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def until_closed(self) -> None:
        """Wait for the other side to leave."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass


class Engine:
    """A listening engine. `served` are the requests it got, `open` its connections."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.served: list[Served] = []
        self.connections = 0
        self.open = 0
        self.left = asyncio.Event()
        self.idle_close_s: float | None = None
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=4096)

    def stop_listening(self) -> None:
        """Newcomers are refused; what is connected stays."""
        assert self._server is not None
        self._server.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:  # noqa: ASYNC110 - each leaves by itself
            await asyncio.sleep(0.001)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self._writers[writer] = None
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except RuntimeError as error:  # uvloop's word for a transport that is closed
            if "closed" not in str(error):
                raise
        finally:
            self.open -= 1
            self.left.set()
            del self._writers[writer]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            async with asyncio.timeout(self.idle_close_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return False
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        body = await reader.readexactly(int(found.group(1))) if found else b""
        served = Served(reader, writer, head, body)
        self.served.append(served)
        await self.behaviour(served)
        return not writer.is_closing()


@asynccontextmanager
async def engine(behaviour: Behaviour) -> AsyncIterator[Engine]:
    """An engine for the length of a test."""
    running = Engine(behaviour)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def unanswered_url() -> AsyncIterator[str]:
    """Where nobody answers a connection: the listener's queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def closed_url() -> str:
    """Where connections are refused."""
    [port] = free_ports(1)
    return f"http://127.0.0.1:{port}"


async def silent(served: Served) -> None:
    """A prefill that takes for ever: not even a head."""
    await served.until_closed()


def two_events(gate: asyncio.Event) -> Behaviour:
    """A stream of two events, the second once the gate is open."""

    async def stream(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(b"data: 1\n\n")
        await gate.wait()
        await served.chunk(b"data: 2\n\n")
        await served.end_stream()

    return stream


async def answer_ok(served: Served) -> None:
    await served.reply(200, OK_BODY)


class Client:
    """A raw connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> "Received":
        """The next answer, by its framing."""
        head = await self.head()
        while head.startswith(b"HTTP/1.1 1"):
            head = await self.head()
        return await self._with_body(head)

    async def _with_body(self, head: bytes) -> "Received":
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            body, is_whole = await self.chunked()
        elif found := re.search(rb"content-length: *(\d+)", lower):
            try:
                body, is_whole = await self.reader.readexactly(int(found.group(1))), True
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                body, is_whole = getattr(error, "partial", b""), False
        elif b" 204 " in head:
            body, is_whole = b"", True
        else:
            body, is_whole = await self._rest()
        return Received(head, body, is_whole)

    async def chunked(self) -> tuple[bytes, bool]:
        body = b""
        while True:
            try:
                size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
                data = await self.reader.readexactly(size + 2)
            except (asyncio.IncompleteReadError, ConnectionError):
                return body, False
            if not size:
                return body, True
            body += data[:-2]

    async def _rest(self) -> tuple[bytes, bool]:
        body = b""
        try:
            while data := await self.reader.read(65_536):
                body += data
        except ConnectionError:
            return body, False
        return body, True

    async def closed(self) -> bool:
        """Whether the other side closes without a further byte."""
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True

    def leave(self) -> None:
        self.writer.transport.abort()


class Received:
    """An answer. `is_whole` is whether its framing came to its end."""

    def __init__(self, head: bytes, body: bytes, is_whole: bool) -> None:
        self.head = head
        self.body = body
        self.is_whole = is_whole

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header(self, name: str) -> str | None:
        found = re.search(rb"(?mi)^" + name.encode() + rb": *(.*?)\r?$", self.head)
        return None if found is None else found.group(1).decode()


def post(
    path: str = "/v1/completions",
    body: bytes = b'{"model":"m","prompt":"hello"}',
    *lines: str,
    version: str = "1.1",
) -> bytes:
    """A request's bytes."""
    head = [f"POST {path} HTTP/{version}", "Host: gateway", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "Content-Type: application/json", *lines]).encode() + (
        b"\r\n\r\n" + body
    )


STREAM = b'{"model":"m","prompt":"hello","stream":true}'


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: gateway", *lines]).encode() + (
        b"\r\n\r\n"
    )
