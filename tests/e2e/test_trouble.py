"""Everything at once: clients that leave, engines in trouble, too little memory. Nothing leaks."""

import asyncio
import json
from collections import Counter
from random import Random

import aiohttp
import pytest

from pointsman.cli.config import Limits
from tests.support.cluster import Cluster, quiet_config, running_cluster
from tests.support.upstreams import Client, post
from tests.support.waiting import eventually

FAULTS: tuple[dict[str, object], ...] = (
    {"status": 500, "count": 3},
    {"status": 429, "retry_after": 1, "count": 3},
    {"status": 503, "count": 2},
    {"cut_at_token": 0, "count": 2},
    {"cut_at_token": 5, "count": 2, "cut_reset": True},
    {"error_at_token": 3, "count": 2},
    {"slow": 5},
    {"hang": True},
    {"restart": True},
    {"reset": True},
)


async def ask_and_maybe_leave(cluster: Cluster, rng: Random) -> str:
    """One client: how it ended, in a word."""
    prompt = "shared " * rng.choice((1, 100, 800)) + str(rng.random())
    body = {"model": "sim", "prompt": prompt, "max_tokens": rng.choice((1, 20, 200))}
    if rng.random() < 0.5:
        body["stream"] = True
    client = Client(*await asyncio.open_connection("127.0.0.1", cluster.process.port))
    try:
        async with asyncio.timeout(rng.choice((0.005, 0.05, 0.3, 30))):
            await client.send(post(body=json.dumps(body).encode()))
            answer = await client.answer()
            return f"{answer.status}" if answer.is_whole else "cut"
    except TimeoutError:
        return "left"
    except (asyncio.IncompleteReadError, ConnectionError):
        return "closed"
    finally:
        client.leave()


async def trouble(cluster: Cluster, rng: Random) -> None:
    while True:
        engine = rng.choice(cluster.engines)
        await cluster.simulate(engine, **rng.choice(FAULTS))
        await asyncio.sleep(0.03)
        if rng.random() < 0.6:
            await cluster.simulate(engine, reset=True)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_nothing_is_left_after_clients_and_engines_in_trouble(seed: int) -> None:
    """`running_cluster` fails unless every count is back at 0."""
    rng = Random(seed)
    async with running_cluster(3, speed=20, kv_blocks=600, max_num_seqs=8) as cluster:
        troubling = asyncio.create_task(trouble(cluster, Random(seed)))
        ends: Counter[str] = Counter()
        for _ in range(6):
            waiting = [ask_and_maybe_leave(cluster, rng) for _ in range(60)]
            ends.update(await asyncio.gather(*waiting))
        troubling.cancel()
        for engine in cluster.engines:
            await cluster.simulate(engine, reset=True)
        await cluster.at_rest()
        last = await asyncio.gather(*(try_again(cluster) for _ in range(6)))
    assert ends["200"] > 60, ends
    assert ends["left"] > 30, ends
    assert "closed" not in ends, "every answer is an answer, or is seen to be cut"
    assert set(last) == {200}, "and the cluster serves again"


async def try_again(cluster: Cluster) -> int:
    """A client that retries while it is told to: engines were out of rotation just now."""
    async with asyncio.timeout(30):
        while True:
            body = {"model": "sim", "prompt": "at last", "max_tokens": 4}
            answer = await cluster.post("/v1/completions", body)
            if answer.status == 200:
                return answer.status
            assert answer.status in (429, 502, 503), answer
            await asyncio.sleep(0.1)


# --- too little memory --------------------------------------------------------------------


async def test_requests_wait_centrally_for_memory_and_all_are_served() -> None:
    """Prompts of 1,000 tokens on engines with room for three of them."""
    held = 0

    async with running_cluster(2, speed=10, kv_blocks=220) as cluster:
        asking = [
            asyncio.create_task(cluster.complete(f"{n:04}" * 1_000, max_tokens=32))
            for n in range(32)
        ]
        while not all(task.done() for task in asking):
            held = max(held, cluster.scheduler.held)
            await asyncio.sleep(0.005)
        answers = [task.result() for task in asking]
        preemptions = sum(e.engine.driver.model.preemptions for e in cluster.engines)
    assert {answer.status for answer in answers} == {200}
    assert held > 8, "they wait where the choice is still open"
    assert preemptions == 0, "the ledger keeps engines from taking more than they can hold"


async def test_the_urgent_are_served_before_those_that_waited_longer() -> None:
    order: list[str] = []

    async with running_cluster(1, speed=10, kv_blocks=110) as cluster:

        async def ask(name: str, priority: str) -> None:
            body = {"model": "sim", "prompt": f"{name:4}" * 1_000, "max_tokens": 32}
            answer = await cluster.post("/v1/completions", body, {"x-pointsman-priority": priority})
            assert answer.status == 200
            order.append(priority)

        async with asyncio.TaskGroup() as tasks:
            for number in range(6):
                tasks.create_task(ask(f"l{number}", "low"))
            await eventually(lambda: cluster.scheduler.held >= 4)
            for number in range(3):
                tasks.create_task(ask(f"h{number}", "high"))
    assert order.index("high") <= 2, order
    assert order[-3:] == ["low"] * 3, order


async def test_a_full_queue_is_429_with_retry_after() -> None:
    base = quiet_config(limits=Limits(queue_length_max=4))
    async with running_cluster(1, config=base, speed=10, kv_blocks=110) as cluster:
        bodies = [
            {"model": "sim", "prompt": f"{n:04}" * 1_000, "max_tokens": 32} for n in range(16)
        ]
        answers = await asyncio.gather(*(cluster.post("/v1/completions", b) for b in bodies))
    counts = Counter(answer.status for answer in answers)
    assert set(counts) == {200, 429}, counts
    for answer in answers:
        if answer.status == 429:
            assert answer.headers["x-pointsman-reason"] == "queue_full"
            assert int(answer.headers["retry-after"]) >= 1


async def test_clients_that_leave_the_queue_take_no_room() -> None:
    async with running_cluster(1, speed=5, kv_blocks=110) as cluster:
        await cluster.simulate(cluster.engines[0], hang=True)
        first = asyncio.create_task(cluster.complete("0000" * 1_000, max_tokens=64))
        impatient = aiohttp.ClientTimeout(total=0.15)
        asking = [
            cluster.session.post(
                f"{cluster.api}/v1/completions",
                json={"model": "sim", "prompt": f"{n:04}" * 1_000, "max_tokens": 64},
                timeout=impatient,
            )
            for n in range(1, 20)
        ]
        await asyncio.gather(*asking, return_exceptions=True)
        await eventually(lambda: not cluster.scheduler.held)
        assert not first.done(), "none was served in the meantime"
        await cluster.simulate(cluster.engines[0], reset=True)
        assert (await first).status == 200
