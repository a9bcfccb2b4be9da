"""An engine that joins under load computes what is hot before it gets a request."""

import asyncio

import msgspec

from pointsman.cli.config import Config, WarmUp
from tests.support.cluster import Cluster, cluster_config, running_cluster
from tests.support.engines import running_engine
from tests.support.waiting import eventually

SYSTEM = "You are a helpful assistant who answers in few words. " * 40


def warm_up_config(prefixes: int = 4, within_s: float = 10.0) -> Config:
    warm_up = WarmUp(prefixes=prefixes, within_s=within_s)
    return msgspec.structs.replace(cluster_config(()), warm_up=warm_up)


async def ask_often(cluster: Cluster, count: int = 60) -> None:
    """One system prompt, a question each; slowly enough for samples to be taken."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(cluster.chat(SYSTEM, f"question {number}"))
            await asyncio.sleep(0.03)


async def join(cluster: Cluster, url: str) -> None:
    await cluster.admin_json("POST", "/nodes", {"name": "newcomer", "url": url})
    await eventually(lambda: serves(cluster))


async def serves(cluster: Cluster) -> bool:
    await asyncio.sleep(0)
    return any(n.name == "newcomer" and n.serving for n in cluster.scheduler._cluster.nodes)


async def only(cluster: Cluster) -> None:
    """Leave the newcomer alone in service."""
    for name in ("engine-1", "engine-2"):
        await cluster.admin_json("POST", f"/nodes/{name}/drain")


async def test_the_first_request_with_a_hot_prefix_hits_on_a_newcomer() -> None:
    async with running_cluster(2, config=warm_up_config()) as cluster, running_engine() as engine:
        await ask_often(cluster)
        await join(cluster, engine.url)
        await only(cluster)
        answer = await cluster.chat(SYSTEM, "something new")
        await cluster.admin_json("DELETE", "/nodes/newcomer")
    assert answer.node == "newcomer"
    assert answer.cached_tokens > 0.8 * answer.prompt_tokens


async def test_without_it_the_first_request_misses() -> None:
    config = warm_up_config(prefixes=0)
    async with running_cluster(2, config=config) as cluster, running_engine() as engine:
        await ask_often(cluster)
        await join(cluster, engine.url)
        await only(cluster)
        answer = await cluster.chat(SYSTEM, "something new")
        await cluster.admin_json("DELETE", "/nodes/newcomer")
    assert (answer.node, answer.cached_tokens) == ("newcomer", 0)


async def test_a_newcomer_that_does_not_answer_its_warm_up_gets_requests_in_time() -> None:
    config = warm_up_config(within_s=0.5)
    async with running_cluster(2, config=config) as cluster, running_engine() as engine:
        await ask_often(cluster)
        await cluster.simulate(engine, hang=True)
        began_s = asyncio.get_running_loop().time()
        await join(cluster, engine.url)
        assert asyncio.get_running_loop().time() - began_s >= 0.4
        await cluster.simulate(engine, reset=True)
        await cluster.admin_json("DELETE", "/nodes/newcomer")
