"""Nothing that a client may make up becomes a label of a metric."""

import re

from tests.support.cluster import Cluster, running_cluster

CLIENTS = 200


async def series(cluster: Cluster) -> set[str]:
    """Every series without its value; buckets and nodes included."""
    async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def ask_as(cluster: Cluster, number: int) -> None:
    headers = {
        "x-pointsman-tenant": f"tenant-{number}",
        "x-pointsman-session": f"session-{number}",
        "x-request-id": f"request-{number}",
        "user-agent": f"agent-{number}",
        "authorization": f"Bearer key-{number}",
    }
    body = {"model": "sim", "prompt": "x", "max_tokens": 1, "user": f"user-{number}"}
    answer = await cluster.post("/v1/completions", body, headers)
    assert answer.status == 200
    assert (await cluster.post(f"/path-{number}", body, headers)).status == 404


async def test_what_a_client_makes_up_adds_no_series() -> None:
    """llm-d-batch-gateway#202: each tenant was a label."""
    async with running_cluster(1) as cluster:
        await ask_as(cluster, 0)
        before = await series(cluster)
        for number in range(1, CLIENTS):
            await ask_as(cluster, number)
        after = await series(cluster)
    assert after - before == set()
    assert not [
        one for one in after if re.search(r"(tenant|session|request|user|key|path)-\d", one)
    ]
