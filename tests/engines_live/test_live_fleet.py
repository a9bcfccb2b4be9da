"""Engines of several kinds behind one gateway, and what clients see when one of them ends."""

import asyncio
import contextlib
import json
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.engines_live.conftest import SIMULATED
from tests.support.cluster import Answer
from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.live_engines import LiveEngine, running_simulated

DOOMED = {"x-pointsman-pool": "doomed"}
POOLS = [{"pool": "doomed"}, {"pool": "safe"}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
async def test_an_engine_that_ends_mid_stream_breaks_one_answer_and_no_other(
    mortal: LiveEngine, simulated: LiveEngine, number: signal.Signals
) -> None:
    """vLLM ends the stream itself, by an error, by `abort`, or never (then we do, for nobody
    listens); llama.cpp cuts it off. It counts as broken, and what comes after goes elsewhere."""
    async with live_cluster(mortal, simulated, engine_config=POOLS) as cluster:
        events = await stream_until(cluster, lambda: end(mortal, number))
        assert json.loads(events[0])["choices"], "the answer had begun"
        assert events[-1] == "[DONE]"
        assert tells_of_its_end(json.loads(events[-2]))
        causes = await ends(cluster)
        assert causes.pop("finished", 0) == 0, causes
        assert sum(causes.values()) == 1, causes
        await until_down(cluster)
        answer = await cluster.complete("and the others?", max_tokens=2)
        assert answer.node == "engine-2"
        refused = await cluster.post("/v1/completions", {"prompt": "x"}, DOOMED)
        assert refused.status == 503, refused


def tells_of_its_end(event: Any) -> bool:
    return "error" in event or event["choices"][0]["finish_reason"] == "abort"


async def ends(cluster: LiveCluster) -> dict[str, float]:
    """How requests have ended so far, by cause."""
    async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
        page = await reply.text()
    found = re.findall(r'^pointsman_requests_total{.*end="(\w+)".*} (\S+)$', page, re.MULTILINE)
    counts: dict[str, float] = {}
    for cause, count in found:
        counts[cause] = counts.get(cause, 0) + float(count)
    return {cause: count for cause, count in counts.items() if count}


def end(engine: LiveEngine, number: signal.Signals) -> None:
    if number is signal.SIGKILL:
        engine.kill()
    else:
        engine.signal(number)


async def stream_until(cluster: LiveCluster, then: Any) -> list[str]:
    """The events of a long stream from the doomed engine, after whose third `then` happens."""
    body = {"model": "tiny", "prompt": "on and on", "max_tokens": 900, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0}
    events: list[str] = []
    url = f"{cluster.api}/v1/completions"
    with contextlib.suppress(aiohttp.ClientPayloadError):  # what is cut off has no end
        async with cluster.session.post(url, json=body, headers=DOOMED) as reply:
            assert reply.status == 200
            async for line in reply.content:
                if line.startswith(b"data: "):
                    events.append(line[6:].decode().strip())
                    if len(events) == 3:
                        then()
    return events


async def until_down(cluster: LiveCluster) -> None:
    async with asyncio.timeout(30):
        while (await cluster.state())["nodes"][0]["health"] != "open":
            await cluster.post("/v1/completions", {"prompt": "are you there?"}, DOOMED)
            await asyncio.sleep(0.2)


async def test_three_kinds_of_engines_serve_one_model(
    vllms: Sequence[LiveEngine], llamacpp: LiveEngine, simulated: LiveEngine
) -> None:
    config: list[dict[str, Any]] = [
        {"pool": "real", "labels": {"engine": "vllm"}},
        {"pool": "real", "labels": {"engine": "llamacpp"}},
        {"pool": "made-up"},
    ]
    async with live_cluster(vllms[0], llamacpp, simulated, engine_config=config) as cluster:
        by_vllm = await ask(cluster, {"x-pointsman-labels": "engine=vllm"})
        by_llamacpp = await ask(cluster, {"x-pointsman-labels": "engine=llamacpp"})
        made_up = await ask(cluster, {"x-pointsman-pool": "made-up"})
        assert [each.node for each in (by_vllm, by_llamacpp, made_up)] == [
            "engine-1",
            "engine-2",
            "engine-3",
        ]
        assert text_of(by_vllm) == text_of(by_llamacpp) != text_of(made_up)
        real = [await ask(cluster, {"x-pointsman-pool": "real"}, n) for n in range(12)]
        assert {answer.node for answer in real} <= {"engine-1", "engine-2"}
        async with cluster.session.get(f"{cluster.api}/v1/models") as reply:
            assert [card["id"] for card in (await reply.json())["data"]] == ["tiny"]
        assert all(node["health"] == "ready" for node in (await cluster.state())["nodes"])


async def ask(cluster: LiveCluster, headers: dict[str, str], number: int = 0) -> Answer:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"bado keli monura {number}"}],
        "max_tokens": 12,
        "temperature": 0,
    }
    answer = await cluster.post("/v1/chat/completions", body, headers)
    assert answer.status == 200, answer
    return answer


