"""Too much to do, and nodes that fail, for real: short scenarios whose bars fail when the mechanism
that keeps them is off. The full ones are behind `make bench-overload`."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from bench.overload import live_study
from pointsman.cli.config import Admin, Config, Engine, Limits, Listen, Log, Timeouts
from pointsman.cli.process import Process
from pointsman.engines.simulated import RunningEngine
from pointsman.engines.simulated.faults import FaultsPatch
from pointsman.report.replay.bars import verdict_row
from tests.support.cluster import running_process
from tests.support.engines import running_engine
from tests.support.upstreams import Client, post

FILES = sorted((Path(__file__).parent / "overload").glob("*.yaml"))

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
SECONDS = [8, pytest.param(600, marks=pytest.mark.soak)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bars_are_kept_for_real(path: Path) -> None:
    verdicts = live_study([path]).verdicts
    assert verdicts
    assert [verdict_row(verdict) for verdict in verdicts if not verdict.kept] == []


@pytest.mark.parametrize("seconds", SECONDS)
async def test_the_ledger_returns_to_the_truth(seconds: int) -> None:
    """Gateways are replaced, engines restart, answers break off, clients leave, at random: what is
    reserved is never below zero nor beyond the engine, and is nothing once nothing runs."""
    rng = Random(seconds)
    ends: Counter[str] = Counter()
    async with (
        running_engine(speed=10, kv_blocks=800, max_num_seqs=16) as one,
        running_engine(speed=10, kv_blocks=400, max_num_seqs=16) as two,
        asyncio.timeout(seconds + 60),
    ):
        engines = (one, two)
        until_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until_s:
            async with running_process(_settings(engines)) as process:
                await process.fleet.until_described()
                life_s = min(rng.uniform(1.5, 4.0), seconds / 2)
                await _trouble(process, engines, rng, ends, life_s)
                await _nothing_is_reserved(process)
            await _nothing_runs(engines)
    assert ends["200"] > 10, ends
    assert ends["left"] > 5, ends


def _settings(engines: tuple[RunningEngine, ...]) -> Config:
    return Config(
        listen=Listen(port=0),
        admin=Admin(port=0),
        limits=Limits(queue_length_max=64),
        timeouts=Timeouts(drain_s=0.2),
        log=Log(level="error", access="none"),
        engines=tuple(Engine(url=engine.url) for engine in engines),
    )


async def _trouble(
    process: Process,
    engines: tuple[RunningEngine, ...],
    rng: Random,
    ends: Counter[str],
    life_s: float,
) -> None:
    """Clients and faults for so long; then the faults are over and the clients have left."""
    try:
        async with asyncio.timeout(life_s), asyncio.TaskGroup() as tasks:
            for number in range(24):
                tasks.create_task(_client(process.port, Random(rng.random() + number), ends))
            tasks.create_task(_watch(process))
            while True:
                engine = rng.choice(engines).engine
                engine.simulate(rng.choice(FAULTS))
                await asyncio.sleep(0.1)
                engine.simulate(FaultsPatch(reset=True))
    except TimeoutError:
        pass
    for running in engines:
        running.engine.simulate(FaultsPatch(reset=True))


async def _client(port: int, rng: Random, ends: Counter[str]) -> None:
    while True:
        prompt = "shared " * rng.choice((1, 200, 1_000)) + str(rng.random())
        body = {"model": "sim", "prompt": prompt, "max_tokens": rng.choice((2, 40, 300))}
        body["stream"] = rng.random() < 0.7
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        try:
            async with asyncio.timeout(rng.choice((0.02, 0.2, 10))):
                await client.send(post(body=json.dumps(body).encode()))
                answer = await client.answer()
                ends[str(answer.status) if answer.is_whole else "cut"] += 1
        except TimeoutError:
            ends["left"] += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            ends["closed"] += 1
        finally:
            client.leave()


async def _watch(process: Process) -> None:
    scheduler = process.service.scheduler
    while True:
        scheduler.check()
        for node in scheduler.nodes(process.service.now_s()):
            assert node.inflight >= 0, node
            assert node.kv_blocks_leased >= 0, node
        await asyncio.sleep(0.02)


async def _nothing_is_reserved(process: Process) -> None:
    """All clients have gone: every lease ends, well within the reservation's own timeout."""
    scheduler = process.service.scheduler
    async with asyncio.timeout(10):
        while scheduler.in_flight or scheduler.held:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0.01)
    for node in scheduler.nodes(process.service.now_s()):
        assert node.kv_blocks_leased == node.inflight == 0, node
    scheduler.check()


async def _nothing_runs(engines: tuple[RunningEngine, ...]) -> None:
    async with asyncio.timeout(10):
        while any(running.engine.driver.requests for running in engines):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    assert all(running.engine.driver.model.pool.used == 0 for running in engines)
