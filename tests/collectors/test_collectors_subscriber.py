"""KV events over real sockets, from a simulated engine and from a publisher in trouble."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from pointsman.collectors import event_socket
from pointsman.collectors.event_socket import REPLAYS_AT_ONCE, Subscription, replay
from pointsman.core.events import IndexTrust
from pointsman.core.ids import NodeName
from pointsman.core.limits import NODES_MAX
from tests.control.fake_engine import (
    Cluster,
    fake_engine,
    running_cluster,
)
from tests.support.engines import running_engine
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("hurried")

TOPIC = b"kv@127.0.0.1:8000@m"


async def ask(url: str, text: str) -> None:
    """Have the engine compute, and so cache, a prompt."""
    body = {"model": "sim", "prompt": text, "max_tokens": 1}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/completions", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()


async def simulate(url: str, **faults: object) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/simulate", json=faults) as reply,
    ):
        assert reply.status == 200, await reply.text()


async def test_a_router_that_comes_late_knows_the_cache_exactly() -> None:
    async with running_engine(kv_events_port=0) as engine, running_cluster() as cluster:
        await ask(engine.url, "once upon a time " * 60)
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: cluster.node().index_trust is IndexTrust.EXACT)
        known = cluster.node().index_blocks
        assert known >= 15
        await ask(engine.url, "another story altogether " * 60)
        await eventually(lambda: cluster.node().index_blocks > known)
        assert cluster.node().index_trust is IndexTrust.EXACT
        status = cluster.fleet.status(cluster.node().name)
        assert status is not None
        assert status.events.startswith("subscribed to tcp://127.0.0.1:")


async def test_an_engine_that_restarts_in_place_is_forgotten() -> None:
    """llm-d-router#2853: the sequence starts over and the old blocks stayed in the index."""
    async with running_engine(kv_events_port=0) as engine, running_cluster() as cluster:
        await ask(engine.url, "once upon a time " * 200)
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: cluster.node().index_trust is IndexTrust.EXACT)
        before = cluster.node().index_blocks
        await simulate(engine.url, restart=True)
        await ask(engine.url, "a short one " * 10)
        await eventually(lambda: 0 < cluster.node().index_blocks < before)
        await eventually(lambda: cluster.node().index_trust is IndexTrust.EXACT)


