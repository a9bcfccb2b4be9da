"""A gateway that runs for long under every kind of request keeps its memory."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import aiohttp
import pytest

from tests.support.cluster import new_session
from tests.support.engines import spawned_engine
from tests.support.processes import serving
from tests.support.upstreams import Client, post

WARM_REQUESTS = 100_000  # until every table and cache has reached its bound
REQUESTS = 200_000
SAMPLE_S = 2.0
CLIENTS = 24
BYTES_PER_REQUEST_MAX = 64.0  # fragmentation takes 30; a leaked entry with its key over 100

CONFIG = """
engines:
  - url: {engine}
log: {{access: none, decisions: 256, level: warning}}
limits: {{index_bytes_max: 4194304}}
"""


class Numbers:
    """1, 2, 3 … for all clients together; `taken` is the last one."""

    taken = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.taken += 1
            yield self.taken


async def ask(session: aiohttp.ClientSession, api: str, body: dict[str, object]) -> None:
    async with session.post(f"{api}/v1/completions", json=body) as reply:
        await reply.read()


async def leave_early(api: str, body: dict[str, object]) -> None:
    host, _, port = api.removeprefix("http://").partition(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    try:
        await client.send(post(body=json.dumps(body).encode()))
        await client.head()
    finally:
        client.leave()


async def client(session: aiohttp.ClientSession, api: str, numbers: Numbers) -> None:
    """Prompts that nobody has sent before, streams, wrong models, and sudden leaves."""
    for number in numbers:
        rng = Random(number)
        prompt = f"prompt {number} of its own " * rng.choice((1, 20, 200))
        body: dict[str, object] = {"model": "sim", "prompt": prompt, "max_tokens": 8}
        body["stream"] = number % 2 == 0
        body["user"] = f"user-{number}"
        if number % 7 == 0:
            body["model"] = f"bogus-{number}"
        if number % 5 == 0:
            await leave_early(api, body | {"max_tokens": 200})
        else:
            await ask(session, api, body)


@pytest.mark.soak
async def test_memory_does_not_grow_with_the_requests_that_were_served(tmp_path: Path) -> None:
    """litellm#12685, dynamo#10774: memory grew until it was out, in days or in hours."""
    samples: list[tuple[int, int]] = []
    numbers = Numbers()
    arguments = ("--kv-blocks", "4000", "--speed", "50", "--model", "sim")
    async with spawned_engine(*arguments) as engine:
        path = tmp_path / "pointsman.yaml"
        path.write_text(CONFIG.format(engine=engine.url))
        async with serving("serve", "-c", str(path)) as gateway, new_session() as session:
            clients = [
                asyncio.create_task(client(session, gateway.api, numbers)) for _ in range(CLIENTS)
            ]
            while numbers.taken < REQUESTS:
                await asyncio.sleep(SAMPLE_S)
                assert not any(running.done() for running in clients), clients
                if numbers.taken > WARM_REQUESTS:
                    samples.append((numbers.taken, gateway.rss_bytes()))
            for running in clients:
                running.cancel()
            await asyncio.wait(clients)
    assert slope(samples) <= BYTES_PER_REQUEST_MAX, (slope(samples), samples[:: len(samples) // 9])


def slope(points: list[tuple[int, int]]) -> float:
    """Bytes per request, by least squares."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return over / sum((x - mean_x) ** 2 for x, _ in points)
