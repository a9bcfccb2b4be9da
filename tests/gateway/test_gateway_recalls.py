"""A placement that is taken back, in every phase: before the first byte the request runs elsewhere
and its client never knows; after it the recall is void."""

import asyncio

import pytest

from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import Rig, rig
from tests.support.upstreams import (
    OK_BODY,
    STREAM,
    Client,
    Served,
    answer_ok,
    post,
    silent,
    unanswered_url,
)


async def head_only(served: Served) -> None:
    await served.begin_stream()
    await served.until_closed()


async def half_an_error(served: Served) -> None:
    await served.send(b"HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\nhalf")
    await served.until_closed()


async def asked(it: Rig, data: bytes) -> Client:
    client = await it.connect()
    await client.send(data)
    await it.until(lambda: bool(it.engine.served))
    await asyncio.sleep(0.02)  # what the engine has written is there
    return client


@pytest.mark.parametrize("behaviour", [silent, head_only, half_an_error])
async def test_before_the_first_byte_it_runs_elsewhere(behaviour: object) -> None:
    async with rig(behaviour, answer_ok) as it:  # type: ignore[arg-type]  # pytest's parameter
        client = await asked(it, post())
        it.placer.recall(it.placer.order[0])
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, OK_BODY)
        await it.engine.served[0].until_closed()
        assert it.placer.order[0].failures == [FailureKind.RECALLED]
        assert [outcome.end for outcome in it.placer.outcomes] == [EndCause.FINISHED]


async def test_while_dialling_the_dial_is_given_up() -> None:
    async with unanswered_url() as url, rig(answer_ok, urls=(url,)) as it:
        it.placer.turn = 1
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: bool(it.placer.order))
        it.placer.recall(it.placer.order[0])
        assert (await client.answer()).status == 200


async def test_it_may_be_held_again_and_its_client_may_leave_there() -> None:
    async with rig(silent) as it:
        it.placer.hold = True
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: bool(it.placer.order))
        told = it.placer.order[0]
        it.placer.place(told)
        await it.until(lambda: bool(it.engine.served))
        it.placer.recall(told)
        it.placer.recall(told)  # nothing is there to be taken back
        assert told.failures == [FailureKind.RECALLED]
        client.leave()
        await it.until(lambda: bool(it.placer.outcomes))
        assert it.placer.outcomes[0].end is EndCause.CLIENT_GONE


async def test_a_refusal_after_a_recall_says_why() -> None:
    async with rig(silent) as it:
        client = await asked(it, post())
        told = it.placer.order[0]
        it.placer.hold = True
        it.placer.recall(told)
        it.placer.refuse(told, Reason.QUEUE_TIMEOUT, "No engine had room.")
        answer = await client.answer()
        assert (answer.status, answer.header("x-pointsman-reason")) == (429, "queue_timeout")


async def test_a_stream_that_has_begun_is_left_alone() -> None:
    more = asyncio.Event()

    async def slow(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(b'data: {"choices":[]}\n\n')
        await more.wait()
        await served.chunk(b"data: [DONE]\n\n")
        await served.end_stream()

    async with rig(slow, answer_ok) as it:
        client = await asked(it, post(body=STREAM))
        await it.until(lambda: it.placer.order[0].started == 1)
        it.placer.recall(it.placer.order[0])
        more.set()
        answer = await client.answer()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert it.placer.order[0].failures == []
        assert not it.engines[1].served


async def test_a_stream_breaks_off_where_that_is_asked_for() -> None:
    async def endless(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(b'data: {"choices":[]}\n\n')
        await served.until_closed()

    async with rig(endless) as it:
        client = await asked(it, post(body=STREAM))
        await it.until(lambda: it.placer.order[0].started == 1)
        it.placer.recall(it.placer.order[0], breaks=True)
        answer = await client.answer()
        assert b"More urgent requests needed the room." in answer.body
        assert it.placer.outcomes[0].end is EndCause.TRUNCATED


async def test_a_recall_from_another_node_than_it_is_on_is_void() -> None:
    async with rig(silent, answer_ok) as it:
        client = await asked(it, post())
        told = it.placer.order[0]
        told.nodes.append(1)
        it.placer.recall(told)
        assert told.failures == []
        client.leave()
        await it.until(lambda: bool(it.placer.outcomes))


async def test_after_the_end_it_is_void() -> None:
    async with rig(answer_ok, options=GatewayOptions()) as it:
        assert (await it.ask(post())).status == 200
        it.placer.recall(it.placer.order[0])
        assert it.placer.order[0].failures == []
