"""Work that is taken back from engines: hung, busy, or needed by who is more urgent."""

import asyncio
from collections import Counter

import msgspec

from pointsman.cli.config import Config, Health
from tests.support.cluster import Answer, Cluster, cluster_config, running_cluster
from tests.support.waiting import eventually

QUICK = Health(probe_s=0.2, probe_retry_s=0.1, probe_timeout_s=0.2, probe_failures_max=2)


def quick_config() -> Config:
    return msgspec.structs.replace(cluster_config(()), health=QUICK)


async def ask(cluster: Cluster, prompt: str, priority: str = "normal", **fields: object) -> Answer:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 8, **fields}
    return await cluster.post("/v1/completions", body, {"x-pointsman-priority": priority})


async def inflight(cluster: Cluster, count: int) -> None:
    await eventually(lambda: cluster.scheduler.in_flight >= count)


async def test_what_waits_in_an_engine_that_hangs_is_served_elsewhere() -> None:
    async with running_cluster(2, config=quick_config(), policy="round_robin") as cluster:
        hung = cluster.engines[0]
        await cluster.simulate(hung, hang=True, health_status=503)
        asking = [
            asyncio.create_task(ask(cluster, f"{n} " * 50, stream=bool(n % 2))) for n in range(12)
        ]
        answers = await asyncio.wait_for(asyncio.gather(*asking), 30)
        stats = (await cluster.state())["stats"]
        await cluster.simulate(hung, reset=True)
    assert [answer.status for answer in answers] == [200] * 12
    assert {answer.node for answer in answers} == {"engine-2"}
    assert 1 <= stats["recalled"] <= 6, "at most half of them had been sent there"


async def test_an_engine_that_is_full_hands_back_and_the_other_serves() -> None:
    async with running_cluster(2, policy="round_robin") as cluster:
        await cluster.simulate(cluster.engines[0], status=503, retry_after=1)
        answers = await asyncio.gather(*(ask(cluster, f"{n} " * 50) for n in range(12)))
        await cluster.simulate(cluster.engines[0], reset=True)
    assert Counter((answer.status, answer.node) for answer in answers) == {(200, "engine-2"): 12}


async def test_the_urgent_take_the_place_of_who_is_less_so_and_has_not_begun() -> None:
    """One engine that takes four and runs one at a time."""
    ends: list[str] = []

    async with running_cluster(
        1, speed=2, max_num_seqs=1, engine_config=({"concurrency_max": 4},)
    ) as cluster:

        async def told(name: str, priority: str) -> Answer:
            answer = await ask(cluster, f"{name} " * 100, priority, stream=True, max_tokens=16)
            ends.append(priority)
            return answer

        async with asyncio.TaskGroup() as tasks:
            low = [tasks.create_task(told(f"low{n}", "low")) for n in range(4)]
            await inflight(cluster, 4)
            high = [tasks.create_task(told(f"high{n}", "high")) for n in range(2)]
        stats = (await cluster.state())["stats"]
    assert {task.result().status for task in [*low, *high]} == {200}
    assert stats["recalled"] == 2
    assert ends[-1] == "low"
    assert max(n for n, name in enumerate(ends) if name == "high") < 4, ends
