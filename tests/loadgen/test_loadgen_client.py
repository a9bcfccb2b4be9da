"""The client against servers that split, cut, lie, refuse and go away."""

import asyncio
import json
import socket

import pytest

from pointsman.loadgen.client import ClientLimits, LoadClient, parse_target
from pointsman.loadgen.completion import CompletionExchange
from pointsman.traffic.outcome import Outcome
from tests.loadgen.rude_server import (
    DONE,
    FINISH,
    GOOD,
    LAST_CHUNK,
    STREAM_HEAD,
    USAGE,
    Script,
    answers,
    chunk,
    drops,
    rude_server,
    sends,
    streams,
    token,
)


async def ask(client: LoadClient) -> CompletionExchange:
    await client.wait_for_slot()
    return await client.complete(client.request("POST", "/v1/chat/completions", b"{}"))


async def ask_once(*scripts: Script, timeout_s: float = 20.0) -> CompletionExchange:
    async with rude_server(*scripts) as server:
        limits = ClientLimits(timeout_s=timeout_s)
        client = LoadClient(parse_target(server.url), limits=limits)
        exchange = await ask(client)
        client.close()
        return exchange


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
async def test_any_split_reads_the_same(size: int, line_end: bytes) -> None:
    stream = GOOD.replace(b"\n", line_end)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    exchange = await ask_once(streams(*pieces))
    assert (exchange.failure, exchange.cause) == (None, "")
    assert (exchange.chunks, exchange.prompt_tokens) == (3, 10)
    assert (exchange.completion_tokens, exchange.cached_tokens) == (3, 8)
    assert exchange.headers["x-pointsman-node"] == "n1"
    assert exchange.first_token_s is not None
    assert exchange.tpot_s is not None


async def test_an_event_of_megabytes() -> None:
    big = token("x" * 1_500_000)
    exchange = await ask_once(streams(big, FINISH))
    assert (exchange.failure, exchange.chunks) == (None, 1)


async def test_first_token_is_not_the_role_nor_a_comment() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    script = sends(
        STREAM_HEAD,
        chunk(b": keep-alive\n\n"),
        chunk(role),
        chunk(token("a") + FINISH),
        LAST_CHUNK,
        pause_s=0.01,
    )
    exchange = await ask_once(script)
    assert exchange.chunks == 1
    assert exchange.first_token_s == exchange.last_token_s


@pytest.mark.parametrize(
    "delta",
    [
        b'{"delta":{"reasoning_content":"hm"}}',
        b'{"delta":{"tool_calls":[{"index":0}]}}',
        b'{"text":"hm"}',
    ],
)
async def test_every_kind_of_token_counts(delta: bytes) -> None:
    exchange = await ask_once(streams(b'data: {"choices":[' + delta + b"]}\n\n", FINISH))
    assert (exchange.failure, exchange.chunks) == (None, 1)


DEEP = b'{"error":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
NO_JSON = "500 without a JSON error"
WHOLE = "neither a stream nor JSON: no content type"
ERROR = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError"}}\n\n'


