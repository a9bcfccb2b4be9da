"""Two real vLLM servers: what the index believes of them is what they hold and report."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.engines_live.conftest import QUEUED_MAX
from tests.support.cluster import Answer
from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.live_engines import LiveEngine

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