class Publisher:
    """vLLM's event sockets, by hand: what is `kept` can be replayed."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._pub = context.socket(zmq.XPUB)  # as PUB, and it hears of subscriptions
        self._router = context.socket(zmq.ROUTER)
        self.port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self.replay_port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.kept: list[list[bytes]] = []
        self.answers = True
        self.falls_silent_after: int | None = None  # messages of one replay
        self.asked: list[int] = []

    def message(self, seq: int) -> list[bytes]:
        event = {"type": "BlockStored", "block_hashes": [seq], "token_ids": [seq] * 16}
        batch = [100.0 + seq, [{**event, "block_size": 16, "parent_block_hash": None}], 0]
        return [TOPIC, seq.to_bytes(8), msgspec.msgpack.encode(batch)]

    def keep(self, *seqs: int) -> None:
        self.kept += [self.message(seq) for seq in seqs]

    async def subscribed(self) -> None:
        """Wait for the first subscription: what is published before it is lost."""
        await self._pub.recv()

    async def send(self, *frames: bytes) -> None:
        await self._pub.send_multipart(frames)

    async def publish(self, *seqs: int) -> None:
        for seq in seqs:
            await self.send(*self.message(seq))

    async def serve_replay(self) -> None:
        while True:
            client, empty, start = await self._router.recv_multipart()
            assert empty == b"", "a REQ's delimiter is expected"
            self.asked.append(int.from_bytes(start))
            if not self.answers:
                continue
            wanted = [f for f in self.kept if int.from_bytes(f[1]) >= int.from_bytes(start)]
            for frames in wanted[: self.falls_silent_after]:
                await self._router.send_multipart([client, b"", *frames])
            if len(wanted) > (self.falls_silent_after or len(wanted)):
                continue
            await self._router.send_multipart([client, b"", b"", b"\xff" * 8, b""])

    def close(self) -> None:
        self._pub.close(linger=0)
        self._router.close(linger=0)


@asynccontextmanager
async def publishing() -> AsyncIterator[Publisher]:
    context = zmq.asyncio.Context()
    publisher = Publisher(context)
    serving = asyncio.get_running_loop().create_task(publisher.serve_replay())
    try:
        yield publisher
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        publisher.close()
        context.term()


def sources(publisher: Publisher, **more: object) -> dict[str, object]:
    return {
        "0": {
            "endpoint": f"tcp://*:{publisher.port}",
            "replay_endpoint": f"tcp://*:{publisher.replay_port}",
            "topic": TOPIC.decode(),
            **more,
        }
    }


async def test_a_gap_is_replayed_from_where_it_began() -> None:
    async with publishing() as publisher, fake_engine() as engine, running_cluster() as cluster:
        engine.sources = sources(publisher)
        publisher.keep(0, 1)
        cluster.add(engine.url)
        await eventually(lambda: bool(cluster.fleet.names) and bool(publisher.asked))
        await eventually(lambda: cluster.node().index_blocks == 2)
        publisher.keep(2, 3, 4)
        await publisher.subscribed()
        await publisher.publish(4)
        await eventually(lambda: cluster.node().index_blocks == 5)
        assert publisher.asked == [0, 2]
        assert cluster.node().index_trust is IndexTrust.EXACT
        assert cluster.count("kv_event_gaps", node="n") == 1


async def test_a_gap_beyond_the_replay_buffer_degrades() -> None:
    async with publishing() as publisher, fake_engine() as engine, running_cluster() as cluster:
        engine.sources = sources(publisher)
        publisher.keep(0)
        cluster.add(engine.url)
        await eventually(lambda: bool(publisher.asked) and cluster.node().index_blocks == 1)
        publisher.kept.clear()
        publisher.keep(8, 9)
        await publisher.subscribed()
        await publisher.publish(9)
        await eventually(lambda: cluster.node().index_blocks == 3)
        assert cluster.node().index_trust is IndexTrust.DEGRADED
        assert cluster.count("kv_event_losses", node="n") == 1


async def test_a_replay_that_is_never_answered_blocks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_socket, "REPLAY_TIMEOUT_S", 0.05)
    async with publishing() as publisher, fake_engine() as engine, running_cluster() as cluster:
        engine.sources = sources(publisher)
        publisher.answers = False
        cluster.add(engine.url)
        await eventually(lambda: bool(publisher.asked))
        assert cluster.node().index_trust is IndexTrust.HISTORY
        await eventually(lambda: cluster.count("kv_event_replays", node="n") == 1)
        await publisher.subscribed()
        await publisher.publish(7)
        await eventually(lambda: cluster.node().index_blocks == 1)
        assert cluster.node().index_trust is IndexTrust.DEGRADED


async def test_a_replay_that_breaks_off_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_socket, "REPLAY_TIMEOUT_S", 0.5)
    async with publishing() as publisher, fake_engine() as engine, running_cluster() as cluster:
        engine.sources = sources(publisher)
        publisher.keep(*range(5))
        publisher.falls_silent_after = 2
        cluster.add(engine.url)
        await eventually(lambda: len(publisher.asked) >= 3)
        await eventually(lambda: cluster.node().index_trust is IndexTrust.EXACT)
        assert publisher.asked == [0, 2, 4]
        assert cluster.node().index_blocks == 5


async def test_replays_take_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_socket, "REPLAYS_AT_ONCE", 1)
    monkeypatch.setattr(event_socket, "REPLAY_TIMEOUT_S", 60.0)
    async with (
        publishing() as one,
        publishing() as other,
        fake_engine() as first,
        fake_engine() as second,
        running_cluster() as cluster,
    ):
        first.sources, second.sources = sources(one), sources(other)
        one.answers = False  # whoever asks it waits, and has the only turn meanwhile
        other.keep(0)
        cluster.add(first.url, name="first")
        await eventually(lambda: bool(one.asked))
        cluster.add(second.url, name="second")
        await cluster.ready()
        await asyncio.sleep(0.3)
        assert other.asked == []
        await cluster.fleet.remove(NodeName("first"))
        await eventually(lambda: bool(other.asked))
        await eventually(lambda: cluster.node("second").index_trust is IndexTrust.EXACT)


async def test_a_stray_topic_changes_nothing() -> None:
    """dynamo#11239."""
    async with publishing() as publisher, fake_engine() as engine, running_cluster() as cluster:
        engine.sources = sources(publisher)
        publisher.keep(0)
        cluster.add(engine.url)
        await eventually(lambda: bool(publisher.asked) and cluster.node().index_blocks == 1)
        clear = msgspec.msgpack.encode([1.0, [{"type": "AllBlocksCleared"}], 0])
        await publisher.subscribed()
        await publisher.send(b"kv@elsewhere@m", (1).to_bytes(8), clear)
        labels = {"node": "n", "result": "foreign_topic"}
        await eventually(lambda: cluster.count("kv_event_messages", **labels) == 1)
        assert cluster.node().index_blocks == 1


