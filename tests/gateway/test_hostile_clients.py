"""Clients that mean harm: what they send is bounded, and nothing of it stays."""

import asyncio
import json
from typing import Any

import pytest

from pointsman.core.errors import Reason
from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import rig
from tests.support.upstreams import Client, answer_ok, post

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
KEY = "k" * 100_000


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /health HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x",
        b"OPTIONS * HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x",
    ],
)
async def test_a_flood_of_upgrades_ahead_is_answered_as_any_other(request_line: bytes) -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send((request_line + b"\r\nHost: x\r\n\r\n") * 2_000)
        statuses = [(await client.answer()).status for _ in range(18)]
        assert statuses[-1] == 400
        assert max(statuses[:-1]) < 300
        assert await client.closed()


async def test_a_flood_of_tunnels_gets_one_answer() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000)
        answer = await client.answer()
        assert (answer.status, answer.header("connection")) == (404, "close")
        assert await client.closed()


@pytest.mark.parametrize(
    ("begun", "flood"),
    [
        (b"1\r\nx\r\n0\r\nX-Trailer: ", b"a" * 600),
        (b"1\r\nx\r\n0\r\n", b"a: b\r\n" * 100),
        (b"1;extension=", b"a" * 600),
    ],
)
async def test_what_stands_around_chunks_is_bounded(begun: bytes, flood: bytes) -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, head_bytes_max=4_096)) as it:
        client = await it.connect()
        await client.send(CHUNKED)
        await client.send(begun)
        sending = asyncio.ensure_future(_send_on(client, flood))
        answer = await client.answer()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert answer.status == 431
        assert it.records.refused == [Reason.HEAD_TOO_LARGE]
        assert not it.placer.order


async def _send_on(client: Client, flood: bytes) -> None:
    while True:
        await client.send(flood)
        await asyncio.sleep(0.001)


async def test_small_chunks_have_framing_without_bound() -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, head_bytes_max=4_096)) as it:
        client = await it.connect()
        await client.send(CHUNKED)
        for byte in b'{"model":"m","prompt":"' + b"x" * 2_000 + b'"}':
            await client.send(b"1;e=ext\r\n%c\r\n" % byte)
        await client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 200


async def test_a_models_name_is_bounded_and_not_repeated() -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(post(body=json.dumps({"model": KEY, "prompt": "x"}).encode()))
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["param"]) == (400, "model")
        assert len(answer.body) < 1_000
        assert not it.placer.order
        assert len(it.records.ended[0].model) < 1_000


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        ("cache_salt", lambda request: request.prompt.namespace.salt),
        ("user", lambda request: request.tenant),
        ("safety_identifier", lambda request: request.tenant),
        ("prompt_cache_key", lambda request: request.session),
    ],
)
async def test_keys_that_outlive_a_request_are_short(field: str, kept: Any) -> None:
    async with rig(answer_ok) as it:
        for key in ("short", KEY + "1", KEY + "2", KEY + "1"):
            body = json.dumps({"model": "m", "prompt": "x", field: key}).encode()
            assert (await it.ask(post(body=body))).status == 200
        short, one, other, again = (kept(told.request) for told in it.placer.order)
        assert short == "short"
        assert one == again != other
        assert max(len(one), len(other)) <= 256
