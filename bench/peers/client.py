"""A raw HTTP/1.1 client under closed-loop load: so many connections, one request on each."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import cast

import httptools
import msgspec

from bench.peers.engines import MODEL

ANSWER_S_MAX = 30.0
BODY_BYTES = 1024
SYSTEM_PROMPT = "You set the points of a busy junction and answer in one sentence. " * 9


class Load(msgspec.Struct, frozen=True):
    """What a run of requests came to."""

    requests: int
    errors: int
    events: int
    reads: int  # how often bytes arrived: fewer than events, if the gateway merged some
    wall_s: float


async def load(port: int, *, requests: int, concurrency: int, stream: bool, first: int = 0) -> Load:
    """Sends `requests` chat completions, `concurrency` at a time, each on a kept connection.

    `first` numbers the first prompt: no gateway has seen a prompt whose number is new to it.
    """
    payloads = iter([_payload(first + number, stream=stream) for number in range(requests)])
    clients = [_Client(port, payloads) for _ in range(concurrency)]
    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run())
    return Load(
        requests=requests,
        errors=sum(client.errors for client in clients),
        events=sum(client.events for client in clients),
        reads=sum(client.reads for client in clients),
        wall_s=time.perf_counter() - began_s,
    )


class _Client(asyncio.Protocol):
    def __init__(self, port: int, payloads: Iterator[bytes]) -> None:
        self.errors = self.events = self.reads = 0
        self._port = port
        self._payloads = payloads
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bool] = self._loop.create_future()

    async def run(self) -> None:
        """Sends from the shared payloads until there are none left."""
        for payload in self._payloads:
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    self.errors += not await self._ask(payload)
            except (TimeoutError, OSError):
                self.errors += 1
                self._close()
        self._close()

    async def _ask(self, payload: bytes) -> bool:
        if self._transport is None:
            await self._loop.create_connection(lambda: self, "127.0.0.1", self._port)
        assert self._transport is not None
        self._answer = self._loop.create_future()
        self._transport.write(payload)
        return await self._answer

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._answer.done():
            self._answer.set_result(False)

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.events += body.count(b"data: ")

    def on_message_complete(self) -> None:
        if not self._answer.done():
            self._answer.set_result(self._parser.get_status_code() == 200)
        if not self._parser.should_keep_alive():
            self._close()


def _payload(number: int, *, stream: bool) -> bytes:
    """One request of about 1 kB: a system prompt that all share, a question that none does."""
    question = f"Train {number:08d} comes from the north. " * 8
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]
    fields: dict[str, object] = {"model": MODEL, "messages": messages, "max_tokens": 64}
    body = json.dumps(fields | ({"stream": True} if stream else {})).encode()
    assert BODY_BYTES * 0.9 < len(body) < BODY_BYTES * 1.1, len(body)
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: bench\r\n"
        b"accept: */*\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
