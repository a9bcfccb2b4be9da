"""The relay in front of an engine: bytes as they come, and requests handed back in time."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from pointsman.agent import front as front_module
from pointsman.agent.front import HAND_BACK, Front, FrontOptions
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.simulated import RunningEngine
from tests.support import upstreams
from tests.support.engines import running_engine
from tests.support.waiting import eventually

BODY = {"model": "sim", "prompt": "where do trains go?", "max_tokens": 4}


class Setting:
    """An engine, what is in front of it, and a client."""

    def __init__(self, engine: RunningEngine, front: Front, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.front = front
        self.session = session
        self.url = f"http://127.0.0.1:{front.port}"

    async def complete(self, **fields: Any) -> tuple[int, Any, Any]:
        async with self.session.post(
            f"{self.url}/v1/completions", json={**BODY, **fields}
        ) as reply:
            return reply.status, await reply.json(), reply.headers

    async def simulate(self, **faults: object) -> None:
        async with self.session.post(f"{self.engine.url}/simulate", json=faults) as reply:
            assert reply.status == 200


@asynccontextmanager
async def fronted(**options: Any) -> AsyncIterator[Setting]:
    speed, url = options.pop("speed", 100.0), options.pop("url", "")
    async with (
        running_engine(speed=speed) as engine,
        Front(url or engine.url, FrontOptions(**options)).serving() as front,
        aiohttp.ClientSession() as session,
    ):
        yield Setting(engine, front, session)
        await at_rest(front)


async def at_rest(front: Front) -> None:
    await eventually(lambda: not front.queue.running and not front.queue.waiting)
    front.queue.check()


async def test_answers_are_the_engines_own() -> None:
    async with fronted() as s:
        status, body, headers = await s.complete()
        assert (status, body["usage"]["completion_tokens"]) == (200, 4)
        assert headers["content-type"].startswith("application/json")
        status, body, _ = await s.complete(model="unknown")
        assert status == 404, "a client's mistake is told as the engine tells it"
        async with s.session.get(f"{s.url}/v1/models") as reply:
            assert (await reply.json())["data"][0]["id"] == "sim"


async def test_the_engines_key_is_added_in_the_place_of_the_clients() -> None:
    async with running_engine(api_key="own") as engine:
        for keys, status in ((EngineKeys({engine.url: "own"}), 200), (EngineKeys(), 401)):
            async with (
                Front(engine.url, FrontOptions(), keys=keys).serving() as front,
                aiohttp.ClientSession(headers={"Authorization": "Bearer client's"}) as session,
            ):
                assert (await Setting(engine, front, session).complete())[0] == status


async def test_a_stream_is_not_gathered() -> None:
    async with (
        fronted(speed=1.0) as s,
        s.session.post(
            f"{s.url}/v1/completions", json={**BODY, "stream": True, "max_tokens": 20}
        ) as reply,
    ):
        pieces = [piece async for piece in reply.content.iter_any()]
        assert len(pieces) >= 10
        assert pieces[-1].endswith(b"data: [DONE]\n\n")


async def test_a_client_that_waits_to_be_told_sends_its_body() -> None:
    async with fronted() as s, asyncio.timeout(10):
        reply = await s.session.post(f"{s.url}/v1/completions", json=BODY, expect100=True)
        assert reply.status == 200


@pytest.mark.parametrize(
    "data", [gzip.compress(b'{"prompt":"hi"}'), b"no gzip"], ids=["zipped", "broken"]
)
async def test_a_compressed_body_goes_on_as_it_is(data: bytes) -> None:
    async with upstreams.engine(upstreams.answer_ok) as engine, fronted(url=engine.url) as s:
        headers = {"content-encoding": "gzip"}
        reply = await s.session.post(f"{s.url}/v1/completions", data=data, headers=headers)
        assert reply.status == 200
    [served] = engine.served
    assert (served.body, served.header("content-encoding")) == (data, "gzip")


async def test_what_the_engine_cannot_start_waits_and_is_served() -> None:
    async with fronted(running_max=1, wait_s_max=20.0) as s:
        answers = await asyncio.gather(*(s.complete() for _ in range(5)))
        assert [status for status, _, _ in answers] == [200] * 5
        assert s.front.handed_back == 0


async def test_what_would_wait_too_long_is_handed_back() -> None:
    async with fronted(running_max=1, wait_s_max=0.05) as s:
        await s.simulate(hang=True)
        first = asyncio.create_task(s.complete())
        await eventually(lambda: s.front.queue.running)
        status, body, headers = await s.complete()
        assert (status, headers[HAND_BACK], headers["retry-after"]) == (503, "busy", "1")
        assert "busy" in body["error"]["message"]
        await s.simulate(reset=True)
        assert (await first)[0] == 200


async def test_one_of_several_ranks_can_have_a_front() -> None:
    async with (
        running_engine(data_parallel_size=2) as engine,
        Front(f"{engine.url}#1", FrontOptions()).serving() as front,
        aiohttp.ClientSession(headers={"X-data-parallel-rank": "1"}) as session,
    ):
        assert (await Setting(engine, front, session).complete())[0] == 200
        await at_rest(front)
        asked = [rank.stats.prompt_tokens for rank in engine.engine.ranks]
    assert asked[0] == 0 < asked[1]


async def test_a_full_queue_hands_back_at_once() -> None:
    async with fronted(running_max=1, waiting_max=0, wait_s_max=60.0) as s:
        await s.simulate(hang=True)
        first = asyncio.create_task(s.complete())
        await eventually(lambda: s.front.queue.running)
        assert (await s.complete())[0] == 503
        await s.simulate(reset=True)
        assert (await first)[0] == 200


async def test_what_all_bodies_take_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fronted(wait_s_max=20.0) as s:
        await s.simulate(hang=True)
        first = asyncio.create_task(s.complete(prompt="a" * 900))
        await eventually(lambda: s.front.queue.running)
        monkeypatch.setattr(front_module, "BODIES_BYTES_MAX", 1_000)
        assert (await s.complete())[0] == 503
        await s.simulate(reset=True)
        assert (await first)[0] == 200
        await eventually(lambda: s.front.bodies_bytes == 0)
        monkeypatch.setattr(front_module, "BODY_BYTES_MAX", 10)
        async with s.session.post(f"{s.url}/v1/completions", json=BODY) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (413, "body_too_large")


async def test_the_urgent_go_first() -> None:
    async with fronted(running_max=1, wait_s_max=30.0) as s:
        await s.simulate(hang=True)
        first = asyncio.create_task(s.complete())
        await eventually(lambda: s.front.queue.running)
        ended: list[str] = []

        async def send(name: str, **fields: object) -> None:
            await s.complete(**fields)
            ended.append(name)

        tasks = []
        for name, fields in (("low", {"service_tier": "flex"}), ("high", {"priority": -5})):
            tasks.append(asyncio.create_task(send(name, **fields)))
            await eventually(lambda: s.front.queue.waiting == len(tasks))
        await s.simulate(reset=True)
        await asyncio.gather(first, *tasks)
        assert ended == ["high", "low"]


@pytest.mark.parametrize(
    ("headers", "body", "priority"),
    [
        ({"X-Pointsman-Priority": "-3"}, {"priority": -50}, -3),
        ({"X-Pointsman-Priority": "0"}, {"service_tier": "priority"}, 0),
        ({"X-Pointsman-Priority": "2", "X-Vllm-Priority": "-50"}, {}, 2),
        ({"X-Pointsman-Priority": "high"}, {}, 10),
        ({"X-Pointsman-Priority": "5000"}, {}, 100),
        ({"X-Pointsman-Priority": "urgent"}, {"priority": -4}, 4),
        ({"X-Vllm-Priority": "-7"}, {"priority": 9}, 7),
        ({"X-Vllm-Priority": "soon"}, {"priority": 9}, -9),
        ({}, {"service_tier": "flex"}, -10),
        ({}, {}, 0),
    ],
)
async def test_a_front_goes_by_what_the_gateway_has_decided(
    headers: dict[str, str], body: dict[str, object], priority: int
) -> None:
    """Then by vLLM's header, then by the body."""
    async with fronted(running_max=1, wait_s_max=30.0) as s:
        await s.simulate(hang=True)
        first = asyncio.create_task(s.complete())
        await eventually(lambda: s.front.queue.running)
        s.session.headers.update(headers)
        second = asyncio.create_task(s.complete(**body))
        await eventually(lambda: s.front.queue.waiting == 1)
        assert [waiting for waiting, _ in s.front.queue._lanes] == [priority]
        await s.simulate(reset=True)
        assert {(await first)[0], (await second)[0]} == {200}


