"""The index of two real vLLM servers, block for block, whatever befalls them and their events."""

import asyncio
import json
import re
from collections.abc import Sequence
from random import Random

import pytest

from pointsman.core.ids import BlockHash
from pointsman.core.node import Node
from pointsman.core.residency import Residency
from pointsman.engines.adapters.event_sources import reachable
from tests.support.event_relay import event_relay
from tests.support.event_replay import replayed
from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.live_engines import LiveEngine, VllmServers
from tests.support.ports import free_ports
from tests.support.waiting import eventually

BLOCK_TOKENS = 32


@pytest.mark.parametrize("requests", [400, pytest.param(2_000, marks=pytest.mark.soak)])
async def test_the_index_is_what_the_engines_hold(
    vllms: Sequence[LiveEngine], launcher: VllmServers, requests: int
) -> None:
    """Requests over far more prompts than fit. Among them one message is lost, one engine dies
    and returns, and the other one's cache is reset."""
    steady, ports, [port] = vllms[0], free_ports(2), free_ports(1)
    mortal = launcher.start(port=port, events=ports)
    mortal.until_healthy()
    with event_relay(events_of(steady)) as relay:
        config = [{"kv_events": relay.endpoint}]
        async with live_cluster(steady, mortal, engine_config=config) as cluster:
            await send_many(cluster, requests=requests // 4, seed=101)
            relay.lose_next = 1
            await send_many(cluster, requests=requests // 4, seed=102)
            assert relay.lost == 1
            assert await gaps(cluster) >= 1, "the loss must be seen"
            await expect_equal(cluster, evicted=True)
            mortal.kill()
            await asyncio.sleep(0.5)
            reborn = launcher.start(port=port, events=ports)
            await asyncio.to_thread(reborn.until_healthy)
            await restart_is_seen(cluster, "engine-2")
            await send_many(cluster, requests=requests // 4, seed=103)
            await reset(cluster, steady)
            await send_many(cluster, requests=requests // 4, seed=104)
            await expect_equal(cluster, evicted=True)
            state = await cluster.state()
            assert state["stats"]["settled"] >= requests
    reborn.kill()


async def test_a_reset_cache_is_known_to_be_empty(vllms: Sequence[LiveEngine]) -> None:
    """vLLM tells of a reset with its next step only."""
    prompt = Random(105).choices(range(3, 2000), k=200)
    async with live_cluster(vllms[1]) as cluster:
        await cluster.complete(prompt)
        await reset(cluster, vllms[1])
        await cluster.complete([5, 6, 7], max_tokens=1)
        await cluster.events_are_in()
        await expect_equal(cluster)
        answer = await cluster.complete(prompt)
        assert await cluster.predicted_tokens(answer) == answer.cached_tokens == 0


def events_of(engine: LiveEngine) -> str:
    """Where it publishes."""
    [source] = json.loads(engine.get("/kv_event_sources")).values()
    return reachable(source["endpoint"], "127.0.0.1")


async def reset(cluster: LiveCluster, engine: LiveEngine) -> None:
    async with cluster.session.post(f"{engine.url}/reset_prefix_cache") as reply:
        assert reply.status == 200


async def send_many(cluster: LiveCluster, *, requests: int, seed: int) -> None:
    """Prefixes of 30 texts, four at a time: 18,000 tokens, twice what both hold."""
    rng = Random(seed)
    families = [rng.choices(range(3, 2000), k=600) for _ in range(30)]
    prompts = [rng.choice(families)[: rng.choice((70, 150, 333, 600))] for _ in range(requests)]

    async def work() -> None:
        while prompts:
            await cluster.complete(prompts.pop(), max_tokens=3)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(work())


async def restart_is_seen(cluster: LiveCluster, name: str) -> None:
    await eventually(lambda: is_back(cluster, name), 30)


async def is_back(cluster: LiveCluster, name: str) -> bool:
    [node] = [n for n in (await cluster.state())["nodes"] if n["name"] == name]
    is_up = node["health"] in ("warming", "ready")
    return bool(node["restarts"] and is_up and node["index_trust"] == "exact")


async def expect_equal(cluster: LiveCluster, *, evicted: bool = False) -> None:
    """The index holds of each engine what its own replayed events come to, block for block."""
    await cluster.events_are_in()
    removals = 0
    residency: Residency = cluster.scheduler._residency
    for node, shown in zip(nodes_of(cluster), (await cluster.state())["nodes"], strict=True):
        assert shown["index_trust"] == "exact"
        async with cluster.session.get(f"{shown['url']}/kv_event_sources") as reply:
            replay = (await reply.json())["0"]["replay_endpoint"]
        held = await asyncio.to_thread(replayed, replay.replace("*", "127.0.0.1"))
        expected = held.hashes("tiny", BLOCK_TOKENS)
        assert residency.blocks(node) == len(expected), shown["name"]
        holders = map(residency.holders, map(BlockHash, expected))
        assert all(mask >> node.slot & 1 for mask in holders), shown["name"]
        print(f"{shown['name']}: {len(expected)} blocks equal, {held.removals} were evicted")
        removals += held.removals
    assert removals > 100 or not evicted


def nodes_of(cluster: LiveCluster) -> list[Node]:
    return list(cluster.scheduler._cluster.nodes)


async def gaps(cluster: LiveCluster) -> float:
    """In the numbers of events, as counted so far."""
    async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
        page = await reply.text()
    found = re.findall(r"^pointsman_kv_event_gaps_total{.*} (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))