def text_of(answer: Answer) -> str:
    text: str = answer.json["choices"][0]["message"]["content"]
    return text


KINDS = ("vllm", "llamacpp", "slow")
CLIENTS = 36
WINDOW_S = 3.0
ROUNDS = 2


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole"])
async def test_faster_engines_get_more(
    vllms: Sequence[LiveEngine], llamacpp: LiveEngine, tmp_path: Path, stream: bool
) -> None:
    """What each can do while all are full shows with clients of its own for each. The two real ones
    take the machine from each other, so their shares are told only, and
    tests/sim/test_sim_shares.py holds them. By turns the slow one would get twice what it can do,
    and the others would wait for it."""
    config = [{"labels": {"engine": kind}} for kind in KINDS]
    bound = [{"x-pointsman-labels": f"engine={kind}"} for kind in KINDS] * (CLIENTS // len(KINDS))
    able, got = Counter[str](), Counter[str]()
    with running_simulated(tmp_path, *SIMULATED, "--speed", "0.25") as slow:
        async with live_cluster(vllms[0], llamacpp, slow, engine_config=config) as cluster:
            for _ in range(ROUNDS):
                able += await answered(cluster, bound, stream=stream)
                got += await answered(cluster, [{}] * CLIENTS, stream=stream)
    shares = [got[f"engine-{n}"] / got.total() for n in (1, 2, 3)]
    fair = [able[f"engine-{n}"] / able.total() for n in (1, 2, 3)]
    told = [f"{k}: {s:.2f} for {f:.2f}" for k, s, f in zip(KINDS, shares, fair, strict=True)]
    print(f"{', '.join(told)}; {got.total()} answers for {able.total()}")
    assert shares[2] < 1.5 * fair[2], told
    assert got.total() > able.total() / 3, "nobody idles beside a queue"


async def answered(
    cluster: LiveCluster, clients: Sequence[dict[str, str]], *, stream: bool
) -> Counter[str]:
    """Answers by node in a window, to clients that send these headers and ask for nothing that
    is cached, each again as soon as it has its answer."""
    end_s = time.monotonic() + WINDOW_S
    nodes: Counter[str] = Counter()

    async def work(headers: dict[str, str]) -> None:
        while time.monotonic() < end_s:
            body = {"model": "tiny", "prompt": fresh_prompt(), "max_tokens": 16, "stream": stream}
            answer = await cluster.post("/v1/completions", {**body, "ignore_eos": True}, headers)
            assert answer.status == 200, answer
            if time.monotonic() < end_s:
                nodes[answer.node] += 1

    async with asyncio.TaskGroup() as group:
        for headers in clients:
            group.create_task(work(headers))
    return nodes


def fresh_prompt() -> list[int]:
    return RNG.choices(range(3, 2000), k=64)


RNG = Random(109)


async def test_llamacpp_tells_of_its_slots_and_closes_after_a_stream(llamacpp: LiveEngine) -> None:
    """What the adapters rely on, asked of the engine alone."""
    slots = json.loads(llamacpp.get("/slots"))
    assert [slot["n_ctx"] for slot in slots] == [1024] * 4
    assert json.loads(llamacpp.get("/props"))["total_slots"] == 4
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(llamacpp.url).port)
    body = b'{"prompt": "x", "max_tokens": 1, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    async with asyncio.timeout(10):
        answer = await reader.read()  # to the end of the connection
    assert b"Connection: close" not in answer
    assert answer.endswith(b"0\r\n\r\n")
    writer.close()


async def test_a_streams_connection_to_llamacpp_is_not_used_again(llamacpp: LiveEngine) -> None:
    """It closes after each stream without saying so: the next request must not find out."""
    async with live_cluster(llamacpp) as cluster:
        for _ in range(20):
            answer = await cluster.complete("x", max_tokens=1, stream=True)
            assert answer.body.rstrip().endswith(b"[DONE]")
        state = await cluster.state()
        assert state["stats"]["retried"] == 0
        assert state["nodes"][0]["health"] == "ready"
