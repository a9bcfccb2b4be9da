"""Engines that die, cut, lie and babble: the client always learns the truth, in its own terms."""

import asyncio
import json
import socket
import struct
import time

import pytest

from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.rules import Timeouts
from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import rig
from tests.support.upstreams import (
    OK_BODY,
    STREAM,
    Behaviour,
    Served,
    answer_ok,
    closed_url,
    post,
    unanswered_url,
)

EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'


def cut(served: Served) -> None:
    served.writer.close()


def reset(served: Served) -> None:
    sock = served.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    served.writer.transport.abort()


async def hang_up(served: Served) -> None:
    cut(served)


async def hang_up_hard(served: Served) -> None:
    reset(served)


async def hang_up_in_the_head(served: Served) -> None:
    await served.send(b"HTTP/1.1 200 OK\r\nContent-")
    cut(served)


async def hang_up_after_the_head(served: Served) -> None:
    await served.begin_stream()
    cut(served)


async def cut_stream(served: Served) -> None:
    await served.begin_stream()
    await served.chunk(EVENT)
    await served.chunk(EVENT)
    await asyncio.sleep(0.02)
    cut(served)


async def reset_stream(served: Served) -> None:
    await served.begin_stream()
    await served.chunk(EVENT)
    await asyncio.sleep(0.02)
    reset(served)


async def cut_inside_an_event(served: Served) -> None:
    await served.begin_stream()
    await served.chunk(EVENT)
    await served.chunk(b'data: {"choices":[{"te')
    await asyncio.sleep(0.02)
    cut(served)


async def speak_no_http(served: Served) -> None:
    await served.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


async def answer_500_as_text(served: Served) -> None:
    await served.reply(500, b"upstream exploded", "Content-Type: text/plain")


def error_of(body: bytes) -> dict[str, object]:
    found = json.loads(body)["error"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("behaviour", "kind", "reason"),
    [
        (hang_up, FailureKind.CLOSED, Reason.NODE_CLOSED),
        (hang_up_hard, FailureKind.CLOSED, Reason.NODE_CLOSED),
        (hang_up_in_the_head, FailureKind.CLOSED, Reason.NODE_CLOSED),
        (hang_up_after_the_head, FailureKind.CLOSED, Reason.NODE_CLOSED),
        (speak_no_http, FailureKind.BROKEN, Reason.NODE_BROKEN),
    ],
)
async def test_an_engine_that_dies_before_a_byte_gives_two_attempts_then_502(
    behaviour: Behaviour, kind: FailureKind, reason: Reason
) -> None:
    async with rig(behaviour, behaviour, behaviour) as it:
        answer = await it.ask(post(body=STREAM))
        assert (answer.status, answer.header("x-pointsman-reason")) == (502, reason)
        assert error_of(answer.body)["type"] == "server_error"
        assert sum(len(engine.served) for engine in it.engines) == 2
        assert it.placer.order[0].failures == [kind, kind]
        assert b"127.0.0.1" not in answer.head + answer.body
        assert it.gateway.state().engine_connections_idle == 0


