"""Thousands of slow streams through one gateway process."""

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import new_session
from tests.support.drip_engine import CHUNK, DONE, drip_engine, finish, stats
from tests.support.processes import Serving, serving
from tests.support.upstreams import Client, post
from tests.support.waiting import eventually

STREAMS = 2_000
ENGINES = 2
DESCRIPTORS_MIN = 4 * STREAMS
MEMORY_PER_STREAM_MAX = 64 * 1024
ABORT_S_MAX = 2.0


@pytest.fixture(autouse=True)
def _descriptors() -> Iterator[None]:
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_MIN:
        pytest.skip(f"needs {DESCRIPTORS_MIN} file descriptors, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Rig:
    """A gateway process before dripping engines."""

    def __init__(self, gateway: Serving, engines: list[str], session: Any) -> None:
        self.gateway = gateway
        self.engines = engines
        self._session = session

    async def open_streams(self) -> list[Client]:
        """As many clients, each with its request sent."""
        host, _, port = self.gateway.api.removeprefix("http://").partition(":")
        body = b'{"model":"m","prompt":"slow","stream":true}'
        clients = []
        for _ in range(STREAMS):
            client = Client(*await asyncio.open_connection(host, int(port)))
            await client.send(post(body=body))
            clients.append(client)
        return clients

    async def state(self) -> Any:
        async with self._session.get(f"{self.gateway.admin}/pointsman/v1/state") as reply:
            return await reply.json()

    async def is_ready(self) -> bool:
        return bool((await self.state())["ready"])

    async def finish(self) -> None:
        for url in self.engines:
            await finish(self._session, url)

    async def engine_counts(self, name: str) -> int:
        return sum([(await stats(self._session, url))[name] for url in self.engines])

    async def leftovers(self) -> dict[str, int]:
        """Every count that is not 0 although nothing should run."""
        state = await self.state()
        totals, gateway, nodes = state["totals"], state["gateway"], state["nodes"]
        counts = {
            "in flight": totals["in_flight"],
            "held": totals["held"],
            "unsettled": totals["unsettled"],
            "exchanges": gateway["exchanges"],
            "clients": gateway["clients"],
            "bodies": gateway["bodies_bytes"],
            "connections": gateway["engine_connections"] - gateway["engine_connections_idle"],
            "node inflight": sum(node["inflight"] for node in nodes),
            "leased blocks": sum(node["kv_blocks_leased"] for node in nodes),
            "failures": sum(state["failures"].values()),
            "engine streams": await self.engine_counts("open"),
        }
        return {name: count for name, count in counts.items() if count}

    async def until_empty(self, within_s: float) -> float:
        """Seconds until nothing is left over."""
        begun_s = time.monotonic()
        while left := await self.leftovers():
            assert time.monotonic() - begun_s < within_s, left
            await asyncio.sleep(0.05)
        return time.monotonic() - begun_s


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(drip_engine()) for _ in range(ENGINES)]
        entries = "\n".join(f"  - {{url: '{u}', concurrency_max: {STREAMS}}}" for u in engines)
        config = tmp_path / "pointsman.yaml"
        config.write_text(f"log: {{access: none}}\nengines:\n{entries}\n")
        gateway = await stack.enter_async_context(serving("serve", "-c", str(config)))
        session = await stack.enter_async_context(new_session())
        rig = Rig(gateway, engines, session)
        await eventually(rig.is_ready)
        yield rig


async def test_thousands_of_slow_streams_all_arrive_whole(rig: Rig) -> None:
    before = rig.gateway.rss_bytes()
    clients = await rig.open_streams()
    answers = [asyncio.create_task(client.answer()) for client in clients]
    await all_flow(rig)
    per_stream = (rig.gateway.rss_bytes() - before) / STREAMS
    spread = [node["inflight"] for node in (await rig.state())["nodes"]]
    await rig.finish()
    received = await asyncio.gather(*answers)
    for client in clients:
        client.leave()
    broken = [answer for answer in received if not answer.is_whole or answer.status != 200]
    assert not broken, (len(broken), broken[0].status, broken[0].body)
    assert all(is_intact(answer.body) for answer in received)
    print(f"{STREAMS} streams, {per_stream / 1024:.1f} KiB each, on the engines: {spread}")
    assert per_stream < MEMORY_PER_STREAM_MAX
    assert min(spread) > STREAMS / ENGINES * 0.8
    await rig.until_empty(within_s=10)
    assert await rig.engine_counts("finished") == STREAMS


def is_intact(body: bytes) -> bool:
    count = body.count(b"drip")
    return count > 0 and body == b"".join(CHUNK % number for number in range(count)) + DONE


async def all_flow(rig: Rig) -> None:
    async def flow() -> bool:
        return await rig.engine_counts("open") == STREAMS

    await eventually(flow)


async def test_when_all_clients_leave_at_once_nothing_is_left(rig: Rig) -> None:
    clients = await rig.open_streams()
    for client in clients:
        await client.head()
    await all_flow(rig)
    assert (await rig.state())["totals"]["in_flight"] == STREAMS
    for client in clients:
        client.leave()
    took_s = await rig.until_empty(within_s=10)
    print(f"{STREAMS} streams left, the engines knew after {took_s:.2f} s")
    assert await rig.engine_counts("left") == STREAMS
    assert took_s < 2 * ABORT_S_MAX, "2 s on a machine of its own"
