"""An engine that drips: each stream gets a chunk a second, thousands of them at once.

Run as a program it prints its URL. Chunks are numbered; the streams end a second after GET /finish.
GET /stats tells how many are open, were finished, and were left by their client.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import uvloop

CHUNK = b'data: {"choices":[{"index":0,"text":"drip %d","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'
EVERY_S = 1.0
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Drips:
    """All connections of one engine."""

    def __init__(self) -> None:
        self.open = self.finished = self.left = 0
        self.finishing = False

    def stats(self) -> bytes:
        return json.dumps(vars(self)).encode()


class Connection(asyncio.Protocol):
    """Requests one after the other; a request's head and body may come in pieces."""

    def __init__(self, drips: Drips) -> None:
        self._drips = drips
        self._buffer = b""
        self._sent = 0  # chunks
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, ended, rest = self._buffer.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        length = int(found[1]) if found else 0
        if ended and len(rest) >= length:
            self._buffer = rest[length:]
            self._serve(head)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._drips.open -= 1
            self._drips.left += 1

    def _serve(self, head: bytes) -> None:
        target = head.split(b" ", 2)[1]
        if head.startswith(b"POST"):
            self._sent = 0
            self._drips.open += 1
            self._transport.write(_HEAD)
            self._drip()
        elif target == b"/finish":
            self._drips.finishing = True
            self._reply(200, b"")
        elif target == b"/stats":
            self._reply(200, self._drips.stats())
        elif target == b"/v1/models":
            self._reply(200, MODELS)
        else:
            self._reply(200 if target == b"/health" else 404, b"")

    def _reply(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)

    def _drip(self) -> None:
        if not self._drips.finishing:
            chunk = CHUNK % self._sent
            self._sent += 1
            self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._drip)
            return
        self._timer = None
        self._drips.open -= 1
        self._drips.finished += 1
        self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))


async def serve() -> None:
    """Serve for ever, on a free port."""
    drips = Drips()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(drips), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@asynccontextmanager
async def drip_engine() -> AsyncIterator[str]:
    """One as a process; its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.drip_engine", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()
        await process.stdout.read()


async def stats(session: Any, url: str) -> dict[str, int]:
    """Counts of a running one."""
    async with session.get(f"{url}/stats") as reply:
        found: dict[str, int] = json.loads(await reply.read())
        return found


async def finish(session: Any, url: str) -> None:
    """Have the streams of a running one end."""
    async with session.get(f"{url}/finish") as reply:
        assert reply.status == 200


if __name__ == "__main__":
    uvloop.run(serve())
