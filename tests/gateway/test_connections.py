"""Connections on both sides: reuse, races with closing engines, limits, idleness."""

import asyncio
import resource
from typing import cast

import pytest

from pointsman.core.errors import FailureKind, Reason
from pointsman.core.ids import NodeId
from pointsman.descriptors import raise_descriptor_limit
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway import GatewayOptions, server
from pointsman.gateway.pools import POOL_UNUSED_S, Pools
from pointsman.gateway.upstream import Caller, UpstreamConnection
from tests.gateway.conftest import rig
from tests.support.descriptors import no_descriptors
from tests.support.upstreams import OK_BODY, STREAM, Served, answer_ok, get, post

# --- the engine's side --------------------------------------------------------------------


async def test_a_pool_is_forgotten_once_it_is_empty_and_out_of_use() -> None:
    pools = Pools(idle_s=1.0, idle_max=1, engine_keys=EngineKeys(), alias="a")
    node_id, url = NodeId(1), "http://127.0.0.1:1"
    pool = pools.node(node_id, url)
    pool.opened()
    pools.sweep(2 * POOL_UNUSED_S)
    assert pools.node(node_id, url) is pool
    pool.lost(UpstreamConnection(pool))
    assert (pool.open_count, pools.open_count) == (0, 0)
    pools.sweep(2 * POOL_UNUSED_S)
    assert pools.node(node_id, url) is not pool


async def test_a_connection_is_used_again() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        for _ in range(5):
            await client.send(post())
            assert (await client.answer()).status == 200
        assert (it.engine.connections, len(it.engine.served)) == (1, 5)


async def test_an_engine_that_closes_idle_connections_costs_nothing() -> None:
    async with rig(answer_ok) as it:
        it.engine.idle_close_s = 0.05
        client = await it.connect()
        for pause_s in (0.04, 0.045, 0.05, 0.055, 0.06, 0.049, 0.051):
            await client.send(post())
            assert (await client.answer()).status == 200
            await asyncio.sleep(pause_s)
        assert not any(told.failures for told in it.placer.order)


async def test_a_reused_connection_that_dies_before_a_byte_is_replaced_once() -> None:
    async def close_on_reuse(served: Served) -> None:
        if len(it.engine.served) == 2:
            served.writer.close()  # as if its idle limit had come while we wrote
        else:
            await answer_ok(served)

    async with rig(close_on_reuse) as it:
        client = await it.connect()
        for _ in range(2):
            await client.send(post())
            assert (await client.answer()).body == OK_BODY
        assert (it.engine.connections, len(it.engine.served)) == (2, 3)
        assert not it.placer.order[1].failures
        assert it.records.ended[1].attempts == 1


async def test_a_fresh_connection_that_dies_is_a_failed_attempt() -> None:
    async def die_after_first(served: Served) -> None:
        if len(it.engine.served) == 1:
            await answer_ok(served)
        else:
            served.writer.close()

    async with rig(die_after_first) as it:
        client = await it.connect()
        await client.send(post())
        await client.answer()
        await client.send(post())
        assert (await client.answer()).status == 502
        assert len(it.engine.served) == 3
        assert it.placer.order[1].failures == [FailureKind.CLOSED]


async def test_a_connection_the_engine_will_close_is_not_kept() -> None:
    async def answer_and_say_close(served: Served) -> None:
        await served.reply(200, OK_BODY, "Connection: close")

    async with rig(answer_and_say_close) as it:
        client = await it.connect()
        for _ in range(2):
            await client.send(post())
            await client.answer()
        assert it.engine.connections == 2
        assert it.gateway.state().engine_connections_idle == 0


async def test_a_connection_that_closes_after_a_stream_unannounced_is_noticed() -> None:
    async def stream_and_close(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(b"data: [DONE]\n\n")
        await served.end_stream()
        await asyncio.sleep(0.01)
        served.writer.close()

    async with rig(stream_and_close) as it:
        client = await it.connect()
        for _ in range(3):
            await client.send(post(body=STREAM))
            assert (await client.answer()).is_whole
            await it.until(lambda: it.gateway.state().engine_connections == 0)


async def test_bytes_on_an_idle_connection_close_it() -> None:
    async def babble_later(served: Served) -> None:
        await served.reply(200, OK_BODY)
        await asyncio.sleep(0.02)
        await served.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")

    async with rig(babble_later) as it:
        client = await it.connect()
        for _ in range(2):
            await client.send(post())
            assert (await client.answer()).body == OK_BODY
            await it.until(lambda: it.gateway.state().engine_connections == 0)


async def test_idle_connections_end_before_the_engine_ends_them() -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, idle_s=0.1)) as it:
        await it.ask(post())
        assert it.gateway.state().engine_connections_idle == 1
        await it.until(lambda: it.gateway.state().engine_connections == 0)


