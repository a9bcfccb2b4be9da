"""Admission over HTTP: what a client that had to wait, or could not, is told, and what is shown."""

import asyncio
from collections.abc import Sequence

from pointsman.cli.config import Admin, Config, Limits, Listen, Log
from tests.support.cluster import Answer, Cluster, running_cluster
from tests.support.waiting import eventually

BODIES = [{"model": "sim", "prompt": f"{n:04}" * 1_000, "max_tokens": 32} for n in range(16)]


def config(queue_length_max: int) -> Config:
    return Config(
        listen=Listen(port=0),
        admin=Admin(port=0),
        limits=Limits(queue_length_max=queue_length_max),
        log=Log(level="warning", access="none"),
    )


async def ask_all(cluster: Cluster) -> Sequence[Answer]:
    return await asyncio.gather(*(cluster.post("/v1/completions", body) for body in BODIES))


async def test_who_waited_or_could_not_is_told_the_place_and_the_wait() -> None:
    async with running_cluster(1, config=config(4), speed=10, kv_blocks=110) as cluster:
        for n in range(10):  # from which waits are foretold
            await cluster.post("/v1/completions", {**BODIES[0], "prompt": f"{n}"})
        answers = await ask_all(cluster)
    refused = [answer for answer in answers if answer.status == 429]
    waited = [a for a in answers if a.status == 200 and "x-pointsman-queue-position" in a.headers]
    at_once = [a for a in answers if a.status == 200 and a not in waited]
    assert refused
    assert waited
    assert at_once
    for answer in refused:
        assert answer.headers["x-pointsman-reason"] == "queue_full"
        assert int(answer.headers["x-pointsman-queue-position"]) > 4
    assert {int(a.headers["x-pointsman-queue-position"]) for a in waited} == {1, 2, 3, 4}
    for answer in [*refused, *waited]:
        assert int(answer.headers["x-pointsman-expected-wait-ms"]) > 0


async def test_the_admin_plane_shows_who_waits_and_how_full_it_is() -> None:
    slots = [{"concurrency_max": 2}]
    async with running_cluster(1, config=config(64), engine_config=slots, speed=2) as cluster:
        asking = asyncio.create_task(ask_all(cluster))
        await eventually(lambda: cluster.scheduler.held >= 8)
        state = await cluster.state()
        async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
            metrics = await reply.text()
        assert all(answer.status == 200 for answer in await asking)
    assert sum(state["admission"]["held"].values()) == state["totals"]["held"]
    (model,) = state["admission"]["models"]
    assert model["model"] == "sim"
    assert model["watermark"] == "red"
    assert model["load"] >= 0.9
    assert 'pointsman_admission_watermark{model="sim"} 2.0' in metrics
    assert 'pointsman_queue_lane_depth{lane="4k"}' in metrics
