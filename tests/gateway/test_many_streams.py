"""Two thousand slow streams at once: none broken, little memory each, nothing left behind."""

import asyncio
import json
import re
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import cast

import pytest

from pointsman.gateway.server import raise_descriptor_limit
from tests.support.upstreams import STREAM, post

STREAMS = 2_000
PAUSE_S = 4.0  # more chunks a second than a busy machine relays would stop it altogether
LEAVE_S_MAX = 2.0  # or, on a busy machine, as long as it took them to come
TEST_S_MAX = 100.0  # a bound, not a measure: below the runner's own, which tells nothing
STREAM_KIB_MAX = 64  # two sockets' objects, parsers, one exchange; far from a buffer's size
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"data: [DONE]\n\n"


class SlowEngine(asyncio.Protocol):
    """Streams numbered events, PAUSE_S apart, until `ending`; `open` counts connections."""

    open = 0
    ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer: asyncio.TimerHandle | None = None
        SlowEngine.open += 1

    def data_received(self, data: bytes) -> None:
        self._transport.write(HEAD)
        self._send(0)

    def _send(self, number: int) -> None:
        if self.ending:
            self._chunk(END)
            self._transport.write(b"0\r\n\r\n")
            return
        self._chunk(b"data: %d\n\n" % number)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PAUSE_S, self._send, number + 1)

    def _chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def connection_lost(self, exc: Exception | None) -> None:
        SlowEngine.open -= 1
        if self._timer is not None:
            self._timer.cancel()


class Reader(asyncio.Protocol):
    """A client that keeps what it gets."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.is_lost = False
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(post(body=STREAM))

    def data_received(self, data: bytes) -> None:
        self.got += data
        if self.got.endswith(b"\r\n0\r\n\r\n") and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def is_intact(self) -> bool:
        numbers = [int(number) for number in re.findall(rb"data: (\d+)\n\n", self.got)]
        return numbers == list(range(len(numbers))) and self.got.count(END) == 1


class GatewayProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0

    async def say(self) -> bytes:
        assert self.process.stdout is not None
        return await self.process.stdout.readline()

    async def state(self) -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        found = json.loads(await self.say())
        assert isinstance(found, dict)
        return found

    async def busy(self) -> bool:
        state = await self.state()
        counts = ("clients", "exchanges", "engine_connections", "bodies_bytes")
        return any(state[count] for count in counts)

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found.group(1))


@asynccontextmanager
async def gateway_process(url: str) -> AsyncIterator[GatewayProcess]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.gateway.gateway_process", "m", url, stdin=pipe, stdout=pipe
    )
    running = GatewayProcess(process)
    running.port = int(await running.say())
    try:
        yield running
    finally:
        process.kill()
        await process.wait()


async def connect(port: int) -> Reader:
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(Reader, "127.0.0.1", port)
    return reader


async def all_stream(readers: list[Reader], gateway: GatewayProcess) -> None:
    """Every client has got a part of its answer. That the gateway has all requests would not do:
    an answer that ended before it began is no stream."""
    while not all(reader.got for reader in readers):
        assert not any(reader.is_lost for reader in readers), "a client was cut off"
        await asyncio.sleep(0.05)
    assert (await gateway.state())["exchanges"] == len(readers)


async def test_two_thousand_slow_streams(capsys: pytest.CaptureFixture[str]) -> None:
    raise_descriptor_limit()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * STREAMS + 200:
        pytest.skip("too few file descriptors for this many streams")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(SlowEngine, "127.0.0.1", 0, backlog=STREAMS)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    # A server left open makes uvloop wait for ever when its loop is closed: it warns of the
    # server, warnings are errors here, and so it never closes it.
    with closing(server):
        async with asyncio.timeout(TEST_S_MAX), gateway_process(url) as gateway:
            empty_kib = gateway.resident_kib()
            readers = [await connect(gateway.port) for _ in range(STREAMS)]
            await all_stream(readers, gateway)
            stream_kib = (gateway.resident_kib() - empty_kib) / STREAMS
            SlowEngine.ending = True
            await asyncio.gather(*(reader.ended for reader in readers))
            assert all(reader.is_intact for reader in readers)
            with capsys.disabled():
                print(f"\n{STREAMS} streams at once: {stream_kib:.1f} KiB each")
            assert stream_kib < STREAM_KIB_MAX

            SlowEngine.ending = False  # once more, and all leave amid their streams
            began_s = loop.time()
            for reader in readers:
                reader.got.clear()
                reader.transport.write(post(body=STREAM))
            await all_stream(readers, gateway)
            came_s = loop.time() - began_s
            for reader in readers:
                reader.transport.abort()
            async with asyncio.timeout(max(LEAVE_S_MAX, came_s)):
                while SlowEngine.open or await gateway.busy():  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(0.01)
