"""A server of raw bytes that misbehaves as told: one script per request, in order of arrival."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

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
    def __init__(self, scripts: list[Script]) -> None:
        self.scripts = scripts
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.open = 0
        self.open_max = 0
        self.url = ""
        self._arrived = asyncio.Event()
        self._handlers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def received(self, requests: int) -> None:
        """Wait until so many requests have come."""
        while len(self.requests) < requests:
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        """Reset whoever is still connected and wait for the handlers."""
        for writer in self._handlers.values():
            writer.transport.abort()
        await asyncio.gather(*self._handlers)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers[task] = writer
        self.connections += 1
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")[:-2]
                headers = dict(line.split(": ", 1) for line in lines)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.requests.append((first, headers, body))
                self._arrived.set()
                script = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
                await script(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def rude_server(*scripts: Script) -> AsyncIterator[RudeServer]:
    rude = RudeServer(list(scripts))
    server = await asyncio.start_server(rude.handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    rude.url = f"http://{host}:{port}"
    async with server:
        yield rude
        server.close()
        await rude.close()
