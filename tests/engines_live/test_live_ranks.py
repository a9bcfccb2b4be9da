"""Data-parallel ranks of a real vLLM server behind one port, each a node of its own."""

from collections.abc import Iterator
from random import Random

import pytest

from pointsman.cli.config import Engine
from tests.support.cluster import cluster_config, new_session, running_process
from tests.support.live_cluster import LiveCluster
from tests.support.live_engines import LiveEngine, VllmServers
from tests.support.ports import free_ports

RANKS = 2
ROUNDS = 3
BLOCK = 32


@pytest.fixture
def server(launcher: VllmServers) -> Iterator[LiveEngine]:
    """Rank n publishes its events and their replay n ports further on."""
    [first] = free_ports(1)
    engine = launcher.start("--data-parallel-size", str(RANKS), events=(first, first + RANKS))
    try:
        engine.until_healthy()
        yield engine
    finally:
        engine.kill()


async def test_each_rank_is_found_and_its_cache_known_exactly(server: LiveEngine) -> None:
    rng = Random(11)
    prompts = [rng.choices(range(3, 2_000), k=6 * BLOCK + 7) for _ in range(8)]
    config = cluster_config([Engine(url=server.url)])
    async with running_process(config) as process, new_session() as session:
        cluster = LiveCluster(process, (), session)
        await process.fleet.until_described()
        await cluster.until_ready()
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
