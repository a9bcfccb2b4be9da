"""The way down: what runs finishes, what comes is told, what is idle closes."""

import asyncio

import pytest

from pointsman.core.errors import EndCause
from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import rig
from tests.support.upstreams import OK_BODY, STREAM, Served, answer_ok, get, post, silent


async def test_a_drain_lets_running_requests_finish_and_refuses_new_ones() -> None:
    gate = asyncio.Event()

    async def wait(served: Served) -> None:
        await gate.wait()
        await answer_ok(served)

    async with rig(wait) as it:
        running, idle = await it.connect(), await it.connect()
        await idle.send(get("/health"))
        await idle.answer()
        await running.send(post())
        await it.until(lambda: bool(it.engine.served))
        async with asyncio.TaskGroup() as group:
            drained = group.create_task(it.gateway.drain())
            assert await idle.closed()
            assert (await it.ask(get("/health"))).status == 200
            assert (await it.ask(get("/ready"))).status == 503
            refused = await it.ask(post())
            assert (refused.status, refused.header("x-pointsman-reason")) == (503, "draining")
            assert refused.header("connection") == "close"
            assert refused.header("retry-after")
            assert not drained.done()
            gate.set()
            answer = await running.answer()
            assert answer.body == OK_BODY
            assert await running.closed()
        assert drained.result() == 0


async def test_a_drain_of_an_idle_gateway_ends_at_once() -> None:
    async with rig() as it:
        await it.connect()
        assert await it.gateway.drain() == 0


@pytest.mark.parametrize("twice", [False, True], ids=["bound", "second signal"])
async def test_a_drain_has_an_end(twice: bool) -> None:
    async def endless(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(b"data: 1\n\n")
        await served.until_closed()

    options = GatewayOptions(sweep_s=0.02, drain_s=30.0 if twice else 0.1)
    async with rig(endless, silent, options=options) as it:
        streaming, waiting = await it.connect(), await it.connect()
        await streaming.send(post(body=STREAM))
        await streaming.head()
        await waiting.send(post())
        await it.until(lambda: bool(it.engines[1].served))
        async with asyncio.TaskGroup() as group:
            first = group.create_task(it.gateway.drain())
            await asyncio.sleep(0.01)
            if twice:
                assert await it.gateway.drain() == 2
        assert first.result() == (0 if twice else 2)
        body, is_whole = await streaming.chunked()
        assert b'"code":"draining"' in body
        assert not is_whole
        assert (await waiting.answer()).status == 503
        ends = {outcome.end for outcome in it.placer.outcomes}
        assert ends == {EndCause.TRUNCATED, EndCause.REFUSED}


async def test_stop_ends_everything_and_may_be_repeated() -> None:
    async with rig(silent) as it:
        for _ in range(5):
            await (await it.connect()).send(post())
        await it.until(lambda: len(it.engine.served) == 5)
        await it.gateway.stop()
        await it.gateway.stop()
        assert it.gateway.state().exchanges == 0
        assert [outcome.end for outcome in it.placer.outcomes] == [EndCause.CLIENT_GONE] * 5