@pytest.mark.parametrize(
    ("script", "outcome", "cause"),
    [
        (streams(token("a"), ERROR, DONE), Outcome.STREAM_ERROR, "InternalServerError"),
        (
            streams(b'event: error\ndata: {"error":"boom"}\n\n'),
            Outcome.STREAM_ERROR,
            "error",
        ),
        (
            streams(b'data: {"object":"error","message":"m","type":"BadRequestError"}\n\n'),
            Outcome.STREAM_ERROR,
            "BadRequestError",
        ),
        (
            streams(token("a"), USAGE, DONE),
            Outcome.TRUNCATED,
            "stream ended without a finish reason",
        ),
        (streams(), Outcome.TRUNCATED, "stream ended without a finish reason"),
        (
            sends(STREAM_HEAD, chunk(token("a")), close=True),
            Outcome.TRUNCATED,
            "connection closed inside the answer",
        ),
        (
            streams(b"data: {nonsense\n\n", FINISH),
            Outcome.BAD_RESPONSE,
            "event is not a completion",
        ),
        (
            streams(b'data: {"choices":[{"text":"\xff"}]}\n\n'),
            Outcome.BAD_RESPONSE,
            "event is not a completion",
        ),
        (sends(b"SSH-2.0-OpenSSH\r\n"), Outcome.BAD_RESPONSE, "not HTTP"),
        (sends(b"HTTP/1.1 500 x\r\n\r\n", DEEP, close=True), Outcome.HTTP_ERROR, NO_JSON),
        (sends(b"HTTP/1.1 200 x\r\n\r\n", DEEP, close=True), Outcome.BAD_RESPONSE, WHOLE),
        (
            streams(b"data: " + DEEP + b"\n\n"),
            Outcome.BAD_RESPONSE,
            "event is not a completion",
        ),
        (
            sends(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"),
            Outcome.BAD_RESPONSE,
            "head too large",
        ),
        (drops, Outcome.DISCONNECTED, "connection closed before an answer"),
        (
            answers("502 Bad Gateway", "text/plain", b"upstream said no"),
            Outcome.HTTP_ERROR,
            "502 without a JSON error",
        ),
        (
            answers(
                "429 Too Many Requests",
                "application/json",
                b'{"error":{"message":"slow down","type":"rate_limit_error","code":"queue_full"}}',
            ),
            Outcome.HTTP_ERROR,
            "429 rate_limit_error",
        ),
        (
            answers(
                "503 Service Unavailable",
                "application/json",
                b'{"error":{"message":"m"}}',
                b"x-pointsman-reason: no_node",
            ),
            Outcome.HTTP_ERROR,
            "503 no_node",
        ),
        (
            answers("400 Bad Request", "application/json", b'{"object":"error","type":"Bad"}'),
            Outcome.HTTP_ERROR,
            "400 Bad",
        ),
        (
            answers("200 OK", "text/html", b"<html>"),
            Outcome.BAD_RESPONSE,
            "neither a stream nor JSON: text/html",
        ),
        (
            answers("200 OK", "application/json", b"{}"),
            Outcome.BAD_RESPONSE,
            "answer without a finished choice",
        ),
    ],
)
async def test_trouble_is_named(script: Script, outcome: Outcome, cause: str) -> None:
    exchange = await ask_once(script)
    assert (exchange.failure, exchange.cause) == (outcome, cause)


async def test_an_answer_in_one_piece_is_fine() -> None:
    body = (
        b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":4,"completion_tokens":1}}'
    )
    exchange = await ask_once(answers("200 OK", "application/json", body))
    assert (exchange.failure, exchange.prompt_tokens, exchange.cached_tokens) == (None, 4, None)


async def test_a_body_that_ends_with_the_connection_is_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    exchange = await ask_once(sends(head, GOOD, close=True))
    assert (exchange.failure, exchange.chunks) == (None, 3)


async def test_interim_answers_are_skipped() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    exchange = await ask_once(sends(interim, STREAM_HEAD, chunk(GOOD), LAST_CHUNK))
    assert (exchange.failure, exchange.status, exchange.chunks) == (None, 200, 3)
    assert "link" not in exchange.headers


async def test_timeout_names_its_length() -> None:
    exchange = await ask_once(sends(STREAM_HEAD, chunk(token("a"))), timeout_s=0.2)
    assert (exchange.failure, exchange.cause) == (Outcome.TIMEOUT, "not over within 0.2 s")
    assert exchange.chunks == 1


async def test_connection_refused_and_unknown_host_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        exchange = await ask(LoadClient(parse_target(f"127.0.0.1:{port}")))
        assert (exchange.failure, exchange.cause) == (Outcome.CONNECT_ERROR, "connection refused")
    for host in ("no-such-host.invalid", "10.0.0..1"):
        exchange = await ask(LoadClient(parse_target(f"http://{host}")))
        assert (exchange.failure, exchange.cause) == (Outcome.CONNECT_ERROR, "no such host")


async def test_a_connection_is_reused() -> None:
    async with rude_server(streams(GOOD)) as server:
        client = LoadClient(parse_target(server.url))
        for _ in range(5):
            assert (await ask(client)).failure is None
        client.close()
        assert (server.connections, len(server.requests)) == (1, 5)


async def test_a_stale_connection_is_replaced_once_without_an_error() -> None:
    async with rude_server(streams(GOOD), drops, streams(GOOD)) as server:
        client = LoadClient(parse_target(server.url))
        assert (await ask(client)).failure is None
        assert (await ask(client)).failure is None
        client.close()
        assert (client.reconnects, server.connections, len(server.requests)) == (1, 2, 3)


async def test_a_fresh_connection_that_drops_is_not_tried_again() -> None:
    async with rude_server(drops) as server:
        assert (await ask(LoadClient(parse_target(server.url)))).failure is Outcome.DISCONNECTED
        assert len(server.requests) == 1


async def test_connection_close_and_stray_bytes_end_reuse() -> None:
    closing = STREAM_HEAD.replace(b"x-request-id", b"connection: close\r\nx-request-id")
    stray = sends(STREAM_HEAD, chunk(GOOD), LAST_CHUNK + b"HTTP/1.1 200 OK\r\n\r\n")
    async with rude_server(sends(closing, chunk(GOOD), LAST_CHUNK), stray, streams(GOOD)) as server:
        client = LoadClient(parse_target(server.url))
        for _ in range(3):
            assert (await ask(client)).failure is None
        client.close()
        assert server.connections == 3


async def test_connections_are_limited() -> None:
    async with rude_server(streams(token("a"), FINISH)) as server:
        limits = ClientLimits(connections_max=3)
        client = LoadClient(parse_target(server.url), limits=limits)
        done = await asyncio.gather(*(ask(client) for _ in range(20)))
        client.close()
        assert [exchange.failure for exchange in done] == [None] * 20
        assert server.open_max <= 3


async def test_interrupt_ends_what_runs_and_what_comes() -> None:
    async with rude_server(sends(STREAM_HEAD)) as server:
        client = LoadClient(parse_target(server.url))
        running = asyncio.ensure_future(ask(client))
        await server.received(1)
        client.interrupt()
        assert (await running).failure is Outcome.INTERRUPTED
        assert (await ask(client)).failure is Outcome.INTERRUPTED


async def test_cancellation_drops_the_connection_and_frees_the_slot() -> None:
    async with rude_server(sends(STREAM_HEAD), streams(GOOD)) as server:
        limits = ClientLimits(connections_max=1)
        client = LoadClient(parse_target(server.url), limits=limits)
        running = asyncio.ensure_future(ask(client))
        await server.received(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await ask(client)).failure is None
        client.close()


async def test_fetch_gives_status_and_body_or_the_cause() -> None:
    body = json.dumps({"data": [{"id": "m"}]}).encode()
    async with rude_server(answers("200 OK", "application/json", body), drops, drops) as server:
        client = LoadClient(parse_target(server.url + "/base/v1/"), api_key="secret")
        assert await client.fetch("GET", "/v1/models") == (200, body)
        first, headers, _ = server.requests[0]
        assert first == "GET /base/v1/models HTTP/1.1"
        assert headers["authorization"] == "Bearer secret"
        with pytest.raises(ConnectionError, match="before an answer"):
            await client.fetch("GET", "/v1/models")
        client.close()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999"])
def test_bad_targets_have_a_remedy(url: str) -> None:
    with pytest.raises(ValueError, match="Remedy: "):
        parse_target(url)


def test_targets() -> None:
    target = parse_target("https://[::1]/a/v1")
    assert (target.authority, target.base_path) == ("[::1]:443", "/a")
    assert parse_target("localhost:8080").authority == "localhost:8080"