async def test_a_connection_that_was_idle_for_too_long_is_not_used_though_nobody_has_swept() -> (
    None
):
    async with rig(answer_ok, options=GatewayOptions(sweep_s=60.0, idle_s=0.01)) as it:
        await it.ask(post())
        await asyncio.sleep(0.02)
        await it.ask(post())
        assert it.engine.connections == 2


async def test_idle_connections_are_bounded() -> None:
    async def slow(served: Served) -> None:
        await asyncio.sleep(0.05)
        await answer_ok(served)

    async with rig(slow, options=GatewayOptions(sweep_s=0.02, idle_max=3)) as it:
        await asyncio.gather(*(it.ask(post()) for _ in range(10)))
        assert it.engine.connections == 10
        assert it.gateway.state().engine_connections_idle == 3


async def test_a_node_that_left_has_no_connections() -> None:
    async with rig(answer_ok) as it:
        await it.ask(post())
        it.gateway.forget_node(NodeId(1))
        await it.until(lambda: it.gateway.state().engine_connections == 0)


async def test_a_request_that_outlives_its_node_leaves_no_connection() -> None:
    release = asyncio.Event()

    async def wait(served: Served) -> None:
        await release.wait()
        await answer_ok(served)

    async with rig(wait) as it:
        client = await it.connect()
        await client.send(post())
        await it.until(lambda: len(it.engine.served) == 1)
        it.gateway.forget_node(NodeId(1))
        assert it.gateway.state().engine_connections == 1
        release.set()
        assert (await client.answer()).status == 200
        await it.until(lambda: it.engine.open == 0)


async def test_a_host_that_is_none_is_not_reached() -> None:
    class Waiting:
        def __init__(self) -> None:
            self.told = asyncio.Event()

        def unreachable(self, *, is_ours: bool) -> None:
            assert not is_ours
            self.told.set()

    pools = Pools(idle_s=1.0, idle_max=1, engine_keys=EngineKeys(), alias="a")
    waiting = Waiting()
    pools.dial(pools.node(NodeId(1), "http://10.0.0..1:80"), cast("Caller", waiting))
    async with asyncio.timeout(10.0):
        await waiting.told.wait()
    await pools.close()


async def test_where_no_descriptor_is_left_no_node_is_blamed() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(get("/health"))
        await client.answer()
        with no_descriptors():
            await client.send(post())
            answer = await client.answer()
        assert (answer.status, answer.header("x-pointsman-reason")) == (429, "connections_full")
        assert not it.placer.order[0].failures
        await client.send(post())
        assert (await client.answer()).status == 200


async def test_the_host_is_the_engines_own() -> None:
    async with rig(answer_ok) as it:
        await it.ask(post())
        assert it.engine.served[0].header("host") == it.engine.url.removeprefix("http://")


# --- the client's side --------------------------------------------------------------------


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def echo(served: Served) -> None:
        await served.reply(200, served.body)

    async with rig(echo) as it:
        client = await it.connect()
        bodies = [b'{"model":"m","prompt":"%d"}' % number for number in range(10)]
        await client.send(b"".join(post(body=body) for body in bodies))
        assert [(await client.answer()).body for _ in bodies] == bodies


async def test_a_flood_of_requests_ahead_waits_for_the_answers() -> None:
    async def echo(served: Served) -> None:
        await served.reply(200, served.body)

    async with rig(echo) as it:
        client = await it.connect()
        bodies = [b'{"model":"m","prompt":"%d%s"}' % (n, b"x" * 40_000) for n in range(12)]
        sending = asyncio.gather(client.send(b"".join(post(body=body) for body in bodies)))
        for body in bodies:
            assert (await client.answer()).body == body
        await sending


async def test_too_many_requests_ahead_close_the_connection() -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, pipelined_max=4)) as it:
        client = await it.connect()
        await client.send(get("/health") * 20)
        statuses = []
        while not client.reader.at_eof():
            try:
                statuses.append((await client.answer()).status)
            except asyncio.IncompleteReadError:
                break
        assert statuses == [200] * 5 + [400]


async def test_surplus_connections_are_told_and_closed() -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, connections_max=2)) as it:
        kept = [await it.connect() for _ in range(2)]
        await it.until(lambda: it.gateway.state().clients == 2)
        answer = await it.ask(post())
        assert answer.status == 429
        assert answer.header("retry-after") in {"1", "2"}, "a second, and jitter"
        assert answer.header("x-pointsman-reason") == "connections_full"
        assert it.records.refused == [Reason.CONNECTIONS_FULL]
        await kept[0].send(post())
        assert (await kept[0].answer()).status == 200


