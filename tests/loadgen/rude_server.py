"""A server of raw bytes that misbehaves as told: one script per request, in order of arrival."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from tests.support.upstreams import Engine, Served

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\nx-pointsman-node: n1\r\nx-request-id: r1\r\n\r\n"
)
TOKEN = 'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def token(text: str) -> bytes:
    return (TOKEN % text).encode()


GOOD = token("a") + token("漢") + token("🚂") + FINISH + USAGE + DONE


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def sends(*pieces: bytes, close: bool = False, pause_s: float = 0.0) -> Script:
    """Write the pieces, each in a segment of its own as far as the kernel allows."""

    async def script(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if close:
            writer.close()

    return script


def streams(*pieces: bytes, **options: bool) -> Script:
    """A complete chunked event stream with one chunk a piece."""
    return sends(STREAM_HEAD, *(chunk(piece) for piece in pieces), LAST_CHUNK, **options)


def answers(status: str, content_type: str, body: bytes, *headers: bytes) -> Script:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return sends(head.encode() + b"".join(line + b"\r\n" for line in headers) + b"\r\n" + body)


async def hangs(writer: asyncio.StreamWriter) -> None:
    """Say nothing for as long as the client stays."""
    await writer.wait_closed()


async def drops(writer: asyncio.StreamWriter) -> None:
    """Close without a byte."""
    writer.close()


class RudeServer:
    """`requests` are what came, in order: first line, headers, body."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = scripts
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.open_max = 0
        self.engine = Engine(self._serve)
        self._arrived = asyncio.Event()

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def connections(self) -> int:
        return self.engine.connections

    async def received(self, requests: int) -> None:
        """Wait until so many requests have come."""
        while len(self.requests) < requests:
            self._arrived.clear()
            await self._arrived.wait()

    async def _serve(self, served: Served) -> None:
        self.open_max = max(self.open_max, self.engine.open)
        first, *lines = served.head.decode("latin-1").split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines)
        self.requests.append((first, headers, served.body))
        self._arrived.set()
        await self._scripts[min(len(self.requests), len(self._scripts)) - 1](served.writer)


@asynccontextmanager
async def rude_server(*scripts: Script) -> AsyncIterator[RudeServer]:
    rude = RudeServer(scripts)
    await rude.engine.start()
    try:
        yield rude
    finally:
        await rude.engine.stop()
