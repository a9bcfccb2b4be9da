"""Event streams: bytes in, bytes out, whatever they hold and however they are cut."""

import asyncio
import gzip

import pytest

from pointsman.core.errors import EndCause, Reason
from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import rig
from tests.support.upstreams import OK_BODY, STREAM, Behaviour, Served, answer_ok, post, two_events

USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def pieces(*parts: bytes, pause_s: float = 0.005) -> Behaviour:
    async def stream(served: Served) -> None:
        await served.begin_stream("Cache-Control: max-age=60")
        for part in parts:
            await served.chunk(part)
            await asyncio.sleep(pause_s)
        await served.end_stream()

    return stream


async def test_split_characters_arrive_as_they_were() -> None:
    event = 'data: {"choices":[{"text":"한국어 😀"}]}\n\n'.encode()
    cuts = [event[at : at + 1] for at in range(len(event))]
    async with rig(pieces(*cuts, DONE, pause_s=0.0)) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.body == event + DONE
        assert it.placer.outcomes[0].streamed_tokens == 1


@pytest.mark.parametrize("together", [1, 3, 5])
async def test_what_came_with_the_first_byte_is_told(together: int) -> None:
    event = b'data: {"choices":[{"text":"a"}]}\n\n'
    later = [event] * (5 - together)
    async with rig(pieces(together * event, *later, DONE)) as it:
        await it.ask(post(body=STREAM))
        outcome = it.placer.outcomes[0]
        assert (outcome.streamed_tokens, outcome.first_tokens) == (5, together)


async def test_a_usage_event_cut_in_two_is_still_read() -> None:
    async with rig(pieces(b'data: {"choices":[]}\n\n', USAGE[:40], USAGE[40:], DONE)) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.body.endswith(USAGE + DONE)
        outcome = it.placer.outcomes[0]
        assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (9, 4, 8)
        assert it.records.ended[0].cached_tokens_predicted == 7


async def test_a_huge_event_passes() -> None:
    event = b'data: {"choices":[{"text":"' + b"x" * 1_500_000 + b'"}]}\n\n'
    async with rig(pieces(event, DONE)) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.body == event + DONE


async def test_events_come_one_by_one_not_in_a_lump() -> None:
    gate = asyncio.Event()

    async with rig(two_events(gate)) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        await client.reader.readuntil(b"data: 1\n\n")
        gate.set()
        await client.reader.readuntil(b"data: 2\n\n")
        assert it.placer.order[0].started == 1


async def test_a_stream_says_that_it_must_not_be_buffered() -> None:
    async with rig(pieces(DONE)) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.header("x-accel-buffering") == "no"
        assert answer.header("cache-control") == "no-cache"
        assert answer.head.lower().count(b"cache-control") == 1


async def test_a_stream_without_done_is_finished_by_its_framing() -> None:
    async with rig(pieces(b'data: {"choices":[]}\n\n')) as it:
        assert (await it.ask(post(body=STREAM))).is_whole
        assert it.placer.outcomes[0].end is EndCause.FINISHED


async def test_a_compressed_stream_passes_unread() -> None:
    packed = gzip.compress(b"data: 1\n\n" + DONE)

    async def stream(served: Served) -> None:
        await served.begin_stream("Content-Encoding: gzip")
        await served.chunk(packed[:10])
        await asyncio.sleep(0.01)
        await served.chunk(packed[10:])
        await served.end_stream()

    async with rig(stream) as it:
        answer = await it.ask(post(body=STREAM))
        assert gzip.decompress(answer.body) == b"data: 1\n\n" + DONE
        assert answer.header("content-encoding") == "gzip"


async def test_http_10_gets_a_stream_without_chunks() -> None:
    async with rig(pieces(b"data: 1\n\n", DONE)) as it:
        answer = await it.ask(post(body=STREAM, version="1.0"))
        assert answer.header("transfer-encoding") is None
        assert (answer.body, answer.is_whole) == (b"data: 1\n\n" + DONE, True)


async def test_informational_answers_are_not_the_answer() -> None:
    async def hint_first(served: Served) -> None:
        await served.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await served.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        await asyncio.sleep(0.01)
        await answer_ok(served)

    async with rig(hint_first) as it:
        client = await it.connect()
        for _ in range(2):
            await client.send(post())
            assert (await client.answer()).body == OK_BODY