async def test_a_gateway_that_is_full_says_that_it_lives() -> None:
    """Else Kubernetes restarts it, and whoever it serves loses the answer."""
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, connections_max=1)) as it:
        kept = await it.connect()
        await it.until(lambda: it.gateway.state().clients == 1)
        probe = await it.connect()
        await probe.send(get("/health"))
        answer = await probe.answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert await probe.closed()
        assert (await it.ask(get("/ready"))).header("x-pointsman-reason") == "connections_full"
        kept.leave()


async def test_an_idle_client_is_let_go_after_its_time() -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, keep_alive_s=0.1)) as it:
        client = await it.connect()
        await client.send(get("/health"))
        await client.answer()
        assert await client.closed()


async def test_clients_are_kept_for_75_s_and_engines_for_2_by_default() -> None:
    options = GatewayOptions()
    assert (options.keep_alive_s, options.idle_s) == (75.0, 2.0)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n", 408),
        (post(body=b"x" * 100)[:-50], 408),
    ],
    ids=["head", "body"],
)
async def test_a_request_that_drips_is_ended(sent: bytes, status: int) -> None:
    options = GatewayOptions(sweep_s=0.02, head_s=0.1, body_gap_s=0.1, body_s=0.2)
    async with rig(answer_ok, options=options) as it:
        answer = await it.ask(sent)
        assert answer.status == status
        assert answer.header("x-pointsman-reason") == "body_timeout"


@pytest.mark.parametrize("begun", [10, -99], ids=["head in two pieces", "head in one"])
async def test_a_body_that_trickles_is_ended_in_total(begun: int) -> None:
    """Else it would be whole in the end, and served."""
    options = GatewayOptions(sweep_s=0.02, head_s=0.2, body_gap_s=0.2, body_s=0.3)
    sent = post(body=OK_BODY.ljust(100))
    async with rig(answer_ok, options=options) as it:
        client = await it.connect()
        await client.send(sent[:begun])

        async def trickle() -> None:
            await client.send(sent[begun:-99])
            for number in range(-99, 0):
                await asyncio.sleep(0.02)
                await client.send(sent[number : number + 1 or None])

        async with asyncio.TaskGroup() as group:
            dripping = group.create_task(trickle())
            assert (await client.answer()).status == 408
            dripping.cancel()


async def test_a_connection_without_a_request_is_closed_silently() -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, head_s=0.1)) as it:
        assert await (await it.connect()).closed()


async def test_http_10_closes_unless_asked_to_stay() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(post("/v1/completions", b'{"model":"m"}', version="1.0"))
        answer = await client.answer()
        assert answer.header("connection") == "close"
        assert await client.closed()

        client = await it.connect()
        for _ in range(2):
            await client.send(
                post("/v1/completions", b'{"model":"m"}', "Connection: keep-alive", version="1.0")
            )
            assert (await client.answer()).header("connection") == "keep-alive"


async def test_connection_close_is_honoured() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(post("/v1/completions", b'{"model":"m"}', "Connection: close"))
        assert (await client.answer()).header("connection") == "close"
        assert await client.closed()


def test_the_descriptor_limit_is_raised_and_told() -> None:
    limit = raise_descriptor_limit()
    assert limit is None or limit >= 1_024


def test_where_the_hard_limit_is_none_the_soft_one_is_what_the_system_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS: its soft limit cannot be none, its hard limit is."""
    limits = [(256, resource.RLIM_INFINITY)]

    def set_limit(_: int, limit: tuple[int, int]) -> None:
        if limit[0] == resource.RLIM_INFINITY:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(limit)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert raise_descriptor_limit() == 10_240
    assert limits[-1] == (10_240, resource.RLIM_INFINITY)


async def test_descriptors_suffice_for_all_clients_and_those_who_are_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in (200, 1_024, 4_096):
        monkeypatch.setattr(server, "raise_descriptor_limit", lambda limit=limit: limit)
        async with rig(answer_ok) as it:
            shared = it.gateway._shared
            assert 0 < 2 * shared.clients_max + shared.turned_away_max <= limit - 64


async def test_those_who_are_turned_away_together_come_back_apart() -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, connections_max=1)) as it:
        kept = await it.connect()
        await it.until(lambda: it.gateway.state().clients == 1)
        answers = [await it.ask(post()) for _ in range(8)]
        waits_ms = [int(answer.header("retry-after-ms") or 0) for answer in answers]
        assert all(1_000 <= wait_ms <= 1_500 for wait_ms in waits_ms), waits_ms
        assert len(set(waits_ms)) > 4, waits_ms
        kept.leave()
