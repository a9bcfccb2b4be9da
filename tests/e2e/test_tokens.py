"""Prompts known by their token ids find what an engine's events tell of, whoever caused it."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pointsman.cli.config import Admin, Config, Limits, Listen, Log, Model
from tests.support.cluster import Cluster, running_cluster
from tests.support.tokenizers import write_folder
from tests.support.waiting import eventually

LONG = "track nine is set for the train that leaves at noon, and " * 40
BODY = {"model": "sim", "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}


def with_tokenizer(tokenizer: str) -> Config:
    return Config(
        listen=Listen(port=0, reply_headers=True),
        admin=Admin(port=0),
        limits=Limits(connections_max=1_000),
        log=Log(level="warning", access="none"),
        models=(Model("sim", tokenizer),),
    )


async def decision(cluster: Cluster, request_id: str) -> Any:
    answer = await cluster.admin_json("GET", f"/decisions/{request_id}")
    return answer["decisions"][-1]


async def metric(cluster: Cluster, name: str) -> float:
    async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def prime(url: str, body: object) -> None:
    """Have an engine compute a prompt, past the gateway."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status == 200


async def test_what_others_sent_is_found_by_the_engines_own_ids() -> None:
    async with running_cluster(2, config=with_tokenizer("engine")) as cluster:
        await prime(cluster.engines[1].url, BODY)
        await eventually(lambda: cluster.scheduler.nodes(0.0)[1].index_blocks)
        answer = await cluster.post("/v1/chat/completions", BODY)
        made = await decision(cluster, answer.id)
        assert answer.node == "engine-2"
        assert made["prompt_unit"] == "tokens"
        assert made["prompt_tokens"] == answer.prompt_tokens
        assert made["hit_tokens"] == answer.cached_tokens > 0


async def test_a_conversation_is_known_by_the_folders_ids(tmp_path: Path) -> None:
    config = with_tokenizer(str(write_folder(tmp_path)))
    async with running_cluster(2, config=config, kv_events_port=None) as cluster:
        first = await cluster.post("/v1/chat/completions", BODY)
        more = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "why?"}]
        turn = {**BODY, "messages": [*BODY["messages"], *more]}  # type: ignore[misc]  # JSON's type
        second = await cluster.post("/v1/chat/completions", turn)
        assert second.node == first.node
        made = await decision(cluster, second.id)
        assert made["prompt_unit"] == "tokens"
        assert made["hit_tokens"] > 0
        assert await metric(cluster, 'pointsman_tokenizer_tokens_total{result="remembered"}') > 0
        assert await metric(cluster, "pointsman_tokenizer_seconds_count") == 2
        assert await metric(cluster, "pointsman_tokenizer_pieces_bytes") > 0


async def test_what_is_not_exact_goes_by_its_text_and_is_counted(tmp_path: Path) -> None:
    config = with_tokenizer(str(write_folder(tmp_path)))
    async with running_cluster(1, config=config) as cluster:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        parts = [{"type": "text", "text": LONG}, image]
        body = {**BODY, "messages": [{"role": "user", "content": parts}]}
        answer = await cluster.post("/v1/chat/completions", body)
        assert answer.status == 200
        assert (await decision(cluster, answer.id))["prompt_unit"] == "bytes"
        name = 'pointsman_tokenizer_fallbacks_total{cause="media"}'
        assert await metric(cluster, name) == 1


@pytest.mark.parametrize("events", [0, None], ids=["events", "history"])
async def test_two_images_with_one_text_share_nothing(events: int | None) -> None:
    """Foretold and found alike: the picture comes first, and the words after it are the same."""
    async with running_cluster(
        1, config=with_tokenizer("engine"), kv_events_port=events
    ) as cluster:
        hits = []
        for picture in ("AAAA", "AAAA", "BBBB", "BBBB"):
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
            parts = [image, {"type": "text", "text": LONG}]
            body = {**BODY, "messages": [{"role": "user", "content": parts}]}
            answer = await cluster.post("/v1/chat/completions", body)
            made = await decision(cluster, answer.id)
            hits.append((made["hit_tokens"] > 400, answer.cached_tokens > 400))
            assert (made["hit_tokens"] == 0) == (answer.cached_tokens < 16)
        assert hits == [(False, False), (True, True)] * 2


async def test_explain_asks_as_the_gateway_does(tmp_path: Path) -> None:
    config = with_tokenizer(str(write_folder(tmp_path)))
    async with running_cluster(1, config=config) as cluster:
        explained = await cluster.admin_json("POST", "/explain", BODY)
        answer = await cluster.post("/v1/chat/completions", BODY)
        made = await decision(cluster, answer.id)
        assert explained["decision"]["prompt_unit"] == made["prompt_unit"] == "tokens"
        assert explained["decision"]["prompt_tokens"] == made["prompt_tokens"]
