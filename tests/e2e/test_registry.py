"""What is served, and whether: one answer on every route, whichever engine is in trouble."""

import asyncio
import json

from pointsman.cli.config import Engine
from tests.support.cluster import cluster_config, new_session, running_process
from tests.support.engines import running_engine
from tests.support.raw_cluster import RawCluster, raw_cluster
from tests.support.upstreams import answer_ok, get, post


async def models(cluster: RawCluster) -> list[str]:
    received = await cluster.ask(get("/v1/models"))
    assert received.status == 200
    return [model["id"] for model in json.loads(received.body)["data"]]


async def test_models_are_listed_though_the_first_engine_is_dead() -> None:
    """sglang#10827: the list was asked of the first worker, dead or not."""
    async with raw_cluster(answer_ok, answer_ok) as cluster:
        await cluster.engines[0].stop()
        assert await models(cluster) == ["m"]
        for _ in range(8):
            assert (await cluster.ask(post())).status == 200
        assert await models(cluster) == ["m"]


async def test_a_gateway_that_starts_again_finds_every_model_and_says_when() -> None:
    """dynamo#4904: after a restart 0 to 2 of the models were known, and /health listed all."""
    names = ("alpha", "beta", "gamma")
    async with (
        running_engine(model="alpha") as one,
        running_engine(model="beta") as two,
        running_engine(model="gamma", loras=("delta",)) as three,
        new_session() as session,
    ):
        entries = [Engine(url=engine.url) for engine in (one, two, three)]
        for _ in range(2):
            async with running_process(cluster_config(entries)) as process:
                await process.fleet.until_described()
                api = f"http://127.0.0.1:{process.port}"
                async with session.get(f"{api}/ready") as reply:
                    assert reply.status == 200
                async with session.get(f"{api}/v1/models") as reply:
                    listed = [model["id"] for model in (await reply.json())["data"]]
                assert sorted(listed) == sorted((*names, "delta"))
                for name in listed:
                    body = {"model": name, "prompt": "x", "max_tokens": 1}
                    async with session.post(f"{api}/v1/completions", json=body) as reply:
                        assert reply.status == 200, name


async def test_readiness_and_models_agree_with_what_is_served() -> None:
    """Listed, ready and served are one thing: with the last engine all of them end."""
    async with raw_cluster(answer_ok) as cluster:
        await cluster.engines[0].stop()
        async with asyncio.timeout(20):
            while (await cluster.ask(get("/ready"))).status == 200:
                await cluster.ask(post())
        refused = await cluster.ask(post())
        assert (refused.status, refused.header("x-pointsman-reason")) == (503, "no_node")
        assert (await cluster.ask(get("/health"))).status == 200, "the process lives"
