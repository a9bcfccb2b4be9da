"""What is in flight is counted once, on the node that has it, and is zero when nothing runs."""

import asyncio
import json

from tests.support.cluster import Cluster, running_cluster
from tests.support.raw_cluster import RawCluster, raw_cluster
from tests.support.upstreams import STREAM, Client, Served, answer_ok, post

SLOT_S_MAX = 2.0


def in_flight(cluster: RawCluster) -> list[int]:
    return [node.inflight for node in cluster.process.service.scheduler.nodes(0.0)]


async def stream_and_leave(cluster: Cluster) -> None:
    """Ask for a long stream, read the start of it, and go."""
    client = Client(*await asyncio.open_connection("127.0.0.1", cluster.process.port))
    body = {"model": "sim", "prompt": "x", "max_tokens": 2_000, "stream": True}
    await client.send(post(body=json.dumps(body).encode()))
    for _ in range(2):
        await client.reader.readuntil(b"data: ")
    client.leave()


async def test_the_only_slot_is_free_again_when_its_client_has_left() -> None:
    """litellm#27955: each aborted stream took a slot for ever, until every call was a 429."""
    one_at_a_time = ({"concurrency_max": 1},)
    async with running_cluster(1, engine_config=one_at_a_time, speed=1.0) as cluster:
        for _ in range(3):
            await stream_and_leave(cluster)
            async with asyncio.timeout(SLOT_S_MAX):
                await cluster.complete("y", max_tokens=1)


async def test_a_retried_request_counts_on_the_node_that_has_it_and_never_below_zero() -> None:
    """vllm-project/router#145: the clean-up of a retry took one off twice."""
    seen: list[list[int]] = []

    async def broken(served: Served) -> None:
        seen.append(in_flight(cluster))
        await served.reply(500, b'{"error":{"message":"boom"}}')

    async def good(served: Served) -> None:
        seen.append(in_flight(cluster))
        await answer_ok(served)

    async with raw_cluster(broken, good, policy="round_robin") as cluster:
        for _ in range(6):
            assert (await cluster.ask(post())).status == 200
        await cluster.at_rest()
        assert in_flight(cluster) == [0, 0]
    assert [1, 0] in seen, "the first attempt"
    assert all(sum(counts) == 1 and min(counts) == 0 for counts in seen), seen


async def test_counts_return_to_zero_however_an_answer_ends() -> None:
    """sglang#8972, vllm#18784: what ended without `[DONE]`, or before a byte, stayed counted."""
    turn = 0

    async def end_otherwise_each_time(served: Served) -> None:
        nonlocal turn
        turn += 1
        if turn % 5 == 0:
            served.writer.transport.abort()  # before a byte
            return
        await served.begin_stream()
        await served.chunk(b'data: {"choices":[]}\n\n')
        match turn % 5:
            case 1:
                await served.end_stream()  # without [DONE]
            case 2:
                served.writer.close()  # without its last chunk
            case 3:
                await served.chunk(b'data: {"error":{"message":"boom","code":500}}\n\n')
                await served.end_stream()
            case _:
                await served.chunk(b"data: [DONE]\n\n")
                await served.end_stream()

    async with raw_cluster(end_otherwise_each_time) as cluster:
        for _ in range(20):
            await cluster.ask(post(body=STREAM))
        await cluster.at_rest()
        assert in_flight(cluster) == [0]


async def test_many_prompts_on_few_connections_are_each_answered_in_full() -> None:
    """production-stack#612: the first ones were served, the rest of them 400."""

    async def echo(served: Served) -> None:
        prompt = json.loads(served.body)["prompt"]
        if len(prompt) % 2:
            await served.reply(200, json.dumps({"text": prompt}).encode())
            return
        await served.begin_stream()
        await served.chunk(b"data: " + prompt.encode() + b"\n\n")
        await served.end_stream()

    async def ask(cluster: RawCluster, numbers: range) -> None:
        client = await cluster.connect()
        for number in numbers:
            prompt = f"prompt {number} " + "x" * (37 * number)
            await client.send(post(body=json.dumps({"model": "m", "prompt": prompt}).encode()))
            answer = await client.answer()
            assert (answer.status, answer.is_whole) == (200, True)
            assert prompt.encode() in answer.body
        client.leave()

    async with raw_cluster(echo, echo) as cluster:
        await asyncio.gather(*(ask(cluster, range(start, 100, 4)) for start in range(4)))
