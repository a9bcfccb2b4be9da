"""KV events over real ZMQ sockets, held against what the model has cached."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from pointsman.engines.simulated import RunningEngine
from pointsman.engines.simulated.kv_events import BUFFER_BATCHES, END_SEQUENCE, EventPublisher
from tests.support.engines import running_engine

Frames = list[bytes]


@asynccontextmanager
async def socket(kind: int, port: int) -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    peer = context.socket(kind)
    if kind == zmq.SUB:
        peer.subscribe(b"")
    peer.connect(f"tcp://127.0.0.1:{port}")
    try:
        yield peer
    finally:
        peer.close(linger=0)
        context.term()


async def replay(engine: RunningEngine, first: int = 0) -> list[Frames]:
    publisher = engine.engine.publisher
    assert publisher is not None
    async with socket(zmq.DEALER, publisher.replay_port) as dealer, asyncio.timeout(10):
        await dealer.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while (frames := await dealer.recv_multipart())[-2] != END_SEQUENCE:
            batches.append(frames)
        assert frames == [b"", b"", END_SEQUENCE, b""]
    return batches


async def ask(engine: RunningEngine, prompt: str, **more: object) -> None:
    body = {"prompt": prompt, "max_tokens": 20, **more}
    async with (
        aiohttp.ClientSession(engine.url) as http,
        http.post("/v1/completions", json=body) as response,
    ):
        assert response.status == 200


def index(batches: list[Frames]) -> dict[Any, list[int]]:
    """What a listener believes: block hash -> its token ids."""
    known: dict[Any, list[int]] = {}
    for frames in batches:
        stamp, events, rank = msgspec.msgpack.decode(frames[-1])
        assert isinstance(stamp, float)
        assert rank == 0
        for event in events:
            match event["type"]:
                case "BlockStored":
                    size = event["block_size"]
                    assert len(event["token_ids"]) == size * len(event["block_hashes"])
                    parent = event["parent_block_hash"]
                    assert parent is None or parent in known, "an orphan"
                    for number, block in enumerate(event["block_hashes"]):
                        known[block] = event["token_ids"][number * size : (number + 1) * size]
                case "BlockRemoved":
                    for block in event["block_hashes"]:
                        del known[block]
                case "AllBlocksCleared":
                    known.clear()
    return known


async def test_events_are_the_models_cache_through_evictions() -> None:
    async with running_engine(kv_events_port=0, kv_blocks=30) as engine:
        for number in range(12):
            await ask(engine, f"{number % 5:03d} " + "abc " * (40 + number))
        assert index(await replay(engine)).keys() == engine.engine.driver.model.pool.cached


async def test_events_carry_prompt_and_generated_tokens_in_vllms_fields() -> None:
    async with running_engine(kv_events_port=0, block_size=8, loras=["ad"]) as engine:
        await ask(engine, "abc " * 20, model="ad", cache_salt="s")
        batches = await replay(engine)
        topic = f"kv@127.0.0.1:{engine.port}@sim".encode()
        assert [frames[:3] for frames in batches] == [
            [b"", topic, number.to_bytes(8, "big")] for number in range(len(batches))
        ]
        first = msgspec.msgpack.decode(batches[0][-1])[1][0]
        assert list(first) == [
            "type",
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
        ]
        assert first["extra_keys"] == [["ad", "s"], ["ad"]]
        assert (first["lora_id"], first["lora_name"], first["medium"]) == (1, "ad", "GPU")
        assert first["token_ids"] == [int.from_bytes(b"abc ", "big")] * 16
        # 20 prompt tokens and 19 generated ones have KV: 4 blocks of 8 are full.
        assert len(index(batches)) == 4


async def test_a_subscriber_gets_each_step_and_replay_fills_what_it_missed() -> None:
    async with running_engine(kv_events_port=0) as engine:
        publisher = engine.engine.publisher
        assert publisher is not None
        await ask(engine, "early " * 20)
        async with socket(zmq.SUB, publisher.port) as sub, asyncio.timeout(20):
            await asyncio.sleep(0.2)  # a subscription has no acknowledgement
            await ask(engine, "late " * 20)
            live = [await sub.recv_multipart()]
            while int.from_bytes(live[-1][1], "big") + 1 < publisher.sequence:
                live.append(await sub.recv_multipart())
        first = int.from_bytes(live[0][1], "big")
        missed = (await replay(engine))[:first]
        known = index([*missed, *live])
        assert known.keys() == engine.engine.driver.model.pool.cached
        assert [frames[1:] for frames in await replay(engine, first)] == live


async def test_restart_begins_at_sequence_0_with_nothing_to_replay() -> None:
    async with running_engine(kv_events_port=0) as engine:
        await ask(engine, "abc " * 40)
        assert len(await replay(engine)) > 1
        async with (
            aiohttp.ClientSession(engine.url) as http,
            http.post("/simulate", json={"restart": True}) as response,
        ):
            assert (await response.json())["event_sequence"] == 0
        assert await replay(engine) == []
        await ask(engine, "abc " * 40)
        batches = await replay(engine)
        assert batches[0][2] == bytes(8)
        assert index(batches).keys() == engine.engine.driver.model.pool.cached


async def test_clearing_is_published_with_the_next_step() -> None:
    async with running_engine(kv_events_port=0) as engine:
        await ask(engine, "abc " * 40)
        before = await replay(engine)
        async with (
            aiohttp.ClientSession(engine.url) as http,
            http.post("/reset_prefix_cache") as response,
        ):
            assert response.status == 200
        assert await replay(engine) == before
        await ask(engine, "x", max_tokens=1)
        (last,) = (await replay(engine))[len(before) :]
        assert msgspec.msgpack.decode(last[-1])[1] == [{"type": "AllBlocksCleared"}]


@pytest.mark.parametrize(("hashes", "kind"), [("int", int), ("bytes", bytes)])
async def test_array_encoding_and_both_kinds_of_hashes(hashes: str, kind: type) -> None:
    async with running_engine(
        kv_events_port=0, kv_events_encoding="array", kv_events_hashes=hashes, kv_blocks=6
    ) as engine:
        await ask(engine, "abc " * 40)
        await ask(engine, "def " * 40)
        await replay(engine)
        events = [e for f in await replay(engine) for e in msgspec.msgpack.decode(f[-1])[1]]
        stored = [event for event in events if event[0] == "BlockStored"]
        removed = [event for event in events if event[0] == "BlockRemoved"]
        assert [len(event) for event in stored] == [7] * len(stored)
        assert all(isinstance(block, kind) for event in stored for block in event[1])
        assert {event[1][0] for event in removed} < {b for event in stored for b in event[1]}
        assert all(event[2] == "GPU" for event in removed)
        if kind is bytes:
            assert all(len(block) == 32 for event in stored for block in event[1])


async def test_the_announced_sources_are_the_real_ports() -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        aiohttp.ClientSession(engine.url) as http,
        http.get("/kv_event_sources") as response,
    ):
        source = (await response.json())["0"]
        publisher = engine.engine.publisher
        assert publisher is not None
        assert source["endpoint"] == f"tcp://*:{publisher.port}"
        assert source["replay_endpoint"] == f"tcp://*:{publisher.replay_port}"
        assert source["topic"] == f"kv@127.0.0.1:{engine.port}@sim"


async def test_the_topic_may_be_empty_as_vllms_own_default_is() -> None:
    async with (
        running_engine(kv_events_port=0, kv_events_topic="") as engine,
        aiohttp.ClientSession(engine.url) as http,
        http.get("/kv_event_sources") as response,
    ):
        assert (await response.json())["0"]["topic"] == ""
        await ask(engine, "abc " * 40)
        assert {frames[1] for frames in await replay(engine)} == {b""}


async def test_a_malformed_replay_request_is_ignored() -> None:
    async with running_engine(kv_events_port=0) as engine:
        publisher = engine.engine.publisher
        assert publisher is not None
        async with socket(zmq.DEALER, publisher.replay_port) as dealer, asyncio.timeout(10):
            for bad in ([b""], [b"x", bytes(8)], [b"", b"short"], [b"", bytes(8), b"more"]):
                await dealer.send_multipart(bad)
            await dealer.send_multipart([b"", bytes(8)])
            assert await dealer.recv_multipart() == [b"", b"", END_SEQUENCE, b""]


async def test_the_replay_buffer_is_bounded() -> None:
    publisher = EventPublisher(host="127.0.0.1", port=0, replay_port=0, topic="t")
    try:
        for _ in range(BUFFER_BATCHES + 5):
            publisher.publish(b"x")
        assert publisher.sequence == BUFFER_BATCHES + 5
        assert publisher.buffered == BUFFER_BATCHES
    finally:
        publisher.close()