async def test_a_client_that_leaves_takes_its_request_along() -> None:
    async with fronted(speed=1.0) as s:
        async with s.session.post(
            f"{s.url}/v1/completions", json={**BODY, "stream": True, "max_tokens": 5_000}
        ) as reply:
            await reply.content.readany()
            assert s.engine.engine.driver.requests == 1
            reply.close()
        await eventually(lambda: not s.engine.engine.driver.requests)


async def test_who_leaves_while_waiting_gives_up_the_place() -> None:
    async with fronted(running_max=1, wait_s_max=30.0) as s:
        await s.simulate(hang=True)
        first = asyncio.create_task(s.complete())
        await eventually(lambda: s.front.queue.running)
        second = asyncio.create_task(s.complete())
        await eventually(lambda: s.front.queue.waiting == 1)
        second.cancel()
        await eventually(lambda: s.front.queue.waiting == 0)
        await s.simulate(reset=True)
        assert (await first)[0] == 200


async def test_a_stream_that_breaks_off_never_looks_whole() -> None:
    async with fronted() as s:
        await s.simulate(cut_at_token=3)
        wanted = {**BODY, "stream": True, "max_tokens": 20}
        async with s.session.post(f"{s.url}/v1/completions", json=wanted) as reply:
            with pytest.raises(aiohttp.ClientError):
                await reply.read()


