"""What other routers were probed for in their default settings, and what is right.

Seen there: 60 distinct prompts all on one of two idle workers; five attempts in 0.4 s on a 429
that asked for 7 s; ten attempts and a worker's URL in the answer when it closed the connection;
500 as text when all were down; token ids, five stop strings and 64-bit seeds refused; bodies
rewritten; compressed bodies refused. What they do well is held here, too.
"""

import asyncio
import gzip
import json
from collections import Counter

import pytest

from pointsman.cli.config import Listen
from tests.support.cluster import quiet_config, running_cluster
from tests.support.raw_cluster import raw_cluster
from tests.support.upstreams import OK_BODY, STREAM, Received, Served, answer_ok, get, post

NOTICED_S_MAX = 2.0


async def close_before_the_reply(served: Served) -> None:
    served.writer.close()


async def busy_for_seven_seconds(served: Served) -> None:
    body = b'{"error":{"message":"busy","type":"overloaded","param":null,"code":429}}'
    await served.reply(429, body, "Retry-After: 7")


def error_of(received: Received) -> dict[str, object]:
    """The error of an answer in OpenAI's shape."""
    error: dict[str, object] = json.loads(received.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def shows_no_address(received: Received, *urls: str) -> bool:
    said = received.head + received.body
    return not any(url.rpartition(":")[2].encode() in said for url in urls)


# --- placement and trouble ----------------------------------------------------------------


async def test_distinct_prompts_one_after_the_other_on_two_idle_equal_workers() -> None:
    async with running_cluster(2, speed=1.0) as cluster:
        counts = Counter([(await cluster.complete(f"prompt {n}")).node for n in range(60)])
    assert 25 <= counts["engine-1"] <= 35, counts


async def test_a_429_is_tried_once_on_each_other_worker_and_its_header_passed_on() -> None:
    async with raw_cluster(busy_for_seven_seconds, busy_for_seven_seconds) as cluster:
        received = await cluster.ask(post())
        assert [len(cluster.posts(0)), len(cluster.posts(1))] == [1, 1]
    assert (received.status, received.header("retry-after")) == (429, "7")
    error_of(received)


async def test_a_429_of_one_worker_is_served_by_the_other() -> None:
    async with raw_cluster(busy_for_seven_seconds, answer_ok) as cluster:
        answers = [await cluster.ask(post()) for _ in range(4)]
        assert cluster.posts(0), "it was asked"
    assert {(answer.status, answer.body) for answer in answers} == {(200, OK_BODY)}


async def test_a_worker_that_closes_before_the_reply_gets_two_attempts_at_most() -> None:
    async with raw_cluster(close_before_the_reply, close_before_the_reply) as cluster:
        received = await cluster.ask(post())
        assert len(cluster.posts(0)) + len(cluster.posts(1)) <= 2
        assert received.status == 502
        assert error_of(received)["code"] == "node_closed"
        assert received.header("x-pointsman-reason") == "node_closed"
        assert shows_no_address(received, *(engine.url for engine in cluster.engines))


async def test_all_workers_down_is_503_with_retry_after_at_once() -> None:
    async with raw_cluster(answer_ok, answer_ok) as cluster:
        urls = [engine.url for engine in cluster.engines]
        for engine in cluster.engines:
            await engine.stop()
        answers = [await cluster.ask(post()) for _ in range(12)]
        assert all(shows_no_address(answer, *urls) for answer in answers)
    last = answers[-1]
    assert (last.status, last.header("x-pointsman-reason")) == (503, "no_node")
    assert int(last.header("retry-after") or 0) >= 1
    assert {answer.status for answer in answers} == {503}
    assert all(int(answer.header("retry-after") or 0) >= 1 for answer in answers)
    assert {error_of(answer)["type"] for answer in answers} == {"server_error"}


async def test_an_unknown_model_is_404_and_reaches_no_worker() -> None:
    async with raw_cluster(answer_ok) as cluster:
        received = await cluster.ask(post(body=b'{"model":"unknown","prompt":"x"}'))
        assert received.status == 404
        assert error_of(received)["code"] == "model_not_found"
        assert not cluster.posts()


# --- bodies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":[1,2,3]}',
        b'{"model":"m","prompt":"x","stop":["1","2","3","4","5"]}',
        b'{"model":"m","prompt":"x","seed":18446744073709551615}',
        b'{ "zzz" : 1, "model":"m",\n"prompt":"x", "aaa":[1.0,1e3], "text":"\\u00e9" }\n',
        json.dumps({"model": "m", "prompt": "x" * 20_000_000}).encode(),
        b'{"model":"m","prompt":"x","deep":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
    ids=["token ids", "5 stops", "64-bit seed", "odd", "20 MB", "deep"],
)
async def test_a_body_arrives_byte_for_byte(body: bytes) -> None:
    async with raw_cluster(answer_ok) as cluster:
        assert (await cluster.ask(post(body=body))).status == 200
        assert cluster.posts()[0].body == body


