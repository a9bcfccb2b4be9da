"""Engines that are slow, hang, fail every request or flap, while their /health may be good."""

import asyncio
from collections import Counter
from typing import Any

from pointsman.cli.config import Admin, Config, Health, Limits, Listen, Log
from tests.support.cluster import Answer, Cluster, running_cluster

QUICK = Config(
    listen=Listen(port=0, reply_headers=True),
    admin=Admin(port=0),
    limits=Limits(connections_max=1_024),
    log=Log(level="error", access="none"),
    health=Health(probe_s=0.5, probe_retry_s=0.1, open_s=0.5, open_s_max=2.0, suspect_s=2.0),
)


async def ask(cluster: Cluster, prompt: str, **fields: Any) -> Answer:
    """A completion, whatever comes of it."""
    body = {"model": "sim", "prompt": prompt, "max_tokens": 2, "stream": True, **fields}
    return await cluster.post("/v1/completions", body)


async def ask_each(cluster: Cluster, name: str, count: int, at_once: int = 8) -> list[Answer]:
    """Different prompts, `at_once` of them at a time."""
    answers: list[Answer] = []
    for start in range(0, count, at_once):
        numbers = range(start, min(start + at_once, count))
        answers += await asyncio.gather(*(ask(cluster, f"{name} {n}") for n in numbers))
    return answers


async def node_of(cluster: Cluster, name: str) -> Any:
    return next(node for node in (await cluster.state())["nodes"] if node["name"] == name)


async def until(cluster: Cluster, name: str, *healths: str, asking: bool = False) -> Any:
    """Until the node is in one of these states; meanwhile requests may come."""
    async with asyncio.timeout(30):
        while (node := await node_of(cluster, name))["health"] not in healths:
            if asking:
                await ask_each(cluster, f"until {healths}", 8)
            await asyncio.sleep(0.05)
    return node


async def test_an_engine_that_fails_every_request_is_out_though_its_health_is_good() -> None:
    async with running_cluster(3, config=QUICK, policy="round_robin") as cluster:
        bad = cluster.engines[0]
        await cluster.simulate(bad, status=500)
        answers = await ask_each(cluster, "broken", 24, at_once=3)
        assert {answer.status for answer in answers} == {200}, "each is answered by another"
        node = await until(cluster, "engine-1", "open", asking=True)
        assert (node["health_cause"], node["weight"]) == ("errors", 0.0)
        assert node["health_detail"] == "requests fail: it answers with an error of its own (5xx)"
        answers = await ask_each(cluster, "mended", 8)
        assert "engine-1" not in {answer.node for answer in answers}
        await cluster.simulate(bad, reset=True)
        await until(cluster, "engine-1", "warming", "ready", asking=True)
        page = await (await cluster.session.get(f"{cluster.admin}/metrics")).text()
        assert 'pointsman_node_turns_total{cause="errors",state="open"}' in page
        assert 'pointsman_node_weight{node="engine-1"}' in page


async def test_an_engine_that_hangs_is_seen_and_its_requests_go_elsewhere() -> None:
    async with running_cluster(3, config=QUICK, speed=1.0) as cluster:
        await ask_each(cluster, "learn", 90, at_once=6)
        await cluster.simulate(cluster.engines[0], hang=True)
        asking = asyncio.create_task(ask_each(cluster, "while it hangs", 120, at_once=6))
        node = await until(cluster, "engine-1", "suspect", "half_open", "open", asking=True)
        assert node["health_cause"] in ("overdue", "queue_growth", "trial")
        async with asyncio.timeout(40):
            answers = await asking
        assert {answer.status for answer in answers} == {200}
        await cluster.simulate(cluster.engines[0], reset=True)


async def test_an_engine_that_becomes_slow_is_suspected_and_its_peers_are_not() -> None:
    """Answers of 40 ms: what a busy machine adds to them is not three times that."""
    async with running_cluster(3, config=QUICK, policy="round_robin", speed=0.2) as cluster:
        await ask_each(cluster, "learn", 90, at_once=3)
        await cluster.simulate(cluster.engines[1], slow=20)
        node = await until(cluster, "engine-2", "suspect", asking=True)
        assert node["health_cause"] == "slow"
        assert "times as long as foreseen" in node["health_detail"]
        for name in ("engine-1", "engine-3"):
            assert (await node_of(cluster, name))["health"] == "ready"
        await cluster.simulate(cluster.engines[1], reset=True)
        await until(cluster, "engine-2", "warming", "ready", asking=True)


async def test_an_engine_that_flaps_costs_no_request_and_keeps_its_prefixes() -> None:
    """The prompt takes a tenth of a second to compute: more than two idle engines are apart."""
    async with running_cluster(2, config=QUICK, speed=2.0) as cluster:
        shared = "a shared beginning of many words, again and again " * 300
        first = await ask(cluster, shared)
        home = first.node
        for _ in range(2):
            await cluster.simulate(cluster.engine(home), health_status=503)
            await until(cluster, home, "open")
            away = await ask(cluster, f"something else {_}")
            assert (away.status, away.node != home) == (200, True)
            await cluster.simulate(cluster.engine(home), reset=True)
            await until(cluster, home, "warming", "ready")
            node = await node_of(cluster, home)
            assert node["index_blocks"] > 0
        back = [(await ask(cluster, f"{shared} {n}")).node for n in range(4)]
        assert Counter(back)[home] >= 3, back


async def test_a_poison_prompt_that_is_sent_again_and_again_takes_no_engine_out() -> None:
    async with running_cluster(3, config=QUICK) as cluster:
        for engine in cluster.engines:
            await cluster.simulate(engine, status=500)
        for _ in range(20):
            assert (await ask(cluster, "the poison")).status == 500
        assert {node["health"] for node in (await cluster.state())["nodes"]} == {"ready"}
        for engine in cluster.engines:
            await cluster.simulate(engine, reset=True)


async def test_feedback_over_the_admin_plane_is_one_more_failure() -> None:
    async with running_cluster(2, config=QUICK) as cluster:
        body = {"healthy": False, "detail": "answers gibberish"}
        for _ in range(3):
            await cluster.admin_json("POST", "/nodes/engine-1/feedback", body)
        node = await node_of(cluster, "engine-1")
        assert (node["health"], node["health_cause"]) == ("open", "feedback")
        assert node["health_detail"] == "answers gibberish"
        url = f"{cluster.admin}/pointsman/v1/nodes/nobody/feedback"
        async with cluster.session.post(url, json=body) as reply:
            assert reply.status == 404


async def test_an_engine_on_trial_is_asked_by_the_gateway_and_costs_no_client_anything() -> None:
    async with running_cluster(2, config=QUICK, policy="round_robin") as cluster:
        await cluster.simulate(cluster.engines[0], status=500)
        while (await node_of(cluster, "engine-1"))["health"] != "open":
            await ask_each(cluster, "until it is out", 4, at_once=2)
        await cluster.simulate(cluster.engines[0], reset=True)
        node = await until(cluster, "engine-1", "warming", "ready")
        assert node["health_cause"] == "recovered", "no request was sent meanwhile"
