"""The plain ways: an answer, a stream, the local routes."""

from tests.gateway.conftest import rig
from tests.support.upstreams import OK_BODY, STREAM, Served, answer_ok, get, post


async def stream_three(served: Served) -> None:
    await served.begin_stream()
    for word in (b"a", b"b", b"c"):
        await served.chunk(b'data: {"choices":[{"text":"%b"}]}\n\n' % word)
    await served.chunk(b"data: [DONE]\n\n")
    await served.end_stream()


async def test_an_answer_is_relayed_byte_for_byte() -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.body) == (200, OK_BODY)
        assert it.engine.served[0].body == b'{"model":"m","prompt":"hello"}'


async def test_a_stream_is_relayed_event_by_event() -> None:
    async with rig(stream_three) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.status == 200
        assert answer.body.count(b"data: ") == 4
        assert answer.is_whole


async def test_models_come_from_the_registry() -> None:
    async with rig() as it:
        answer = await it.ask(get("/v1/models"))
        assert b'"id":"m"' in answer.body
