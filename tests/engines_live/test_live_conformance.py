"""What Pointsman relies on, of every kind of engine: the simulated one promises no more."""

import asyncio
import json
from random import Random
from typing import Any

import pytest

from tests.engines_live.conftest import CONTEXT_TOKENS, Subject
from tests.support.live_cluster import LiveCluster, live_cluster

VOCABULARY = range(3, 2000)


def tokens(count: int, seed: int) -> list[int]:
    return Random(seed).choices(VOCABULARY, k=count)


def text(words: int, seed: int) -> str:
    rng = Random(seed)
    return " ".join(
        rng.choice(("signal", "yard", "lever", "points", "train")) for _ in range(words)
    )


async def test_it_is_recognised(subject: Subject) -> None:
    async with live_cluster(subject.engine) as cluster:
        [node] = (await cluster.state())["nodes"]
        facts = node["facts"]
        assert facts["kind"] == ("llamacpp" if subject.kind == "llamacpp" else "vllm")
        assert facts["version"]
        [model] = facts["models"]
        assert (model["name"], model["context_tokens_max"]) == ("tiny", CONTEXT_TOKENS)
        if subject.hits_exactly:
            assert (facts["block_tokens"], facts["kv_blocks"]) == (32, 128)
            assert node["index_trust"] == "exact"
            assert node["events"].startswith("subscribed to tcp://127.0.0.1:")
        else:
            assert node["index_trust"] == "history"


async def test_its_load_is_read(subject: Subject) -> None:
    async with live_cluster(subject.engine) as cluster:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            work = [group.create_task(keep_busy(cluster, seed)) for seed in range(3)]
            while not (signals := await signals_of(cluster))["running"]:  # noqa: ASYNC110 - tells nobody
                await asyncio.sleep(0.05)
            for each in work:
                each.cancel()
        assert signals["waiting"] is not None
        assert signals["prefix_queries"] is not None
        assert signals["prefix_hits"] is not None


async def keep_busy(cluster: LiveCluster, seed: int) -> None:
    while True:
        await cluster.complete(tokens(40, seed), max_tokens=400, **ON)


ON = {"ignore_eos": True}


async def signals_of(cluster: LiveCluster) -> dict[str, float | None]:
    [node] = (await cluster.state())["nodes"]
    signals: dict[str, float | None] = node["signals"]
    return signals


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_it_tells_what_it_had_cached(subject: Subject, stream: bool) -> None:
    """… and that is what the index foretold, once it has seen the prompt."""
    prompt = text(100, seed=10 + stream)
    async with live_cluster(subject.engine) as cluster:
        for number in range(2):
            question = f"{prompt} {number}"
            answer = await cluster.complete(question, stream=stream, stream_options=USAGE[stream])
            await cluster.events_are_in()
        usage = last_usage(answer.body) if stream else answer.json["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert 0 < cached < usage["prompt_tokens"]
        [node] = (await cluster.state())["nodes"]
        assert node["cached_tokens_reported"] >= cached
        assert node["cached_tokens_predicted"] > 0


USAGE = {True: {"include_usage": True}, False: None}


def last_usage(body: bytes) -> Any:
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [usage for event in events[:-1] if (usage := json.loads(event).get("usage"))][-1]


async def test_token_prompts_are_foretold_exactly(subject: Subject) -> None:
    if not subject.hits_exactly:
        pytest.skip("publishes no KV events")
    family = tokens(600, seed=20)
    async with live_cluster(subject.engine) as cluster:
        for length in (100, 33, 333, 32, 64, 333, 500, 31, 500):
            answer = await cluster.complete(family[:length], max_tokens=2)
            assert await cluster.predicted_tokens(answer) == answer.cached_tokens, length
            await cluster.events_are_in()
        assert answer.cached_tokens > 400


async def test_a_prompt_that_is_too_long_is_the_clients_fault(subject: Subject) -> None:
    async with live_cluster(subject.engine) as cluster:
        for _ in range(12):
            body = {"model": "tiny", "prompt": tokens(1100, seed=30), "max_tokens": 4}
            answer = await cluster.post("/v1/completions", body)
            assert answer.status == 400, answer
            assert answer.json["error"]["message"]
        [node] = (await cluster.state())["nodes"]
        assert (node["health"], node["health_detail"]) == ("ready", "")
        assert (await cluster.complete("still there?")).status == 200


async def test_connections_are_used_as_it_likes(subject: Subject) -> None:
    """llama.cpp closes after each stream and says nothing; vLLM after 5 s of idleness."""
    async with live_cluster(subject.engine) as cluster:
        for round_number in range(12):
            stream = round_number % 2 == 0
            answer = await cluster.complete("again", max_tokens=2, stream=stream)
            assert b"error" not in answer.body
        await asyncio.sleep(5.2)
        assert (await cluster.complete("after a pause", max_tokens=2)).status == 200
        assert (await cluster.state())["stats"]["retried"] == 0


async def test_a_client_that_leaves_is_noticed(subject: Subject) -> None:
    async with live_cluster(subject.engine) as cluster:
        body = {"model": "tiny", "prompt": "go on", "max_tokens": 900, "stream": True, **ON}
        async with cluster.session.post(f"{cluster.api}/v1/completions", json=body) as reply:
            await reply.content.readany()
        await cluster.at_rest(within_s=5)


async def test_more_than_it_runs_at_once_wait_their_turn(subject: Subject) -> None:
    async with live_cluster(subject.engine) as cluster:
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(cluster.complete(tokens(50, seed), max_tokens=16))
                for seed in range(40, 60)
            ]
        assert all(task.result().json["choices"][0]["text"] is not None for task in asked)
        [node] = (await cluster.state())["nodes"]
        assert node["health"] == "ready"


async def test_the_gateway_changes_nothing(subject: Subject) -> None:
    """The same greedy text, asked directly and through the gateway."""
    async with live_cluster(subject.engine) as cluster:
        body = {"model": "tiny", "prompt": tokens(70, seed=70), "max_tokens": 12, "temperature": 0}
        async with cluster.session.post(f"{subject.engine.url}/v1/completions", json=body) as reply:
            direct = await reply.json()
        through = await cluster.post("/v1/completions", body)
        assert through.json["choices"][0]["text"] == direct["choices"][0]["text"]