@pytest.mark.parametrize(
    ("begun", "flood"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ", b"x"),
    ],
)
async def test_a_reply_whose_framing_never_ends_is_cut(begun: bytes, flood: bytes) -> None:
    async def never_ends(served: Served) -> None:
        await served.send(begun)
        while True:
            await served.send(flood * (65_536 // len(flood)))

    async with rig(never_ends) as it:
        answer = await it.ask(post())
        assert answer.status == (200 if b"\nx\r" in begun else 502)
        await it.until(lambda: it.engine.open == 0)
        assert it.gateway.state().engine_connections == 0


@pytest.mark.parametrize("encoding", [b"gzip, chunked", b"gzip"])
async def test_a_transfer_encoding_that_nobody_decodes_is_no_reply(encoding: bytes) -> None:
    async def encodes(served: Served) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: %b\r\n\r\n" % encoding
        await served.send(head + b"2\r\n\x1f\x8b\r\n0\r\n\r\n")

    async with rig(encodes, answer_ok) as it:
        assert (await it.ask(post())).body == OK_BODY
        assert it.placer.order[0].failures == [FailureKind.BROKEN]


async def test_a_status_that_is_none_is_no_reply() -> None:
    """It is no hint either, after which a reply would come."""

    async def answer_099(served: Served) -> None:
        await served.send(b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n")

    async with rig(answer_099, answer_ok) as it:
        assert (await it.ask(post())).body == OK_BODY
        assert it.placer.order[0].failures == [FailureKind.BROKEN]


@pytest.mark.parametrize("behaviour", [hang_up, hang_up_after_the_head, speak_no_http])
async def test_another_engine_saves_the_request_before_the_first_byte(
    behaviour: Behaviour,
) -> None:
    async with rig(behaviour, answer_ok) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.body) == (200, OK_BODY)
        assert it.engines[1].served[0].body == it.engines[0].served[0].body
        assert it.records.ended[0].attempts == 2


async def test_a_refused_connection_is_tried_elsewhere() -> None:
    async with rig(answer_ok, urls=(closed_url(),)) as it:
        it.placer.urls.reverse()
        assert (await it.ask(post())).status == 200
        assert it.placer.order[0].failures == [FailureKind.UNREACHABLE]


async def test_a_connection_that_is_not_answered_is_tried_elsewhere() -> None:
    options = GatewayOptions(sweep_s=0.02, timeouts=Timeouts(connect_s=0.1))
    async with unanswered_url() as url, rig(answer_ok, urls=(url,), options=options) as it:
        it.placer.urls.reverse()
        assert (await it.ask(post())).status == 200
        assert it.placer.order[0].failures == [FailureKind.UNREACHABLE]


async def test_time_in_which_the_gateway_stood_still_is_not_an_engines() -> None:
    """A stopped process or a starved one finds connections made, and their deadlines passed."""
    options = GatewayOptions(sweep_s=0.02, timeouts=Timeouts(connect_s=0.2))
    async with rig(answer_ok, answer_ok, options=options) as it:
        loop = asyncio.get_running_loop()

        def stand_still() -> None:
            loop.call_soon(time.sleep, 0.5)  # before the dial, which is a task

        it.placer.before_verdict = stand_still
        assert (await it.ask(post())).status == 200
        assert not it.placer.order[0].failures


async def test_all_engines_down_is_a_refusal_at_once() -> None:
    async with rig() as it:
        it.placer.reason = Reason.NO_NODE
        answer = await it.ask(post())
        assert answer.status == 503
        assert 5 <= int(answer.header("retry-after") or 0) <= 8
        assert answer.header("x-pointsman-reason") == "no_node"
        assert error_of(answer.body)["code"] == "no_node"


async def test_no_engine_can_be_reached() -> None:
    async with rig(urls=(closed_url(), closed_url())) as it:
        answer = await it.ask(post())
        assert answer.status == 503
        assert answer.header("retry-after") in {"1", "2"}
        assert error_of(answer.body)["message"] == "No engine could be reached."


@pytest.mark.parametrize("behaviour", [cut_stream, reset_stream])
async def test_a_stream_that_breaks_off_ends_with_an_error_event(behaviour: Behaviour) -> None:
    async with rig(behaviour, answer_ok) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        answer = await client.answer()
        assert answer.status == 200
        events = answer.body.split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""]
        assert error_of(events[-3].removeprefix(b"data: "))["code"] == "node_closed"
        assert not answer.is_whole
        assert await client.closed()
        assert not it.engines[1].served  # never a second, billable, attempt
        assert it.placer.outcomes[0].end is EndCause.TRUNCATED
        assert it.records.ended[0].reason is Reason.NODE_CLOSED


async def test_a_cut_event_is_closed_before_the_error_event() -> None:
    async with rig(cut_inside_an_event) as it:
        answer = await it.ask(post(body=STREAM))
        assert b'{"te\n\ndata: {"error":' in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_a_stream_for_http_10_that_breaks_off_ends_with_an_error_event() -> None:
    async with rig(cut_stream) as it:
        answer = await it.ask(post(body=STREAM, version="1.0"))
        assert b"chunked" not in answer.head
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_an_answer_shorter_than_its_length_is_cut_for_the_client_too() -> None:
    async def lie(served: Served) -> None:
        await served.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
        await asyncio.sleep(0.02)
        cut(served)

    async with rig(lie) as it:
        answer = await it.ask(post())
        assert not answer.is_whole
        assert it.placer.outcomes[0].end is EndCause.TRUNCATED


async def test_an_answer_longer_than_its_length_does_not_poison_the_connection() -> None:
    async def lie(served: Served) -> None:
        await served.send(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
        )

    async with rig(lie) as it:
        client = await it.connect()
        for _ in range(2):
            await client.send(post())
            assert (await client.answer()).body == b"ok"
        assert it.engine.connections == 2


async def test_a_cut_answer_without_a_length_never_passes_for_whole() -> None:
    async def cut_chunks(served: Served) -> None:
        await served.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n5\r\n{'a':\r\n"
        )
        await asyncio.sleep(0.02)
        cut(served)

    async with rig(cut_chunks) as it:
        assert not (await it.ask(post())).is_whole
        assert not (await it.ask(post(version="1.0"))).is_whole


async def test_an_answer_without_a_length_that_is_reset_is_cut_for_the_client_too() -> None:
    """Only an orderly end is the answer's."""

    async def old_style(served: Served) -> None:
        await served.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")
        await asyncio.sleep(0.02)
        reset(served)

    async with rig(old_style) as it:
        assert not (await it.ask(post())).is_whole
        assert it.placer.outcomes[0].end is EndCause.TRUNCATED


async def test_an_answer_that_ends_with_its_connection_is_whole() -> None:
    async def old_style(served: Served) -> None:
        await served.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")
        await asyncio.sleep(0.01)
        await served.send(b" you")
        cut(served)

    async with rig(old_style) as it:
        answer = await it.ask(post())
        assert (answer.body, answer.is_whole) == (b"hello you", True)
        assert it.placer.outcomes[0].end is EndCause.FINISHED


async def test_a_text_error_passes_with_its_status() -> None:
    async with rig(answer_500_as_text) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.body) == (500, b"upstream exploded")
        assert answer.header("content-type") == "text/plain"
        assert it.records.ended[0].end is EndCause.ENGINE_ERROR
        assert it.records.ended[0].status == 500


