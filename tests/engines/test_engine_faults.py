"""Everything `POST /simulate` can order, and what clients do to a running engine."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock, Mock

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from pointsman.engines.simulated import RunningEngine
from tests.support.engines import running_engine
from tests.support.waiting import eventually

BODY: dict[str, object] = {"model": "sim", "prompt": "abc " * 40, "max_tokens": 8}
LONG_TOKENS = 40_000  # some seconds: longer than a busy machine stalls
LONG = {**BODY, "max_tokens": LONG_TOKENS}


@pytest.fixture
async def engine() -> AsyncIterator[RunningEngine]:
    async with running_engine() as running:
        yield running


@pytest.fixture
async def http(engine: RunningEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


async def simulate(http: aiohttp.ClientSession, **patch: object) -> dict:  # type: ignore[type-arg]  # any JSON
    async with http.post("/simulate", json=patch) as response:
        assert response.status == 200, await response.text()
        state = await response.json()
        assert isinstance(state, dict)
        return state


async def status(http: aiohttp.ClientSession) -> int:
    async with http.post("/v1/completions", json=BODY) as response:
        await response.read()
        return response.status


def empty(engine: RunningEngine) -> bool:
    driver = engine.engine.driver
    driver.model.check()
    return driver.requests == 0 and driver.model.pool.used == 0 and engine.engine.load == 0


async def chunks(http: aiohttp.ClientSession, body: dict) -> tuple[list[str], bool]:  # type: ignore[type-arg]  # any JSON
    """The data lines of a stream, and whether its HTTP message was complete."""
    text = b""
    complete = True
    async with http.post("/v1/completions", json={**body, "stream": True}) as response:
        assert response.status == 200
        try:
            async for part in response.content.iter_any():
                text += part
        except (aiohttp.ClientPayloadError, ConnectionResetError, aiohttp.ClientOSError):
            complete = False
    return [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")], complete


async def test_status_answers_a_number_of_requests(http: aiohttp.ClientSession) -> None:
    await simulate(http, status=503, count=2, retry_after=7)
    async with http.post("/v1/chat/completions", json={"messages": []}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "7")
        assert (await response.json())["error"]["code"] == 503
    assert [await status(http) for _ in range(2)] == [503, 200]


async def test_status_stays_until_it_is_ended(http: aiohttp.ClientSession) -> None:
    await simulate(http, status=429)
    assert [await status(http) for _ in range(3)] == [429] * 3
    await simulate(http, status=None)
    assert await status(http) == 200


async def test_health_can_fail_alone(http: aiohttp.ClientSession) -> None:
    await simulate(http, health_status=503)
    async with http.get("/health") as response:
        assert response.status == 503
    assert await status(http) == 200


async def test_hang_accepts_and_never_answers(
    http: aiohttp.ClientSession, engine: RunningEngine
) -> None:
    await simulate(http, hang=True)
    for stream in (False, True):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await http.post("/v1/completions", json={**BODY, "stream": stream})
    await eventually(lambda: empty(engine))


async def test_hang_stalls_what_is_running_and_ends(
    http: aiohttp.ClientSession, engine: RunningEngine
) -> None:
    await simulate(http, slow=500)
    running = asyncio.create_task(chunks(http, {**BODY, "max_tokens": 300}))
    await eventually(lambda: engine.engine.driver.steps > 3)
    await simulate(http, hang=True)
    steps = engine.engine.driver.steps
    await asyncio.sleep(0.1)
    assert engine.engine.driver.steps == steps
    assert not running.done()
    await simulate(http, hang=False, slow=1)
    lines, complete = await running
    assert complete
    assert len(lines) == 301


async def test_slow_stretches_steps(http: aiohttp.ClientSession, engine: RunningEngine) -> None:
    state = await simulate(http, slow=50)
    assert state["faults"]["slow"] == 50
    began = time.monotonic()
    assert await status(http) == 200
    profile = engine.engine.profile
    assert time.monotonic() - began >= 8 * profile.base_s * 50 / engine.options.speed


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3])
async def test_cut_after_n_tokens(http: aiohttp.ClientSession, count: int, reset: bool) -> None:
    await simulate(http, cut_at_token=count, cut_reset=reset, count=1)
    lines, complete = await chunks(http, BODY)
    assert not complete
    assert len(lines) == count or (reset and len(lines) <= count)
    lines, complete = await chunks(http, BODY)
    assert complete
    assert lines[-1] == "[DONE]"


async def test_cut_of_a_whole_answer_gives_no_byte(http: aiohttp.ClientSession) -> None:
    await simulate(http, cut_at_token=3, count=2)
    with pytest.raises(aiohttp.ClientError):  # a client may try once more by itself
        await status(http)
    await simulate(http, reset=True)
    assert await status(http) == 200


async def test_error_in_band_as_when_the_core_dies(
    http: aiohttp.ClientSession, engine: RunningEngine
) -> None:
    await simulate(http, error_at_token=2, count=2)
    lines, complete = await chunks(http, BODY)
    assert complete
    assert len(lines) == 4
    assert json.loads(lines[2])["error"]["code"] == 500
    assert lines[3] == "[DONE]"
    assert await status(http) == 500
    assert await status(http) == 200
    await eventually(lambda: empty(engine))


async def test_restart_cuts_requests_and_empties_cache(
    http: aiohttp.ClientSession, engine: RunningEngine
) -> None:
    assert await status(http) == 200
    running = asyncio.create_task(chunks(http, LONG))
    await eventually(lambda: engine.engine.driver.requests == 1)
    state = await simulate(http, restart=True)
    assert (state["restarts"], state["kv_blocks_cached"], state["running"]) == (1, 0, 0)
    _lines, complete = await running
    assert not complete
    await eventually(lambda: empty(engine))
    async with http.post("/v1/completions", json=BODY) as response:
        usage = (await response.json())["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_idle_connections_are_closed_without_notice(engine: RunningEngine) -> None:
    async with aiohttp.ClientSession(engine.url) as http:
        await simulate(http, idle_close_s=0.1)
    reader, writer = await asyncio.open_connection(engine.options.host, engine.port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"200" in head
    assert b"keep-alive" not in head.lower()
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_client_that_leaves_before_the_head_is_no_error(engine: RunningEngine) -> None:
    body = aiohttp.StreamReader(Mock(_reading_paused=False), limit=2**16)
    body.feed_data(json.dumps({**BODY, "stream": True}).encode())
    body.feed_eof()
    writer = Mock(write_headers=AsyncMock())
    writer.send_headers.side_effect = aiohttp.ClientConnectionResetError("closing")
    request = make_mocked_request("POST", "/v1/completions", payload=body, writer=writer)
    answer = await engine.engine.handle(request)
    assert answer.status == 499
    assert empty(engine)


async def test_reset_ends_every_fault(http: aiohttp.ClientSession) -> None:
    before = await simulate(http)
    await simulate(http, slow=3, status=500, health_status=500, cut_at_token=1, idle_close_s=1)
    assert (await simulate(http, reset=True))["faults"] == before["faults"]


@pytest.mark.parametrize("patch", [{"slow": 0}, {"status": 99}, {"typo": 1}, {"hang": "yes"}])
async def test_impossible_faults_are_refused(
    http: aiohttp.ClientSession,
    patch: dict,  # type: ignore[type-arg]  # any JSON
) -> None:
    async with http.post("/simulate", json=patch) as response:
        assert response.status == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_blocks(engine: RunningEngine, stream: bool) -> None:
    reader, writer = await asyncio.open_connection(engine.options.host, engine.port)
    body = json.dumps({**LONG, "stream": stream, "n": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    await eventually(lambda: engine.engine.driver.model.running == 2)
    if stream:
        await reader.readuntil(b"data: ")
    writer.close()
    await eventually(lambda: empty(engine))
    assert engine.engine.driver.steps < LONG_TOKENS


async def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    async with running_engine(max_num_seqs=1) as engine:
        async with aiohttp.ClientSession(engine.url) as http:
            tasks = [asyncio.create_task(chunks(http, LONG)) for _ in range(3)]
            await eventually(lambda: engine.engine.driver.model.waiting == 2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await eventually(lambda: empty(engine))


async def test_a_client_that_does_not_read_costs_no_memory_and_misses_nothing() -> None:
    async with running_engine(speed=10_000) as engine:
        reader, writer = await asyncio.open_connection(engine.options.host, engine.port, limit=1024)
        tokens = 60_000
        body = json.dumps({**BODY, "max_tokens": tokens, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await eventually(lambda: engine.engine.driver.steps >= tokens)
        assert engine.transports[0].get_write_buffer_size() < 1024 * 1024  # of 13 MB
        received = b""
        while b"\r\n0\r\n\r\n" not in received[-16:]:
            received += await reader.read(1 << 16)
        assert received.count(b"data: ") == tokens + 1
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: empty(engine))


async def test_the_queue_limit_answers_503() -> None:
    async with (
        running_engine(max_num_queued_reqs=2) as engine,
        aiohttp.ClientSession(engine.url) as http,
    ):
        tasks = [asyncio.create_task(chunks(http, LONG)) for _ in range(2)]
        await eventually(lambda: engine.engine.driver.requests == 2)
        async with http.post("/v1/completions", json=BODY) as response:
            assert response.status == 503
            assert "Retry-After" not in response.headers
            error = (await response.json())["error"]
        assert (error["type"], error["code"]) == ("Service Unavailable", 503)
        async with http.get("/metrics") as response:
            text = await response.text()
        assert 'reason="max_num_queued_reqs"} 1.0' in text
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_priority_overtakes_in_the_queue() -> None:
    async with (
        running_engine(max_num_seqs=1) as engine,
        aiohttp.ClientSession(engine.url) as http,
    ):
        order: list[str] = []

        async def ask(name: str, header: str | None = None, **more: object) -> None:
            headers = {"X-Vllm-Priority": header} if header else {}
            body = {**BODY, "max_tokens": 60, **more}
            async with http.post("/v1/completions", json=body, headers=headers) as response:
                assert response.status == 200
                await response.read()
            order.append(name)

        await simulate(http, slow=1000)  # until all are queued
        async with asyncio.TaskGroup() as group:
            group.create_task(ask("running"))
            await eventually(lambda: engine.engine.driver.model.running == 1)
            for name, header, more in (
                ("normal", None, {}),
                ("body", None, {"priority": -1}),
                ("header", "-5", {"priority": 9}),
            ):
                waiting = engine.engine.driver.model.waiting
                group.create_task(ask(name, header, **more))
                await eventually(lambda w=waiting: engine.engine.driver.model.waiting == w + 1)  # type: ignore[misc]  # a lambda with a bound default
            await simulate(http, slow=1)
        assert order == ["running", "header", "body", "normal"]


async def test_stopping_ends_streams_with_the_error_frame() -> None:
    async with aiohttp.ClientSession() as http:
        async with running_engine(speed=1.0) as engine:
            response = await http.post(
                f"{engine.url}/v1/completions", json={**LONG, "stream": True}
            )
            await response.content.readuntil(b"\n\n")
        text = (await response.read()).decode()
    assert '"code": 500' in text
    assert text.endswith("data: [DONE]\n\n")


async def test_http_1_0_gets_an_unframed_stream(engine: RunningEngine) -> None:
    reader, writer = await asyncio.open_connection(engine.options.host, engine.port)
    body = json.dumps({**BODY, "stream": True}).encode()
    writer.write(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    head, _, text = (await reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert text.startswith(b"data: {")
    assert text.endswith(b"data: [DONE]\n\n")
    writer.close()
    await writer.wait_closed()
