"""Data-parallel ranks of a real vLLM server behind one port, each a node of its own."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from pointsman.cli.config import Engine
from tests.support.cluster import cluster_config, new_session, running_process
from tests.support.live_cluster import LiveCluster
from tests.support.live_engines import START_S_MAX, LiveEngine, VllmServers
from tests.support.ports import free_ports
from tests.support.waiting import eventually

RANKS = 2
ROUNDS = 3
BLOCK = 32
CLIENTS = 8
PAUSE_S = 0.2


@pytest.fixture(scope="module")
def server(launcher: VllmServers) -> Iterator[LiveEngine]:
    """Rank n publishes its events and their replay n ports further on. The last test ends it."""
    [first] = free_ports(1)
    engine = launcher.start("--data-parallel-size", str(RANKS), events=(first, first + RANKS))
    try:
        engine.until_healthy()
        yield engine
    finally:
        with contextlib.suppress(ProcessLookupError):
            engine.kill()


async def test_each_rank_is_found_and_its_cache_known_exactly(server: LiveEngine) -> None:
    rng = Random(11)
    prompts = [rng.choices(range(3, 2_000), k=6 * BLOCK + 7) for _ in range(8)]
    async with ranks_found(server) as cluster:
        nodes = (await cluster.state())["nodes"]
        assert [node["url"] for node in nodes] == [f"{server.url}#{rank}" for rank in range(RANKS)]
        asked = []
        for prompt in ROUNDS * prompts:
            answer = await cluster.complete(prompt, max_tokens=2)
            await cluster.events_are_in()
            asked.append(
                (answer.node, await cluster.predicted_tokens(answer), answer.cached_tokens)
            )
    assert len({node for node, _, _ in asked}) == RANKS, asked
    assert all(foretold == reported for _, foretold, reported in asked), asked
    hits = sum(reported for _, _, reported in asked)
    assert hits > len(prompts) * 6 * BLOCK, "more often found than not"


@asynccontextmanager
async def ranks_found(*engines: LiveEngine) -> AsyncIterator[LiveCluster]:
    """A gateway in front of engines, once it knows which ranks they have."""
    config = cluster_config([Engine(url=engine.url) for engine in engines])
    async with running_process(config) as process, new_session() as session:
        cluster = LiveCluster(process, (), session)
        await process.fleet.until_described()
        await cluster.until_ready()
        yield cluster
        await cluster.at_rest()


async def test_a_server_that_loses_a_rank_under_load_costs_no_request(
    server: LiveEngine, vllms: Sequence[LiveEngine], launcher: VllmServers
) -> None:
    """One rank's process dies, and vLLM ends the whole server. It comes back with one rank."""
    done, statuses = asyncio.Event(), Counter[int]()
    async with ranks_found(server, vllms[0]) as cluster, asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(ask_until(done, cluster, Random(number), statuses))
        await eventually(lambda: sum(statuses.values()) > 4 * CLIENTS)
        os.kill(core_of(server, 1), signal.SIGKILL)
        await eventually(lambda: health_is(cluster, ["open"] * RANKS), START_S_MAX)
        port = urlsplit(server.url).port or 0
        alone = launcher.start(port=port, events=free_ports(2))
        await asyncio.to_thread(alone.until_healthy)
        await eventually(lambda: health_is(cluster, ["ready"]), START_S_MAX)
        done.set()
    alone.kill()
    assert set(statuses) == {200}, statuses


async def ask_until(
    done: asyncio.Event, cluster: LiveCluster, rng: Random, statuses: Counter[int]
) -> None:
    while not done.is_set():
        prompt = rng.choices(range(3, 2_000), k=2 * BLOCK)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
        statuses[(await cluster.post("/v1/completions", body)).status] += 1
        await asyncio.sleep(PAUSE_S)  # what is cached meanwhile has to fit a replay


async def health_is(cluster: LiveCluster, expected: list[str]) -> bool:
    """Whether it is that of the nodes of the first engine."""
    nodes = (await cluster.state())["nodes"]
    return [n["health"] for n in nodes if n["name"].startswith("engine-1-")] == expected


def core_of(server: LiveEngine, rank: int) -> int:
    """The process of a rank, by the name that vLLM gives it."""
    mark = f"EngineCore_DP{rank}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid, named = int(folder.name), mark in (folder / "cmdline").read_bytes()
            if named and os.getpgid(pid) == server.pid:
                return pid
    raise AssertionError(f"{server.url} has no rank {rank}")
