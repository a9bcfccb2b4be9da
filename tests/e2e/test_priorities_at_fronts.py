"""What the gateway decides of a priority is what an agent's front goes by."""

import asyncio

import msgspec
import pytest

from pointsman.agent.front import Front, FrontOptions
from pointsman.cli.config import Engine, Key
from pointsman.gateway import key_digest
from tests.support.cluster import Cluster, cluster_config, new_session, running_process
from tests.support.engines import running_engine
from tests.support.waiting import eventually

SECRET = "pm-of-team-a"


@pytest.mark.parametrize(
    ("headers", "fields", "ceiling", "priority"),
    [
        ({"x-pointsman-priority": "high"}, {}, 100, 10),
        ({}, {"service_tier": "priority"}, 100, 10),
        ({"x-pointsman-priority": "high"}, {}, "low", -10),
        ({}, {"service_tier": "priority"}, "normal", 0),
        ({"x-vllm-priority": "-50"}, {}, 5, 5),
    ],
)
async def test_a_ceiling_holds_at_a_front(
    headers: dict[str, str], fields: dict[str, object], ceiling: int | str, priority: int
) -> None:
    digest = f"sha256:{key_digest(SECRET.encode()).hex()}"
    key = Key(name="a", hash=digest, priority_max=ceiling)  # type: ignore[arg-type]  # a name or a number
    async with (
        running_engine() as engine,
        Front(engine.url, FrontOptions(running_max=1, wait_s_max=30)).serving() as front,
        new_session() as session,
    ):
        entry = Engine(url=f"http://127.0.0.1:{front.port}", kv_events="off")
        config = msgspec.structs.replace(cluster_config([entry]), keys=(key,))
        async with running_process(config) as process:
            cluster = Cluster(process, [engine], session)
            await process.fleet.until_described()
            await cluster.simulate(engine, hang=True)

            async def ask(headers: dict[str, str], **fields: object) -> int:
                body = {"model": "sim", "prompt": "x", "max_tokens": 1, **fields}
                bearer = {"authorization": f"Bearer {SECRET}"}
                return (await cluster.post("/v1/completions", body, bearer | headers)).status

            asked = [asyncio.create_task(ask({}))]
            await eventually(lambda: front.queue.running == 1)
            asked.append(asyncio.create_task(ask(headers, **fields)))
            await eventually(lambda: front.queue.waiting == 1)
            assert [waiting for waiting, _ in front.queue._lanes] == [priority]
            await cluster.simulate(engine, reset=True)
            assert await asyncio.gather(*asked) == [200, 200]
