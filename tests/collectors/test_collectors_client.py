"""What an engine is asked, and whom else that must not reach."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from pointsman.collectors.client import EngineClient, new_session
from pointsman.engines.adapters import EngineKeys, EngineTrouble
from tests.support.descriptors import no_descriptors


@asynccontextmanager
async def asking(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], key: str = ""
) -> AsyncIterator[EngineClient]:
    """A client of an engine that `handle` plays, with the key that we have for it."""
    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with new_session(EngineKeys({url: key})) as session:
        yield EngineClient(session, url)
    await runner.cleanup()


async def test_an_answer_that_comes_in_pieces_is_read_whole() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in (b'{"usage"', b": null}"):
            await answer.write(piece)
            await asyncio.sleep(0.05)
        return answer

    async with asking(handle) as client:
        assert (await client.get("/x", timeout_s=5.0)).body == b'{"usage": null}'
        assert (await client.post("/x", {}, timeout_s=5.0)).body == b'{"usage": null}'


async def test_where_no_descriptor_is_left_the_trouble_is_ours() -> None:
    async with new_session(EngineKeys(), reuses=False) as session:
        for url in ("http://127.0.0.1:9", "http://nowhere.invalid:9"):
            client = EngineClient(session, url)
            with pytest.raises(EngineTrouble) as theirs:
                await client.get("/health", timeout_s=5.0)
            assert not theirs.value.is_ours
            with no_descriptors(), pytest.raises(EngineTrouble) as trouble:
                await client.get("/health", timeout_s=5.0)
            assert trouble.value.is_ours, url


@pytest.mark.parametrize("reuses", [True, False])
async def test_a_balancers_cookie_pins_nobody(reuses: bool) -> None:
    cookies, peers = [], []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        cookies.append(request.headers.get("Cookie"))
        peers.append(request.transport.get_extra_info("peername"))
        return web.Response(headers={"Set-Cookie": "engine=1"})

    async with asking(handle) as client, new_session(EngineKeys(), reuses=reuses) as session:
        named = EngineClient(session, client._base.replace("127.0.0.1", "localhost"))
        await named.get("/x", timeout_s=5.0)
        await named.get("/x", timeout_s=5.0)
    assert cookies == [None, None]
    assert (peers[0] == peers[1]) is reuses


async def test_a_question_for_a_token_follows_no_redirect() -> None:
    """What a page elsewhere answers, like one to log in at, says nothing of the engine."""
    seen: list[str] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request.path)
        return web.Response(status=303, headers={"location": "/login"})

    async with asking(handle) as client:
        assert await client.ask("m", timeout_s=5.0) == 303
    assert seen == ["/v1/completions"]


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_refuses_our_key_is_in_trouble(status: int) -> None:
    """Without a key of ours it may serve those who bring their own, which says nothing of it."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status)

    async with asking(handle) as client:
        assert await client.ask("m", timeout_s=5.0) == status
    async with asking(handle, key="wrong") as client:
        with pytest.raises(EngineTrouble, match=f"{status}: it refuses its configured key"):
            await client.ask("m", timeout_s=5.0)
