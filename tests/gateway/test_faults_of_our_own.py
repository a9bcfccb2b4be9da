"""Bugs around us and in us: the client gets an answer, the scheduler its settlement."""

from typing import cast

import pytest

from pointsman.core.errors import EndCause, Reason
from pointsman.gateway.handler import Handler
from tests.gateway.conftest import rig
from tests.support.upstreams import OK_BODY, STREAM, Served, answer_ok, post, silent


def boom(*_: object) -> None:
    raise ZeroDivisionError


class Broken:
    """A client's transport that cannot write."""

    write = boom


async def test_a_placer_that_raises_costs_one_request() -> None:
    async with rig(answer_ok) as it:
        it.placer.before_verdict = boom
        client = await it.connect()
        await client.send(post())
        answer = await client.answer()
        assert (answer.status, answer.header("x-pointsman-reason")) == (500, "internal")
        assert answer.header("x-request-id")
        assert b"ZeroDivision" not in answer.body
        it.placer.before_verdict = None
        assert (await it.ask(post())).body == OK_BODY
        assert it.placer.outcomes[0].status == 500
        told = it.records.ended[0]
        assert (told.status, told.end, told.reason) == (500, EndCause.REFUSED, Reason.INTERNAL)


async def test_an_observer_that_raises_does_not_hang_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig(answer_ok) as it:
        monkeypatch.setattr(it.records, "exchange_ended", boom)
        client = await it.connect()
        await client.send(post())
        assert (await client.answer()).body == OK_BODY
        assert await client.closed()


async def test_a_relay_that_fails_ends_the_stream_and_settles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def two(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(b"data: 1\n\n")
        await served.until_closed()

    async with rig(two) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        await client.reader.readuntil(b"data: 1\n\n")
        (handler,) = it.gateway._shared.live.values()
        monkeypatch.setattr(cast("Handler", handler)._relay, "_transport", Broken())
        await it.engine.served[0].chunk(b"data: 2\n\n")
        await it.until(lambda: bool(it.placer.outcomes))
        assert it.placer.outcomes[0].end is EndCause.TRUNCATED
        assert [told.reason for told in it.records.ended] == [Reason.INTERNAL]
        await it.engine.left.wait()


async def test_a_step_out_of_order_is_a_500_and_is_settled() -> None:
    async with rig(answer_ok, answer_ok) as it:
        it.placer.before_verdict = lambda: it.placer.place(it.placer.order[-1])  # and again
        answer = await it.ask(post())
        assert answer.status == 500
        assert it.placer.outcomes[0].end is EndCause.REFUSED


async def test_a_settlement_that_raises_leaves_nothing_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(silent) as it:
        client = await it.connect()
        await client.send(post() * 2)
        await it.until(lambda: bool(it.engine.served))
        with monkeypatch.context() as patch:
            patch.setattr(it.records, "exchange_ended", boom)
            client.leave()
            await it.until(lambda: not it.gateway.state().clients)
        assert it.gateway.state().bodies_bytes == 0
