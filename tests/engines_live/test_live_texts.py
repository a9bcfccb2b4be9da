"""What is lost where nothing is known but texts: no tokenizer, no KV events."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from pointsman.gateway.dry_run import would_ask
from tests.support.cluster import Answer
from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.live_engines import LiveEngine
from tests.support.text_twin import TextTwin

CONVERSATIONS = 8
TURNS = 6
TURN_WORDS = 40
BLOCK_TOKENS = 32
SHORT_TOKENS_MAX = 160
"""A hit by text ends before the last block of 512 bytes, about 128 tokens, that is not full. How
many tokens its bytes are is learned, and may be a little off: by less than a block."""


class Turn(msgspec.Struct, frozen=True):
    """One request: where it went by token ids and would have gone by its text, and the hit that
    either foretold on the node that served it, in tokens more than the engine reported."""

    by_ids: str
    by_text: str | None
    error_by_ids: int
    error_by_text: int


async def test_texts_lead_where_token_ids_do(vllms: Sequence[LiveEngine], vllm_config: Any) -> None:
    """8 conversations of 6 turns, placed by ids and events; a twin that knows texts only is
    asked about each before."""
    async with live_cluster(*vllms, config=vllm_config("folder")) as cluster:
        turns = await converse(cluster)
    assert len({turn.by_ids for turn in turns}) == 2, "both engines have conversations"
    equal = sum(turn.by_ids == turn.by_text for turn in turns)
    print(f"equal decisions: {equal} of {len(turns)}")
    print(f"hits by text, tokens off: {histogram([turn.error_by_text for turn in turns])}")
    assert equal / len(turns) >= 0.95, turns
    assert all(turn.error_by_ids == 0 for turn in turns), turns
    near = [-SHORT_TOKENS_MAX <= turn.error_by_text <= BLOCK_TOKENS for turn in turns]
    assert sum(near) / len(near) >= 0.95, sorted(turn.error_by_text for turn in turns)


async def converse(cluster: LiveCluster) -> list[Turn]:
    rng = Random(108)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(400)]
    state = await cluster.state()
    facts = {name: state["nodes"][0]["facts"][name] for name in ("block_tokens", "kv_blocks")}
    twin = TextTwin([node["name"] for node in state["nodes"]], "tiny", **facts)
    histories: list[list[dict[str, str]]] = [[] for _ in range(CONVERSATIONS)]
    turns = []
    for _ in range(TURNS):
        for history in histories:
            question = " ".join(rng.choices(words, k=TURN_WORDS))
            history.append({"role": "user", "content": question})
            turn, said = await ask(cluster, twin, history)
            turns.append(turn)
            history.append({"role": "assistant", "content": said})
    return turns


async def ask(
    cluster: LiveCluster, twin: TextTwin, history: list[dict[str, str]]
) -> tuple[Turn, str]:
    body = {"model": "tiny", "messages": history, "max_tokens": 8, "temperature": 0}
    request = await would_ask("/v1/chat/completions", {}, json.dumps(body).encode())
    assert request.prompt.token_count is None
    believed = twin.decide(request)
    started_s = time.monotonic()
    answer = await cluster.post("/v1/chat/completions", body)
    assert answer.status == 200, answer
    twin.follow(request, answer, time.monotonic() - started_s)
    hits = {str(row.node): row.hit_tokens for row in believed.candidates}
    turn = Turn(
        by_ids=answer.node,
        by_text=believed.node,
        error_by_ids=await cluster.predicted_tokens(answer) - answer.cached_tokens,
        error_by_text=hits[answer.node] - answer.cached_tokens,
    )
    await cluster.events_are_in()
    return turn, text_of(answer)


def text_of(answer: Answer) -> str:
    text: str = answer.json["choices"][0]["message"]["content"]
    return text


SYLLABLES = ("ba", "do", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo")


def histogram(errors: Sequence[int]) -> str:
    """`tokens: how often`, in steps of the engine's block."""
    steps = Counter(error // BLOCK_TOKENS * BLOCK_TOKENS for error in errors)
    return ", ".join(f"{step:+d}: {count}" for step, count in sorted(steps.items()))