async def test_usage_of_a_whole_answer_is_read() -> None:
    async with rig(answer_ok) as it:
        await it.ask(post())
        outcome = it.placer.outcomes[0]
        assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (5, 2, 4)
        record = it.records.ended[0]
        assert (record.model, record.node, record.policy) == ("m", "engine-1", "scripted")
        assert (record.status, record.bytes_out) == (200, len(OK_BODY))


# --- comments while nothing flows -----------------------------------------------------------

OPTIONS = GatewayOptions(sweep_s=0.02, sse_comment_s=0.05)
COMMENT = b": keep-alive\n\n"


async def test_silence_in_the_queue_and_in_the_prefill_is_broken_by_comments() -> None:
    async def slow(served: Served) -> None:
        await asyncio.sleep(0.2)
        await pieces(b"data: 1\n\n", DONE)(served)

    async with rig(slow, options=OPTIONS) as it:
        it.placer.hold = True
        client = await it.connect()
        await client.send(post(body=STREAM))
        await client.head()  # comes with the first comment
        it.placer.place_held()
        body, is_whole = await client.chunked()
        assert body.replace(COMMENT, b"") == b"data: 1\n\n" + DONE
        assert body.count(COMMENT) >= 3
        assert is_whole


async def test_comments_never_cut_an_event() -> None:
    async def stall_inside(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(b"data: {")
        await asyncio.sleep(0.2)
        await served.chunk(b"}\n\n")
        await asyncio.sleep(0.2)
        await served.chunk(DONE)
        await served.end_stream()

    async with rig(stall_inside, options=OPTIONS) as it:
        answer = await it.ask(post(body=STREAM))
        assert b"data: {}\n\n" in answer.body
        assert answer.body.count(COMMENT) >= 1
        assert answer.body.replace(COMMENT, b"") == b"data: {}\n\n" + DONE


async def test_a_refusal_after_a_comment_comes_in_band() -> None:
    async with rig(answer_ok, options=OPTIONS) as it:
        it.placer.hold = True
        client = await it.connect()
        await client.send(post(body=STREAM))
        assert b" 200 " in await client.head()
        it.placer.refuse_held(Reason.QUEUE_TIMEOUT)
        body, is_whole = await client.chunked()
        assert b'"code":"queue_timeout"' in body
        assert body.endswith(DONE)
        assert not is_whole


@pytest.mark.parametrize(
    ("status", "said", "seen"),
    [
        (400, b'{"error": {"message":\n "too long"}}', b'"message": "too long"'),
        (500, b'{"error":{"message":"boom"}}', b'"message":"boom"'),
        (400, b"<html>", b'"code":"node_broken"'),
        (200, b'{"choices":[]}', b'"code":"node_broken"'),
        (400, b'{"error":"' + b"x" * 900_000 + b'"}', b'"code":"node_broken"'),
    ],
)
async def test_an_engines_error_after_a_comment_comes_in_band(
    status: int, said: bytes, seen: bytes
) -> None:
    async def slow_error(served: Served) -> None:
        await asyncio.sleep(0.15)
        await served.reply(status, said)

    async with rig(slow_error, options=OPTIONS) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.status == 200
        assert seen in answer.body
        assert b"\n\n".join(answer.body.split(b"\n\n")[-2:]) == b"data: [DONE]\n\n"
        assert not answer.is_whole


async def test_another_engine_may_still_serve_after_a_comment() -> None:
    async def slow_busy(served: Served) -> None:
        await asyncio.sleep(0.15)
        await served.reply(429, b"{}")

    async with rig(slow_busy, pieces(b"data: 1\n\n", DONE), options=OPTIONS) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.body.replace(COMMENT, b"") == b"data: 1\n\n" + DONE
        assert answer.is_whole


async def test_no_comments_unless_asked_for() -> None:
    async def slow(served: Served) -> None:
        await asyncio.sleep(0.1)
        await pieces(DONE)(served)

    async with rig(slow) as it:
        assert (await it.ask(post(body=STREAM))).body == DONE
    async with rig(slow, options=OPTIONS) as it:
        assert (await it.ask(post())).body == DONE  # not a stream for all the client knows