async def test_an_error_inside_a_stream_is_counted_as_the_engines() -> None:
    async def die_politely(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(EVENT)
        await served.chunk(b'data: {"error": {"message": "EngineCore", "code": 500}}\n\n')
        await served.chunk(b"data: [DONE]\n\n")
        await served.end_stream()

    async with rig(die_politely) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.is_whole
        assert it.placer.outcomes[0].end is EndCause.ENGINE_ERROR


async def die_before_the_first_token(served: Served) -> None:
    """vLLM's answer to streams that wait in it when its core dies."""
    await served.begin_stream()
    await served.chunk(b'data: {"error": {"message": "EngineCore", "code": 500}}\n\n')
    await served.chunk(b"data: [DONE]\n\n")
    await served.end_stream()


async def test_a_stream_that_begins_with_an_error_is_saved_by_another_engine() -> None:
    async with rig(die_before_the_first_token, answer_ok) as it:
        answer = await it.ask(post(body=STREAM))
        assert answer.body == OK_BODY


async def test_a_stream_that_begins_with_an_error_is_told_where_nobody_can_help() -> None:
    async with rig(die_before_the_first_token) as it:
        answer = await it.ask(post(body=STREAM))
        assert b'"EngineCore"' in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert it.records.ended[0].end is EndCause.ENGINE_ERROR


async def test_a_stream_that_the_engine_aborts_is_counted_as_the_engines() -> None:
    """vLLM's other way to end what runs when it is shut down."""

    async def abort(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(EVENT)
        await served.chunk(b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n')
        await served.chunk(b"data: [DONE]\n\n")
        await served.end_stream()

    async with rig(abort) as it:
        assert (await it.ask(post(body=STREAM))).is_whole
        assert it.placer.outcomes[0].end is EndCause.ENGINE_ERROR


async def test_a_stream_that_a_server_leaves_open_when_it_ends_is_broken_off() -> None:
    """vLLM after SIGTERM, now and then: it listens no more, and its stream never ends."""
    async with rig(begin_and_hang, options=GatewayOptions(sweep_s=0.02, look_s=0.1)) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        await asyncio.sleep(0.3)
        assert not it.placer.outcomes, "it still listens"
        it.engines[0].stop_listening()
        answer = await client.answer()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert it.placer.outcomes[0].end is EndCause.TRUNCATED


async def test_how_soon_a_silent_engine_is_looked_at_changes_while_it_runs() -> None:
    async with rig(begin_and_hang, options=GatewayOptions(sweep_s=0.02, look_s=60.0)) as it:
        client = await it.connect()
        await client.send(post(body=STREAM))
        await asyncio.sleep(0.1)
        it.engines[0].stop_listening()
        it.gateway.apply(GatewayOptions(sweep_s=0.02, look_s=0.1))
        async with asyncio.timeout(5.0):
            await client.answer()
        assert it.placer.outcomes[0].end is EndCause.TRUNCATED


async def begin_and_hang(served: Served) -> None:
    await served.begin_stream()
    await served.chunk(EVENT)
    await served.until_closed()


async def test_an_engine_without_an_answer_times_out() -> None:
    async def hang(served: Served) -> None:
        await served.until_closed()

    options = GatewayOptions(sweep_s=0.02, timeouts=Timeouts(first_byte_s=0.1))
    async with rig(hang, answer_ok, options=options) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.header("x-pointsman-reason")) == (504, "first_token_timeout")
        assert it.placer.outcomes[0].end is EndCause.TIMEOUT
        await it.engine.left.wait()
        assert not it.engines[1].served


async def test_one_hanging_engine_does_not_hold_up_the_others() -> None:
    async def hang(served: Served) -> None:
        await served.until_closed()

    async with rig(hang, answer_ok) as it:
        stuck = await it.connect()
        await stuck.send(post())
        assert (await it.ask(post())).status == 200


@pytest.mark.parametrize(
    ("timeouts", "reason"),
    [
        (Timeouts(idle_s=0.1), Reason.IDLE_TIMEOUT),
        (Timeouts(total_s=0.2), Reason.TOTAL_TIMEOUT),
    ],
)
async def test_a_stream_that_stalls_ends_with_an_error_event(
    timeouts: Timeouts, reason: Reason
) -> None:
    async def stall(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(EVENT)
        await served.until_closed()

    async with rig(stall, options=GatewayOptions(sweep_s=0.02, timeouts=timeouts)) as it:
        answer = await it.ask(post(body=STREAM))
        assert reason.encode() in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert not answer.is_whole
        assert it.placer.outcomes[0].end is EndCause.TIMEOUT
        await it.engine.left.wait()


async def test_time_in_the_queue_counts_against_the_total() -> None:
    options = GatewayOptions(sweep_s=0.02, timeouts=Timeouts(total_s=0.1))
    async with rig(answer_ok, options=options) as it:
        it.placer.hold = True
        answer = await it.ask(post())
        assert answer.header("x-pointsman-reason") == "total_timeout"


async def test_progress_keeps_a_stream_alive() -> None:
    async def steady(served: Served) -> None:
        await served.begin_stream()
        for _ in range(10):
            await served.chunk(EVENT)
            await asyncio.sleep(0.05)
        await served.end_stream()

    options = GatewayOptions(sweep_s=0.02, timeouts=Timeouts(idle_s=0.3))
    async with rig(steady, options=options) as it:
        assert (await it.ask(post(body=STREAM))).is_whole