async def test_an_engine_that_is_not_there_is_a_bad_gateway_told_as_any_error() -> None:
    async with (
        fronted(url="http://127.0.0.1:9") as s,
        s.session.post(f"{s.url}/v1/completions", json=BODY) as reply,
    ):
        assert reply.status == 502
        error = (await reply.json())["error"]
    assert (error["type"], error["code"]) == ("server_error", "node_unreachable")


async def raw(port: int, target: str, field: str = "a: b") -> bytes:
    """The first line of what is answered to a head as it stands."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\n{field}\r\n\r\n".encode())
    try:
        return await reader.readline()
    finally:
        writer.close()


async def test_a_target_is_a_path_of_the_engine() -> None:
    """Another form, appended to the engine's address, would name another host."""
    async with fronted() as s:
        assert b" 200 " in await raw(s.front.port, "/health")
        for target in ("http://127.0.0.1:9/health", "abc://elsewhere/health"):
            assert b" 400 " in await raw(s.front.port, target)


async def test_what_is_no_http_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async with fronted() as s:
        assert b" 400 " in await raw(s.front.port, "/health", field="no field")
    assert not caplog.records


async def test_what_the_gateway_lets_through_is_not_too_long() -> None:
    lengths = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lengths.append(len(await reader.readuntil(b"\r\n\r\n")))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0, limit=1 << 20)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, fronted(url=url) as s:
        assert b" 204 " in await raw(s.front.port, "/health", f"x-a: {'a' * 60_000}")
    assert lengths[0] > 60_000


async def test_a_cookie_is_of_one_client() -> None:
    heads = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nset-cookie: who=first\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(engine, "localhost", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Front(f"http://localhost:{port}", FrontOptions()).serving() as front:
        for _ in range(2):
            assert b" 204 " in await raw(front.port, "/health")
    assert b"who=first" not in heads[1]


async def test_who_drains_hands_everything_new_back() -> None:
    async with fronted() as s:
        s.front.draining = True
        assert (await s.complete())[0] == 503