async def test_a_compressed_body_is_decoded_within_a_bound() -> None:
    plain = b'{"model":"m","prompt":"x"}'
    bomb = gzip.compress(b" " * 40 * 1024 * 1024)
    async with raw_cluster(answer_ok) as cluster:
        packed = await cluster.ask(post("/v1/completions", gzip.compress(plain), GZIP))
        assert packed.status == 200
        assert cluster.posts()[0].body == plain
        assert (await cluster.ask(post("/v1/completions", bomb, GZIP))).status == 413


GZIP = "Content-Encoding: gzip"


@pytest.mark.parametrize(
    ("origins", "allowed"), [(("*",), "*"), (("https://app.example",), "https://app.example")]
)
async def test_a_preflight_is_answered_as_configured(
    origins: tuple[str, ...], allowed: str
) -> None:
    listen = Listen(port=0, cors_origins=origins, api_keys=("key",))
    base = quiet_config(listen=listen)
    lines = ("Origin: https://app.example", "Access-Control-Request-Method: POST")
    stranger = ("Origin: https://other.example", "Access-Control-Request-Method: POST")
    path = "/v1/chat/completions"
    async with raw_cluster(answer_ok, config=base) as cluster:
        received = await cluster.ask(get(path, *lines, method="OPTIONS"))
        assert received.status == 204, "without a key: browsers send none"
        assert received.header("access-control-allow-origin") == allowed
        assert "POST" in (received.header("access-control-allow-methods") or "")
        other = await cluster.ask(get(path, *stranger, method="OPTIONS"))
        is_open = other.header("access-control-allow-origin") is not None
        assert is_open == (origins == ("*",))


# --- what they do well --------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["before the head", "in the stream"])
async def test_a_client_that_leaves_is_noticed_at_once(phase: str) -> None:
    seen = asyncio.Event()
    left = asyncio.Event()

    async def serve(served: Served) -> None:
        if phase == "in the stream":
            await served.begin_stream()
            await served.chunk(b"data: {}\n\n")
        seen.set()
        await served.until_closed()
        left.set()

    async with raw_cluster(serve) as cluster:
        client = await cluster.connect()
        await client.send(post(body=STREAM))
        async with asyncio.timeout(10):
            await seen.wait()
            if phase == "in the stream":
                await client.head()
        client.leave()
        async with asyncio.timeout(NOTICED_S_MAX):
            await left.wait()


async def test_characters_cut_in_two_arrive_whole() -> None:
    events = 'data: {"text":"한국어 🚂"}\n\ndata: [DONE]\n\n'.encode()

    async def stream(served: Served) -> None:
        await served.begin_stream()
        for at in range(len(events)):
            await served.chunk(events[at : at + 1])
        await served.end_stream()

    async with raw_cluster(stream) as cluster:
        assert (await cluster.ask(post(body=STREAM))).body == events


async def test_an_event_of_a_megabyte_and_a_half_arrives_whole() -> None:
    event = b'data: "' + b"x" * 1_500_000 + b'"\n\n'

    async def stream(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(event)
        await served.end_stream()

    async with raw_cluster(stream) as cluster:
        assert (await cluster.ask(post(body=STREAM))).body == event


async def test_http_1_0_gets_its_answer_and_the_connection_closed() -> None:
    async with raw_cluster(answer_ok) as cluster:
        client = await cluster.connect()
        await client.send(post(version="1.0"))
        received = await client.answer()
        assert (received.status, received.body) == (200, OK_BODY)
        assert await client.closed()
        client.leave()


async def test_expect_is_answered_before_the_body() -> None:
    body = b'{"model":"m","prompt":"x"}'
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        "Expect: 100-continue\r\n\r\n"
    )
    async with raw_cluster(answer_ok) as cluster:
        client = await cluster.connect()
        await client.send(head.encode())
        assert (await client.head()).startswith(b"HTTP/1.1 100 ")
        await client.send(body)
        assert (await client.answer()).status == 200
        client.leave()


async def test_a_chunked_request_arrives() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with raw_cluster(answer_ok) as cluster:
        received = await cluster.ask(head + b'1a\r\n{"model":"m","prompt":"x"}\r\n0\r\n\r\n')
        assert received.status == 200
        assert cluster.posts()[0].body == b'{"model":"m","prompt":"x"}'


async def test_two_framings_at_once_are_refused() -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    async with raw_cluster(answer_ok) as cluster:
        client = await cluster.connect()
        await client.send(head)
        assert (await client.answer()).status == 400
        assert await client.closed(), "what follows could be anything"
        client.leave()
        assert not cluster.posts()


async def test_a_reused_connection_that_the_worker_just_closed_costs_no_request() -> None:
    """The race of keep-alive: uvicorn closes an idle connection as the next request comes."""
    requests = 0

    async def answer_once(served: Served) -> None:
        nonlocal requests
        requests += 1
        if requests % 2 == 0:
            served.writer.transport.abort()  # idle for too long, it thinks
            return
        await answer_ok(served)

    async with raw_cluster(answer_once) as cluster:
        answers = [await cluster.ask(post()) for _ in range(10)]
    assert {answer.status for answer in answers} == {200}
