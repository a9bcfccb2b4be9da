"""Open and closed loop against a server that can be slow."""

import asyncio
import json
from itertools import pairwise

from pointsman.loadgen.client import ClientLimits, LoadClient, parse_target
from pointsman.loadgen.runner import Endpoint, LoadOptions, LoadRun
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.request import TrafficRequest
from tests.loadgen.rude_server import (
    DONE,
    FINISH,
    GOOD,
    USAGE,
    Script,
    hangs,
    rude_server,
    streams,
    token,
)


def request(at_s: float = 0.0, **fields: str | int | float) -> TrafficRequest:
    made = {"at_s": at_s, "input_tokens": 8, "output_tokens": 3} | fields
    return TrafficRequest(**made)  # type: ignore[arg-type]  # fields of several types


def slow(delay_s: float) -> Script:
    async def script(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay_s)
        await streams(token("a"), FINISH, USAGE, DONE)(writer)

    return script


async def test_a_request_says_all_that_was_asked() -> None:
    async with rude_server(streams(GOOD)) as server:
        client = LoadClient(parse_target(server.url))
        options = LoadOptions(model="m", concurrency=1, run_id="b7")
        made = request(session="s 1\r\n", tenant="t", priority=2, output_tokens=0)
        [record] = await LoadRun(client, [made], options).run()
        completions = LoadOptions(model="m", endpoint=Endpoint.COMPLETIONS, concurrency=1)
        await LoadRun(client, [made], completions).run()
        client.close()
    first, headers, raw = server.requests[0]
    body = json.loads(raw)
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert len(body["messages"][0]["content"]) == 8 * 4
    assert body["max_tokens"] == 1
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert headers["x-request-id"] == "b7-0"
    assert headers["x-pointsman-session"] == "s%201%0D%0A"
    assert (headers["x-pointsman-tenant"], headers["x-pointsman-priority"]) == ("t", "2")
    assert (record.node, record.request_id, record.outcome) == ("n1", "r1", Outcome.OK)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (10, 3, 8)
    assert server.requests[1][0] == "POST /v1/completions HTTP/1.1"
    assert len(json.loads(server.requests[1][2])["prompt"]) == 8 * 4


async def test_open_loop_counts_from_when_a_request_was_due() -> None:
    """One connection, 50 ms an answer, all due at once: the waits add up instead of hiding."""
    async with rude_server(slow(0.05)) as server:
        limits = ClientLimits(connections_max=1)
        client = LoadClient(parse_target(server.url), limits=limits)
        run = LoadRun(client, [request()] * 4, LoadOptions(model="m"))
        records = await run.run()
        client.close()
    assert [record.index for record in records] == [0, 1, 2, 3]
    for place, record in enumerate(records, start=1):
        assert record.e2e_s >= place * 0.05
        assert record.ttft_s is not None
        assert record.ttft_s >= place * 0.05
    assert records[3].lag_s >= 0.15
    assert run.duration_s >= 0.2


async def test_open_loop_keeps_to_the_arrival_times() -> None:
    async with rude_server(streams(GOOD)) as server:
        client = LoadClient(parse_target(server.url))
        records = await LoadRun(
            client, [request(0.0), request(0.05), request(0.1)], LoadOptions(model="m")
        ).run()
        client.close()
    assert [record.due_s for record in records] == [0.0, 0.05, 0.1]
    assert all(record.sent_s >= record.due_s for record in records)


async def test_closed_loop_keeps_turn_order_and_think_time() -> None:
    turns = [
        request(session=session, turn=turn, think_s=0.02 if turn else 0.0)
        for turn in range(3)
        for session in ("a", "b", "c")
    ]
    async with rude_server(slow(0.01)) as server:
        client = LoadClient(parse_target(server.url))
        options = LoadOptions(model="m", concurrency=2)
        records = await LoadRun(client, turns, options).run()
        client.close()
        assert server.open_max == 2
    assert len(records) == 9
    by_session: dict[str, list[RequestRecord]] = {}
    for record in sorted(records, key=lambda record: record.sent_s):
        by_session.setdefault(record.session, []).append(record)
    for turns_of_one in by_session.values():
        assert [record.turn for record in turns_of_one] == [0, 1, 2]
        for before, after in pairwise(turns_of_one):
            assert after.sent_s >= before.due_s + before.e2e_s + 0.02


async def test_stop_ends_the_run_and_keeps_the_records() -> None:
    async with rude_server(streams(GOOD), hangs) as server:
        client = LoadClient(parse_target(server.url))
        seen: list[RequestRecord] = []
        run = LoadRun(
            client,
            [request(), request(0.01), request(3600)],
            LoadOptions(model="m"),
            on_record=seen.append,
        )
        running = asyncio.ensure_future(run.run())
        await server.received(2)
        while not seen:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0.001)
        run.stop()
        records = await running
    assert [record.outcome for record in records] == [Outcome.OK, Outcome.INTERRUPTED]
    assert [record.failed for record in records] == [False, False]
    assert run.in_flight == 0
    assert len(seen) == 2