async def test_several_ranks_are_left_to_our_own_history() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        rank = {"endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": ""}
        engine.sources = {"0": rank, "1": {**rank, "endpoint": "tcp://*:5558"}}
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: "2 data-parallel ranks" in events(cluster))
        assert cluster.node().index_trust is IndexTrust.HISTORY


async def test_events_can_be_switched_off_and_named_by_hand() -> None:
    async with publishing() as publisher, fake_engine() as engine, running_cluster() as cluster:
        engine.sources = sources(publisher)
        cluster.add(engine.url, kv_events="off")
        await cluster.ready()
        await eventually(lambda: events(cluster) == "switched off")
        await cluster.fleet.remove(cluster.node().name)
        engine.sources = {}
        endpoint = f"tcp://127.0.0.1:{publisher.port}"
        cluster.add(engine.url, kv_events=endpoint)
        await cluster.ready()
        await eventually(lambda: events(cluster) == f"subscribed to {endpoint}")
        async with asyncio.timeout(10):
            while cluster.node().index_blocks == 0:  # the subscription takes a moment
                await publisher.publish(0)
                await asyncio.sleep(0.02)
        assert cluster.node().index_trust is IndexTrust.EXACT


async def test_an_endpoint_that_cannot_be_is_named() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url, kv_events="tcp://nowhere")
        await cluster.ready()
        await eventually(lambda: events(cluster).startswith("tcp://nowhere: "))
        assert cluster.service.ready()


async def test_there_are_sockets_for_every_node() -> None:
    async with event_socket.event_sockets() as sockets:
        assert sockets.subscriptions.get(zmq.MAX_SOCKETS) >= NODES_MAX + REPLAYS_AT_ONCE


async def test_where_no_descriptors_are_left_there_are_no_events_and_no_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    async with event_socket.event_sockets() as sockets:
        monkeypatch.setattr(zmq.Context, "socket", refuse)
        with pytest.raises(ValueError, match="Too many open files"):
            Subscription(sockets.subscriptions, "tcp://127.0.0.1:1", lambda _: None)
        assert [each async for each in replay(sockets.replays, "tcp://127.0.0.1:1", 0)] == []


async def test_a_publisher_can_be_left_amid_a_replay() -> None:
    async with publishing() as publisher, fake_engine() as engine, running_cluster() as cluster:
        engine.sources = sources(publisher)
        publisher.answers = False
        cluster.add(engine.url)
        await eventually(lambda: bool(publisher.asked))
        assert await cluster.fleet.remove(cluster.node().name)


def events(cluster: Cluster) -> str:
    status = cluster.fleet.status(cluster.node().name)
    assert status is not None
    return status.events
