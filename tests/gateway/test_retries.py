"""Which answers are asked for again elsewhere, how often, and what the client gets in the end."""

import asyncio

import pytest

from pointsman.core.errors import EndCause, FailureKind, Reason
from tests.gateway.conftest import rig
from tests.support.upstreams import OK_BODY, STREAM, Behaviour, Served, answer_ok, closed_url, post

BUSY = b'{"error":{"message":"The engine is currently busy","code":503}}'
BAD = b'{"error":{"message":"This model\'s maximum context length is 8 tokens"}}'


def says(status: int, body: bytes, *lines: str) -> Behaviour:
    async def answer(served: Served) -> None:
        await served.reply(status, body, *lines)

    return answer


too_many = says(429, b'{"error":{"message":"slow down"}}', "Retry-After: 7")
busy = says(503, BUSY)
broken = says(500, b'{"error":{"message":"boom"}}')


@pytest.mark.parametrize("behaviour", [too_many, busy, broken])
async def test_a_busy_or_broken_engine_is_not_the_last(behaviour: Behaviour) -> None:
    async with rig(behaviour, answer_ok) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.body) == (200, OK_BODY)
        assert len(it.engines[0].served) == 1


async def test_busy_engines_are_asked_once_each_and_their_answer_is_passed_on() -> None:
    async with rig(too_many, too_many, too_many, too_many) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.header("retry-after")) == (429, "7")
        assert answer.body == b'{"error":{"message":"slow down"}}'
        assert answer.header("x-pointsman-reason") == "node_busy"
        assert [len(engine.served) for engine in it.engines] == [1, 1, 1, 0]
        assert it.placer.order[0].failures == [FailureKind.BUSY] * 3
        assert it.records.ended[0].end is EndCause.ENGINE_REFUSED


async def test_a_busy_answer_without_advice_gets_some() -> None:
    async with rig(busy) as it:
        it.placer.retry_after_s = 4.0
        answer = await it.ask(post())
        assert (answer.status, answer.header("retry-after")) == (503, "4")
        assert answer.body == BUSY


async def test_a_503_of_a_loading_model_is_no_sign_of_load() -> None:
    loading = says(503, b'{"error":{"message":"Loading model","type":"unavailable_error"}}')
    async with rig(loading, answer_ok) as it:
        assert (await it.ask(post())).status == 200
        assert it.placer.order[0].failures == [FailureKind.ERROR]


async def test_a_poison_request_stops_after_two_engines() -> None:
    async with rig(broken, broken, answer_ok) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.body) == (500, b'{"error":{"message":"boom"}}')
        assert not it.engines[2].served
        # The placer offered a third node, which is given back unused.
        assert [outcome.end for outcome in it.placer.outcomes] == [EndCause.REFUSED]
        record = it.records.ended[0]
        assert (record.end, record.node) == (EndCause.ENGINE_ERROR, "engine-2")


async def test_the_last_answer_of_an_engine_is_better_than_none() -> None:
    async with rig(broken, urls=(closed_url(),)) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.body) == (500, b'{"error":{"message":"boom"}}')


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
async def test_a_4xx_is_the_clients_to_mend(status: int) -> None:
    async with rig(says(status, BAD), answer_ok) as it:
        answer = await it.ask(post(body=STREAM))
        assert (answer.status, answer.body) == (status, BAD)
        assert not it.engines[1].served
        assert not it.placer.order[0].failures
        assert it.placer.outcomes[0].end is EndCause.ENGINE_REFUSED
        assert it.placer.order[0].started == 0


async def test_a_long_error_is_passed_on_at_once() -> None:
    async with rig(says(500, b"e" * 300_000), answer_ok) as it:
        answer = await it.ask(post())
        assert (answer.status, len(answer.body)) == (500, 300_000)
        assert it.placer.outcomes[0].end is EndCause.ENGINE_ERROR


async def test_connections_survive_error_answers() -> None:
    async with rig(broken) as it:
        client = await it.connect()
        for _ in range(3):
            await client.send(post())
            assert (await client.answer()).status == 500
        assert it.engine.connections == 1


async def test_a_refusal_after_waiting_has_the_schedulers_reason() -> None:
    async with rig(answer_ok) as it:
        it.placer.hold = True
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: bool(it.placer.order))
        it.placer.retry_after_s = 12.2
        it.placer.refuse_held(Reason.QUEUE_TIMEOUT)
        answer = await client.answer()
        assert (answer.status, answer.header("retry-after")) == (429, "13")


async def test_a_held_request_is_served_when_there_is_room() -> None:
    async with rig(answer_ok) as it:
        it.placer.hold = True
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: bool(it.placer.order))
        it.placer.place_held()
        assert (await client.answer()).body == OK_BODY
        assert (it.records.ended[0].queue_s or 0) > 0


async def test_many_at_once_leave_nothing_behind() -> None:
    async with rig(broken, too_many, answer_ok) as it:
        answers = await asyncio.gather(*(it.ask(post()) for _ in range(60)))
        assert {answer.status for answer in answers} <= {200, 429, 500}
        assert len(it.records.ended) == 60


async def test_where_engines_may_have_worked_clients_are_told_not_to_retry_on_their_own() -> None:
    async with rig(says(502, b"{}")) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.header("x-should-retry")) == (502, "false")
    async with rig(closes) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.header("x-should-retry")) == (502, "false")


async def test_where_nothing_was_done_clients_may_retry() -> None:
    for reason in (Reason.QUEUE_FULL, Reason.NO_NODE, Reason.RETRY_EARLY):
        async with rig() as it:
            it.placer.reason, it.placer.retry_after_s = reason, 2.3
            answer = await it.ask(post())
            assert answer.header("x-should-retry") is None
            least_s = 5 if reason is Reason.NO_NODE else 3
            assert answer.header("retry-after") == str(least_s)
            assert int(answer.header("retry-after-ms") or 0) == (2_300 if least_s == 3 else 5_000)


async def closes(served: Served) -> None:
    served.writer.close()
