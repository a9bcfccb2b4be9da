"""Whose answer is whose: nothing of one reply ever reaches another client."""

import asyncio
import json
import random

import pytest

from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import Rig, rig
from tests.support.upstreams import Served, post

CLIENTS = 40
REQUESTS = 25


@pytest.mark.parametrize(
    "tail",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        b"HTTP/1.1 200 OK\r\nX-Evil: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n",
        b"HTTP/1.1",
        b"H",
        b"0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_what_follows_a_reply_is_never_the_next_ones(framing: str, tail: bytes) -> None:
    async def reply_and_more(served: Served) -> None:
        body = served.body
        if framing == "length":
            sent = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        else:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            sent = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        await served.send(sent + tail)

    async with rig(reply_and_more) as it:
        client = await it.connect()
        for number in range(3):
            body = _marked(number)
            await client.send(post(body=body))
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, body)
            assert b"evil" not in answer.head.lower()
        assert it.engine.connections == 3


async def test_every_client_gets_its_own_answer_whatever_happens() -> None:
    """Retries, cuts, cancels and re-used connections, with a marker that comes back."""
    chance = random.Random(7)

    async def fickle(served: Served) -> None:
        body = served.body
        match chance.randrange(9):
            case 0:
                await served.reply(500, b"no")
            case 1:
                served.writer.transport.abort()
            case 2:
                await served.reply(200, body)
                await served.send(b"HTTP/1.1 200 OK\r\nX-Evil: ")
            case 3:
                await asyncio.sleep(0.01)
                await served.reply(200, body, "Connection: close")
                served.writer.close()
            case 4:
                await served.begin_stream()
                for _ in range(4):
                    await served.chunk(b"data: %b\n\n" % body)
                    await asyncio.sleep(0)
                await served.end_stream()
            case 5:
                await served.send(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + body)
                served.writer.close()
            case _:
                await served.reply(200, body)

    async with rig(fickle, fickle, fickle, options=GatewayOptions(sweep_s=0.02)) as it:
        whole = await asyncio.gather(*(_ask_on_and_on(it, n, chance) for n in range(CLIENTS)))
        assert sum(whole) > CLIENTS * REQUESTS / 3


async def _ask_on_and_on(it: Rig, number: int, chance: random.Random) -> int:
    """How many answers came whole; each has to be ours and nothing but ours."""
    whole = 0
    client = await it.connect()
    for turn in range(REQUESTS):
        body = _marked(f"{number}-{turn}")
        await client.send(post(body=body))
        if chance.random() < 0.15:  # leaves amid it
            await asyncio.sleep(chance.random() * 0.01)
            client.leave()
            client = await it.connect()
            continue
        try:
            answer = await client.answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            client = await it.connect()
            continue
        if answer.status == 200:
            assert set(answer.body.replace(b"data: ", b"").split(b"\n")) <= {body, b""} or (
                b'"error"' in answer.body
            )
            whole += answer.is_whole
        if not answer.is_whole or answer.header("connection") == "close":
            client.leave()
            client = await it.connect()
    return whole


def _marked(marker: object) -> bytes:
    return json.dumps({"model": "m", "prompt": f"<{marker}>"}).encode()
