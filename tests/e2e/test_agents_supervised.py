"""An agent that runs its engine: restarts and the way down, seen by clients of the gateway."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pointsman.agent import Agent
from pointsman.agent.supervisor import SupervisorOptions
from pointsman.core.events import IndexTrust
from tests.e2e.test_agents import gateway, node
from tests.support.agents import agent_options, running_agent
from tests.support.cluster import Cluster
from tests.support.waiting import eventually

PROMPT = list(range(1, 200))
QUICK = SupervisorOptions(pause_s_min=0.05, stop_s_max=5.0)


@asynccontextmanager
async def supervised(*more: str) -> AsyncIterator[tuple[Cluster, Agent]]:
    """A gateway, and an agent that runs a simulated engine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = (
        *(sys.executable, "-m", "pointsman", "engine", "--port", str(port)),
        *("--kv-events-port", "0", *more),
    )
    async with gateway() as cluster:
        options = agent_options(
            cluster.process.agents_port,
            [f"http://127.0.0.1:{port}"],
            command=command,
            supervisor=QUICK,
        )
        async with running_agent(options) as agent:
            await eventually(
                lambda: [n.index_trust for n in cluster.scheduler.nodes(0.0)] == [IndexTrust.EXACT]
            )
            yield cluster, agent


async def test_an_engine_that_dies_is_back_as_a_new_one() -> None:
    async with supervised("--speed", "100") as (cluster, agent):
        assert (await cluster.complete(PROMPT)).cached_tokens == 0
        assert (await cluster.complete(PROMPT)).cached_tokens == 192
        before = node(cluster).incarnation
        pid = agent.pids[0]
        assert pid is not None
        await asyncio.create_subprocess_exec("kill", "-9", str(pid))
        await eventually(lambda: node(cluster).incarnation != before)
        await eventually(lambda: node(cluster).index_trust is IndexTrust.EXACT)
        assert (await cluster.complete(PROMPT)).cached_tokens == 0
        assert agent.pids != [pid]


async def test_the_end_waits_for_what_runs_and_takes_the_node_along() -> None:
    async with supervised("--speed", "2") as (cluster, agent):
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 100, "stream": True}
        async with cluster.session.post(f"{cluster.api}/v1/completions", json=body) as reply:
            await reply.content.readany()
            agent.stop()
            await eventually(lambda: node(cluster).draining)
            text = (await reply.read()).decode()
        assert text.rstrip().endswith("data: [DONE]")
        await eventually(lambda: not cluster.scheduler.nodes(0.0))
        refused = await cluster.post("/v1/completions", {"model": "sim", "prompt": "x"})
        assert refused.status in (404, 503)
