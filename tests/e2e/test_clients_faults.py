"""Requests that no engine can serve: their sender is told, and no engine suffers for it."""

import asyncio
import json

from pointsman.core.health import Health
from tests.support.cluster import running_cluster
from tests.support.raw_cluster import RawCluster, raw_cluster
from tests.support.upstreams import OK_BODY, Served, answer_ok, post

BROKEN = b'{"error":{"message":"Internal server error","code":500}}'
TOO_LONG = b'{"error":{"message":"This model\'s maximum context length is 8 tokens","code":400}}'


async def refuse_the_long(served: Served) -> None:
    if len(served.body) > 1_000:
        await served.reply(400, TOO_LONG)
    else:
        await answer_ok(served)


async def choke_on_the_long(served: Served) -> None:
    if len(served.body) > 1_000:
        await served.reply(500, BROKEN)
    else:
        await answer_ok(served)


LONG = post(body=json.dumps({"model": "m", "prompt": "x" * 5_000}).encode())


def all_ready(cluster: RawCluster) -> bool:
    nodes = cluster.process.service.scheduler.nodes(0.0)
    return all(node.health is Health.READY for node in nodes)


async def test_bad_requests_never_count_against_an_engine() -> None:
    """sglang#25811: ten prompts that were too long took every worker out of service."""
    async with raw_cluster(refuse_the_long, refuse_the_long) as cluster:
        answers = await asyncio.gather(*(cluster.ask(LONG) for _ in range(40)))
        assert {(answer.status, answer.body) for answer in answers} == {(400, TOO_LONG)}
        assert len(cluster.posts(0)) + len(cluster.posts(1)) == 40, "asked once each"
        assert all_ready(cluster)
        goods = [await cluster.ask(post()) for _ in range(8)]
        assert {(answer.status, answer.body) for answer in goods} == {(200, OK_BODY)}
        assert min(len(cluster.posts(0)), len(cluster.posts(1))) > 4, "both are used"


async def blame_itself(served: Served) -> None:
    """As vLLM did for a while: the client's fault, told as its own."""
    if len(served.body) > 1_000:
        await served.reply(500, TOO_LONG)
    else:
        await answer_ok(served)


async def test_an_engine_that_blames_itself_for_a_long_prompt_is_not_believed() -> None:
    async with raw_cluster(blame_itself, blame_itself) as cluster:
        for count in range(1, 8):
            answer = await cluster.ask(LONG)
            assert (answer.status, answer.body) == (400, TOO_LONG), "clients repeat a 500"
            assert len(cluster.posts(0)) + len(cluster.posts(1)) == count, "asked once each"
        assert all_ready(cluster)


async def test_prompts_that_are_too_long_leave_the_simulated_engines_in_service() -> None:
    async with running_cluster(2, max_model_len=64) as cluster:
        for _ in range(20):
            body = {"model": "sim", "prompt": "word " * 500, "max_tokens": 4}
            answer = await cluster.post("/v1/completions", body)
            assert answer.status == 400
            assert "context length" in answer.body.decode()
        answers = [await cluster.complete(f"short {n}") for n in range(6)]
        assert {answer.node for answer in answers} == {"engine-1", "engine-2"}


async def test_a_poison_request_takes_no_engine_out_of_service() -> None:
    """vllm-project/router#148: a prompt that makes every engine answer 500, and a client that
    sends it again and again, as SDKs do."""
    async with raw_cluster(choke_on_the_long, choke_on_the_long, choke_on_the_long) as cluster:
        for count in range(1, 8):
            answer = await cluster.ask(LONG)
            assert (answer.status, answer.body) == (500, BROKEN)
            asked = sum(len(cluster.posts(number)) for number in range(3))
            assert asked <= 2 * count, "two engines each time, and no more"
        assert all_ready(cluster)
        for _ in range(6):
            assert (await cluster.ask(post())).status == 200
        assert all(len(cluster.posts(number)) > 1 for number in range(3)), "all are used"
