"""Two real vLLM servers that the gateway knows by an agent alone."""

from collections.abc import Sequence
from random import Random

import msgspec

from pointsman.cli.config import Agents
from tests.engines_live.test_live_index import expect_equal, send_many
from tests.support.agents import agent_options, running_agent
from tests.support.cluster import cluster_config, new_session, running_process
from tests.support.live_cluster import LiveCluster
from tests.support.live_engines import LiveEngine
from tests.support.waiting import eventually

CONFIG = msgspec.structs.replace(cluster_config([]), agents=Agents(listen="127.0.0.1:0"))


async def test_what_an_agent_tells_is_what_the_engines_hold(vllms: Sequence[LiveEngine]) -> None:
    """Under evictions, block for block; and hits are foretold as exactly as without it."""
    async with running_process(CONFIG) as process, new_session() as session:
        options = agent_options(process.agents_port, [engine.url for engine in vllms])
        async with running_agent(options):
            cluster = LiveCluster(process, (), session)
            await until_known(cluster, len(vllms))
            await send_many(cluster, requests=100, seed=301)
            await expect_equal(cluster, evicted=True)
            matched = 0
            rng = Random(302)
            prompts = [rng.choices(range(3, 2000), k=300) for _ in range(4)]
            for _ in range(30):
                answer = await cluster.complete(rng.choice(prompts), max_tokens=3)
                matched += await cluster.predicted_tokens(answer) == answer.cached_tokens
                await cluster.events_are_in()
            assert matched == 30
            await expect_equal(cluster)
            state = await cluster.state()
            told = [node["events"] for node in state["nodes"]]
            assert told == ["told by agent a"] * len(vllms)
        await cluster.at_rest()


async def until_known(cluster: LiveCluster, count: int) -> None:
    exact = ["exact"] * count
    await eventually(lambda: [n.index_trust for n in cluster.scheduler.nodes(0.0)] == exact, 30)
