"""Two real vLLM servers: what the index believes of them is what they hold and report."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pointsman.core.cluster import Node
from pointsman.core.residency import Residency
from tests.engines_live.conftest import QUEUED_MAX
from tests.support.cluster import Answer
from tests.support.event_replay import digest, replayed
from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.live_engines import LiveEngine, VllmServers, free_ports

CONVERSATIONS = 8
TURNS = 6
TURN_TOKENS = 60
BLOCK_TOKENS = 32


# --- conversations ------------------------------------------------------------------------


async def test_conversations_stay_with_their_holder_and_hits_are_foretold(
    vllms: Sequence[LiveEngine],
) -> None:
    """8 conversations of 6 turns, as token ids: each turn is the last answer and a question."""
    rng = Random(100)
    async with live_cluster(*vllms) as cluster:
        prompts: list[list[int]] = [[] for _ in range(CONVERSATIONS)]
        nodes: list[list[str]] = [[] for _ in range(CONVERSATIONS)]
        pairs = []
        for _ in range(TURNS):
            for prompt, served_by in zip(prompts, nodes, strict=True):
                prompt.extend(rng.choices(range(3, 2000), k=TURN_TOKENS))
                answer = await cluster.complete(prompt, max_tokens=8, return_token_ids=True)
                await cluster.events_are_in()
                pairs.append((await cluster.predicted_tokens(answer), answer.cached_tokens))
                prompt.extend(answer.json["choices"][0]["token_ids"])
                served_by.append(answer.node)
        assert len({each[0] for each in nodes}) == 2, "both engines have conversations"
        assert all(len(set(each)) == 1 for each in nodes), nodes
        right = sum(predicted == reported for predicted, reported in pairs)
        assert right / len(pairs) >= 0.99, pairs
        assert sum(reported for _, reported in pairs) > 4_000, "the conversations must hit"
        for node in (await cluster.state())["nodes"]:
            assert node["cached_tokens_predicted"] == node["cached_tokens_reported"] > 0


@pytest.mark.parametrize("tokenizer", ["folder", "engine"])
async def test_chats_are_foretold_by_their_template(
    vllms: Sequence[LiveEngine], vllm_config: Any, tokenizer: str
) -> None:
    rng = Random(tokenizer)
    async with live_cluster(*vllms, config=vllm_config(tokenizer)) as cluster:
        messages: list[list[dict[str, str]]] = [[] for _ in range(4)]
        pairs = []
        for _ in range(4):
            for history in messages:
                words = " ".join(rng.choices(("bado", "keli", "monura", "seti"), k=20))
                history.append({"role": "user", "content": words})
                body = {"model": "tiny", "messages": history, "max_tokens": 8, "temperature": 0}
                answer = await cluster.post("/v1/chat/completions", body)
                assert answer.status == 200, answer
                await cluster.events_are_in()
                pairs.append((await cluster.predicted_tokens(answer), answer.cached_tokens))
                history.append({"role": "assistant", "content": "bado keli"})
        assert all(predicted == reported for predicted, reported in pairs), pairs
        assert sum(reported for _, reported in pairs) > 600


async def test_a_chat_template_that_is_not_the_engines_is_found_out(
    vllms: Sequence[LiveEngine], vllm_config: Any, model: Path, tmp_path: Path
) -> None:
    """Its prompts are other ids, so that events never foretell a hit; the engine reports them."""
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = "Conversation: " + settings["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    shutil.copy(model / "tokenizer.json", tmp_path)
    async with live_cluster(vllms[0], config=vllm_config(str(tmp_path))) as cluster:
        for number in range(60):
            await cluster.chat("bado keli monura seti " * 24, f"{number}")
        [node] = (await cluster.state())["nodes"]
        assert node["index_trust"] == "distrusted", node
        assert "chat template" in node["index_doubt"]
        answer = await cluster.chat("bado keli monura seti " * 24, "what now?")
        assert await cluster.predicted_tokens(answer) > 0, "history knows better"


async def test_a_salt_keeps_prompts_apart(vllms: Sequence[LiveEngine]) -> None:
    prompt = Random(101).choices(range(3, 2000), k=200)
    async with live_cluster(vllms[0]) as cluster:
        for salt, expected in (("a", 0), ("b", 0), ("a", 192), ("b", 192), (None, 0)):
            fields = {} if salt is None else {"cache_salt": salt}
            answer = await cluster.complete(prompt, **fields)
            predicted = await cluster.predicted_tokens(answer)
            assert predicted == answer.cached_tokens == expected, salt
            await cluster.events_are_in()


# --- the index ----------------------------------------------------------------------------


async def test_the_index_is_what_the_engines_hold(
    vllms: Sequence[LiveEngine], launcher: VllmServers
) -> None:
    """400 requests over far more prompts than fit; one engine dies among them and returns."""
    ports, [port] = free_ports(2), free_ports(1)
    mortal = launcher.start(port=port, events=ports)
    mortal.until_healthy()
    async with live_cluster(vllms[0], mortal) as cluster:
        await send_many(cluster, requests=200, seed=102)
        await expect_equal(cluster)
        mortal.kill()
        await asyncio.sleep(0.5)
        reborn = launcher.start(port=port, events=ports)
        await asyncio.to_thread(reborn.until_healthy)
        await restart_is_seen(cluster, "engine-2")
        await send_many(cluster, requests=200, seed=103)
        await expect_equal(cluster, evicted=True)
    reborn.kill()


async def test_a_reset_cache_is_known_to_be_empty(vllms: Sequence[LiveEngine]) -> None:
    """vLLM tells of a reset with its next step only."""
    prompt = Random(104).choices(range(3, 2000), k=200)
    async with live_cluster(vllms[1]) as cluster:
        await cluster.complete(prompt)
        async with cluster.session.post(f"{vllms[1].url}/reset_prefix_cache") as reply:
            assert reply.status == 200
        await cluster.complete([5, 6, 7], max_tokens=1)
        await cluster.events_are_in()
        await expect_equal(cluster)
        answer = await cluster.complete(prompt)
        assert await cluster.predicted_tokens(answer) == answer.cached_tokens == 0


async def send_many(cluster: LiveCluster, *, requests: int, seed: int) -> None:
    """Prefixes of 30 texts, four at a time: 18,000 tokens, twice what both hold."""
    rng = Random(seed)
    families = [rng.choices(range(3, 2000), k=600) for _ in range(30)]
    prompts = [rng.choice(families)[: rng.choice((70, 150, 333, 600))] for _ in range(requests)]

    async def work() -> None:
        while prompts:
            await cluster.complete(prompts.pop(), max_tokens=3)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(work())


async def restart_is_seen(cluster: LiveCluster, name: str) -> None:
    async with asyncio.timeout(30):
        while not await is_back(cluster, name):  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0.1)


async def is_back(cluster: LiveCluster, name: str) -> bool:
    [node] = [n for n in (await cluster.state())["nodes"] if n["name"] == name]
    return bool(node["restarts"] and node["health"] == "ready" and node["index_trust"] == "exact")


async def expect_equal(cluster: LiveCluster, *, evicted: bool = False) -> None:
    """The index holds of each engine what its own replayed events come to, block for block."""
    await cluster.events_are_in()
    residency: Residency = cluster.scheduler._residency
    for node, shown in zip(nodes_of(cluster), (await cluster.state())["nodes"], strict=True):
        assert shown["index_trust"] == "exact"
        async with cluster.session.get(f"{shown['url']}/kv_event_sources") as reply:
            replay = (await reply.json())["0"]["replay_endpoint"]
        held = await asyncio.to_thread(replayed, replay.replace("*", "127.0.0.1"))
        expected = held.hashes("tiny", BLOCK_TOKENS)
        assert residency.blocks(node) == len(expected), shown["name"]
        assert residency.digest(node) == digest(expected), shown["name"]
        assert held.removals > 100 or not evicted


def nodes_of(cluster: LiveCluster) -> list[Node]:
    return list(cluster.scheduler._cluster.nodes)


# --- trouble ------------------------------------------------------------------------------


async def test_a_full_engine_is_busy_and_not_broken(vllms: Sequence[LiveEngine]) -> None:
    """vLLM's queue limit answers 503; another engine may have room, and neither is to blame."""
    async with live_cluster(*vllms) as cluster:
        answers = await burst(cluster, 4 * QUEUED_MAX)
        statuses = [answer.status for answer in answers]
        assert statuses.count(200) >= 2 * QUEUED_MAX
        for answer in answers:
            if answer.status != 200:
                assert answer.status in (429, 503), answer
                assert int(answer.headers["retry-after"]) >= 1
        for node in (await cluster.state())["nodes"]:
            assert (node["health"], node["health_detail"]) == ("ready", "")


async def test_a_burst_waits_in_front_of_engines_of_known_width(
    vllms: Sequence[LiveEngine],
) -> None:
    widths = [{"concurrency_max": QUEUED_MAX}] * 2
    async with live_cluster(*vllms, engine_config=widths) as cluster:
        answers = await burst(cluster, 4 * QUEUED_MAX)
        assert [answer.status for answer in answers] == [200] * (4 * QUEUED_MAX)


async def burst(cluster: LiveCluster, count: int) -> list[Answer]:
    rng = Random(105)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                cluster.post(
                    "/v1/completions",
                    {
                        "model": "tiny",
                        "prompt": rng.choices(range(3, 2000), k=40),
                        "max_tokens": 16,
                        "ignore_eos": True,
                    },
                )
            )
            for _ in range(count)
        ]
    return [task.result() for task in tasks]
