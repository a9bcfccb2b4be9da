"""The client leaves, in every phase: the engine sees it at once, and nothing is left behind."""

import asyncio

import pytest

from pointsman.core.errors import EndCause
from pointsman.core.rules import Timeouts
from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import Rig, rig
from tests.support.upstreams import STREAM, Served, answer_ok, post, silent, unanswered_url


async def head_only(served: Served) -> None:
    await served.begin_stream()
    await served.until_closed()


async def endless(served: Served) -> None:
    await served.begin_stream()
    while not served.writer.is_closing():
        await served.chunk(b'data: {"choices":[]}\n\n')
        await asyncio.sleep(0.005)


async def half_an_answer(served: Served) -> None:
    await served.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await served.until_closed()


async def gone(it: Rig) -> None:
    """Wait until the exchange is over, and see that it was the client's leaving."""
    await it.until(lambda: bool(it.placer.outcomes))
    assert [outcome.end for outcome in it.placer.outcomes] == [EndCause.CLIENT_GONE]
    assert it.records.ended[0].end is EndCause.CLIENT_GONE


async def test_while_the_body_is_read_nothing_was_asked() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(post(body=b"x" * 1_000)[:-500])
        await it.until(lambda: it.gateway.state().bodies_bytes == 500)
        client.leave()
        await it.until(lambda: not it.gateway.state().clients)
        assert not it.placer.order
        assert it.gateway.state().bodies_bytes == 0


async def test_while_held_the_queue_is_left() -> None:
    async with rig(answer_ok) as it:
        it.placer.hold = True
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: bool(it.placer.order))
        client.leave()
        await gone(it)
        it.placer.place(it.placer.order[0])  # a verdict that crossed the settlement
        await asyncio.sleep(0.02)
        assert not it.engine.served


async def test_while_dialling_the_connection_is_not_made() -> None:
    async with unanswered_url() as url, rig(urls=(url,)) as it:
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: bool(it.placer.order))
        client.leave()
        await gone(it)


@pytest.mark.parametrize("behaviour", [silent, head_only, half_an_answer])
@pytest.mark.parametrize("body", [STREAM, b'{"model":"m","prompt":"x"}'], ids=["stream", "whole"])
async def test_while_the_engine_is_silent_it_sees_the_client_leave(
    behaviour: object, body: bytes
) -> None:
    async with rig(behaviour) as it:  # type: ignore[arg-type]  # parametrize loses the type
        client = await it.connect()
        await client.send(post(body=body))
        await it.until(lambda: bool(it.engine.served))
        client.leave()
        await gone(it)
        async with asyncio.timeout(1.0):
            await it.engine.left.wait()
        assert it.gateway.state().engine_connections_idle == 0


async def test_while_streaming_the_engine_stops_within_two_chunks() -> None:
    async with rig(endless) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        await client.reader.readuntil(b"data: ")
        client.leave()
        await gone(it)
        async with asyncio.timeout(1.0):
            await it.engine.left.wait()
        outcome = it.placer.outcomes[0]
        assert outcome.streamed
        assert outcome.ttft_s is not None


async def test_a_client_that_closes_its_sending_side_has_left() -> None:
    async with rig(silent) as it:
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: bool(it.engine.served))
        client.writer.write_eof()
        await gone(it)


async def test_after_the_end_nothing_happens() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(post())
        await client.answer()
        client.leave()
        await it.until(lambda: not it.gateway.state().clients)
        assert [outcome.end for outcome in it.placer.outcomes] == [EndCause.FINISHED]
        assert it.gateway.state().engine_connections_idle == 1


async def test_requests_sent_ahead_are_dropped_with_the_connection() -> None:
    async with rig(silent) as it:
        client = await it.connect()
        await client.send(post() * 3)
        await it.until(lambda: bool(it.engine.served))
        assert it.gateway.state().bodies_bytes > 0
        client.leave()
        await gone(it)
        assert len(it.placer.order) == 1
        assert it.gateway.state().bodies_bytes == 0


async def test_a_slow_reader_stops_the_engine_and_does_not_fill_the_memory() -> None:
    sent = 0

    async def flood(served: Served) -> None:
        nonlocal sent
        await served.begin_stream()
        while not served.writer.is_closing():
            await served.chunk(b"data: " + b"x" * 65_536 + b"\n\n")
            sent += 65_536

    async with rig(flood) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        await client.head()
        before = -1
        while before != sent:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 64 * 1024 * 1024  # kernel buffers on three sockets, not the stream
        client.leave()
        await gone(it)


async def test_a_client_that_never_reads_ends_by_timeout() -> None:
    async def flood(served: Served) -> None:
        await served.begin_stream()
        while not served.writer.is_closing():
            await served.chunk(b"data: " + b"x" * 65_536 + b"\n\n")

    options = GatewayOptions(sweep_s=0.02, timeouts=Timeouts(idle_s=0.2))
    async with rig(flood, options=options) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        await client.head()
        await it.until(lambda: bool(it.placer.outcomes))
        assert it.placer.outcomes[0].end is EndCause.TIMEOUT


async def test_clients_that_leave_amid_dialling_leave_no_connection_open() -> None:
    async with rig(endless) as it:
        for _ in range(20):
            clients = [await it.connect() for _ in range(10)]
            for client in clients:
                await client.send(post(body=STREAM))
            await it.until(lambda: it.gateway.state().exchanges > 0)
            for client in clients:
                client.leave()
            await it.until(lambda: not it.gateway.state().clients)
        await it.until(lambda: not it.gateway.state().engine_connections)


async def test_a_slow_reader_of_one_answer_stops_the_engine_of_the_next() -> None:
    sent = 0

    async def big_then_endless(served: Served) -> None:
        nonlocal sent
        if len(it.engine.served) == 1:
            await served.reply(200, b"x" * 20_000_000)
            return
        await served.begin_stream()
        while not served.writer.is_closing():
            await served.chunk(b"data: " + b"x" * 65_536 + b"\n\n")
            sent += 65_536

    async with rig(big_then_endless) as it:
        client = await it.connect()
        await client.send(post() + post(body=STREAM))
        await client.head()
        while len(it.engine.served) < 2:  # read just enough for the first answer to end
            await client.reader.read(65_536)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 32 * 1024 * 1024
        client.leave()
        await it.until(lambda: len(it.placer.outcomes) == 2)
