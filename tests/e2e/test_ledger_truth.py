"""The ledger against a scheduler's worst day: gateways are killed, their messages are lost, engines
restart, answers break off and clients leave, at random. What is reserved is never below zero, and
returns to what is true within the reservation's time."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest

from pointsman.cli.config import Admin, Config, Engine, Health, Limits, Listen, Log, Timeouts
from pointsman.cli.process import Process
from pointsman.core.rules import RetryRules
from pointsman.engines.simulated import RunningEngine
from pointsman.engines.simulated.faults import FaultsPatch
from pointsman.gateway import Gateway, GatewayOptions
from tests.support.cluster import running_process
from tests.support.engines import running_engine
from tests.support.lossy_link import LossyLink
from tests.support.upstreams import Client, post
from tests.support.waiting import eventually

FAULTS = (
    FaultsPatch(cut_at_token=0, count=2),
    FaultsPatch(cut_at_token=3, count=2, cut_reset=True),
    FaultsPatch(error_at_token=2, count=2),
    FaultsPatch(status=500, count=2),
    FaultsPatch(status=503, count=2),
    FaultsPatch(hang=True),
    FaultsPatch(slow=8),
    FaultsPatch(restart=True),
)
LOSS = 0.03
RESERVATION_S = 3.0
REST_S = 12.0
"""The reservation's time, a few reports, and a busy machine."""

CALM_S = 20.0
"""Between two looks at whether everything has come back."""

OPTIONS = GatewayOptions(retries=RetryRules(), sweep_s=0.05)


@pytest.mark.parametrize("seconds", [8, pytest.param(600, marks=pytest.mark.soak)])
async def test_the_ledger_returns_to_the_truth(seconds: int) -> None:
    day = Day(Random(seconds))
    async with (
        running_engine(speed=10, kv_blocks=800, max_num_seqs=16) as one,
        running_engine(speed=10, kv_blocks=400, max_num_seqs=16) as two,
        running_process(_settings((one, two))) as process,
        asyncio.timeout(2 * seconds + 60),
    ):
        await process.fleet.until_described()
        until_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until_s:
            await day.trouble(process, (one, two), min(CALM_S, seconds / 2))
            await _nothing_runs((one, two))
            await _nothing_is_reserved(process)
        stats = process.service.scheduler.stats
    print(f"{day.ends}, {day.killed} gateways killed, {day.lost} messages lost, {stats}")
    assert day.ends["200"] > 10, day.ends
    assert day.ends["left"] > 5, day.ends
    assert day.killed > 1
    assert day.lost > 5
    assert stats.compensated > 0


def _settings(engines: Sequence[RunningEngine]) -> Config:
    return Config(
        listen=Listen(port=0),
        admin=Admin(port=0),
        limits=Limits(queue_length_max=64),
        timeouts=Timeouts(drain_s=0.2, queue_s=5.0, reservation_s=RESERVATION_S),
        health=Health(scrape_idle_s=0.5),
        log=Log(level="error", access="none"),
        engines=tuple(Engine(url=engine.url) for engine in engines),
    )


class Day:
    """What happened, counted."""

    def __init__(self, rng: Random) -> None:
        self.ends: Counter[str] = Counter()
        self.killed = 0
        self.lost = 0
        self._rng = rng
        self._ports: list[int] = []

    async def trouble(
        self, process: Process, engines: Sequence[RunningEngine], seconds: float
    ) -> None:
        """Clients and faults for so long; then the faults are over and everybody has left."""
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                for _ in range(2):
                    tasks.create_task(self._gateways(process))
                for number in range(24):
                    tasks.create_task(self._client(Random(self._rng.random() + number)))
                tasks.create_task(_watch(process))
                while True:
                    engine = self._rng.choice(engines).engine
                    engine.simulate(self._rng.choice(FAULTS))
                    await asyncio.sleep(0.1)
                    engine.simulate(FaultsPatch(reset=True))
        except TimeoutError:
            pass
        for running in engines:
            running.engine.simulate(FaultsPatch(reset=True))

    async def _gateways(self, process: Process) -> None:
        """One after the other, each until it is killed."""
        while True:
            async with self._doomed(process) as port:
                self._ports.append(port)
                try:
                    await asyncio.sleep(self._rng.uniform(1.0, 4.0))
                finally:
                    self._ports.remove(port)

    @asynccontextmanager
    async def _doomed(self, process: Process) -> AsyncIterator[int]:
        """A gateway that ends without a word to the scheduler: all that anybody sees of it is that
        its connections close, as the system closes those of a process that is killed."""
        link = LossyLink(process.service, LOSS, Random(self._rng.random()))
        gateway = Gateway(link, OPTIONS)
        await gateway.start("127.0.0.1", 0)
        try:
            yield gateway.port
        finally:
            link.broken = True
            await gateway.stop()
            self.killed += 1
            self.lost += link.lost

    async def _client(self, rng: Random) -> None:
        while True:
            prompt = "shared " * rng.choice((1, 200, 1_000)) + str(rng.random())
            body = {"model": "sim", "prompt": prompt, "max_tokens": rng.choice((2, 40, 300))}
            body["stream"] = rng.random() < 0.7
            patience_s = rng.choice((0.02, 0.2, 10))
            if self._ports:
                await self._ask(rng.choice(self._ports), json.dumps(body).encode(), patience_s)
            else:
                await asyncio.sleep(0.01)

    async def _ask(self, port: int, body: bytes, patience_s: float) -> None:
        client: Client | None = None
        try:
            async with asyncio.timeout(patience_s):
                client = Client(*await asyncio.open_connection("127.0.0.1", port))
                await client.send(post(body=body))
                answer = await client.answer()
                self.ends[str(answer.status) if answer.is_whole else "cut"] += 1
        except TimeoutError:
            self.ends["left"] += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ends["closed"] += 1
            await asyncio.sleep(0.01)
        finally:
            if client is not None:
                client.leave()


async def _watch(process: Process) -> None:
    scheduler = process.service.scheduler
    while True:
        scheduler.check()
        for node in scheduler.nodes(process.service.now_s()):
            assert node.inflight >= 0, node
            assert node.kv_blocks_leased >= 0, node
        await asyncio.sleep(0.05)


async def _nothing_is_reserved(process: Process) -> None:
    """Of what nobody will tell any more nothing is left on any node."""
    scheduler, now_s = process.service.scheduler, process.service.now_s

    def is_anything_left() -> bool:
        views = scheduler.nodes(now_s())
        booked = any(view.inflight or view.kv_blocks_leased or view.queue_s for view in views)
        return booked or scheduler.held > 0

    await eventually(lambda: not is_anything_left(), REST_S)
    scheduler.check()


async def _nothing_runs(engines: Sequence[RunningEngine]) -> None:
    await eventually(lambda: not any(running.engine.driver.requests for running in engines))
    assert all(running.engine.driver.model.pool.used == 0 for running in engines)
