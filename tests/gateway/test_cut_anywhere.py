"""However TCP cuts what is sent, what arrives is the same."""

import asyncio
import random

import pytest

from tests.gateway.conftest import rig
from tests.support.upstreams import STREAM, Received, Served, get, post

EVENTS = [
    f'data: {{"choices":[{{"text":"{"é😀" * size}"}}]}}\n\n'.encode()
    for size in (1, 3, 400, 2, 9_000, 1)
]
WHOLE = b"".join(EVENTS) + b"data: [DONE]\n\n"


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """`data` in pieces of random sizes, small ones at first."""
    pieces = []
    while data:
        size = rng.choice((1, 2, 5, 50, 5_000))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize("seed", range(6))
async def test_requests_and_replies_may_be_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)

    async def stream_in_pieces(served: Served) -> None:
        framed = b"".join(
            b"%x\r\n%b\r\n" % (len(part), part) for part in cut(WHOLE, random.Random(seed + 100))
        )
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        reply = head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
        for piece in cut(reply, rng):
            await served.send(piece)
            await asyncio.sleep(0)

    async with rig(stream_in_pieces) as it:
        client = await it.connect()
        sent = [post(body=STREAM), get("/health"), post(body=STREAM), get("/v1/models")]

        async def send() -> None:
            for piece in cut(b"".join(sent), rng):
                await client.send(piece)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            answers: list[Received] = [await client.answer() for _ in sent]
        assert [answer.body for answer in answers[0::2]] == [WHOLE, WHOLE]
        assert answers[1].body == b'{"status":"ok"}'
        assert all(answer.is_whole for answer in answers)
        assert [outcome.streamed_tokens for outcome in it.placer.outcomes] == [len(EVENTS)] * 2
        assert all(served.body == STREAM for served in it.engine.served)
