"""Whatever may be cancelled is cancelled at each of its awaits, and leaves nothing behind."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
from prometheus_client.registry import CollectorRegistry

from pointsman.agent import Agent, AgentOptions, FrontOptions, LocalEngine
from pointsman.agent.report import EngineReport
from pointsman.agent.reporter import Reporter
from pointsman.agent.supervisor import Supervisor, Watcher
from pointsman.cli import children
from pointsman.cli.config import Admin, Agents, Config, Engine, Listen, Log
from pointsman.cli.process import Process
from pointsman.collectors.client import EngineClient, new_session
from pointsman.collectors.describer import Describer
from pointsman.collectors.event_socket import event_sockets
from pointsman.collectors.link import NodeLink
from pointsman.collectors.prober import Prober
from pointsman.collectors.scraper import Scraper
from pointsman.collectors.subscriber import Subscriber
from pointsman.control.agents import AgentListener, ListenerOptions
from pointsman.control.doctor import Scope, Target, examine
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName
from pointsman.engines.adapters import EngineKeys, describe
from pointsman.loadgen.client import LoadClient, parse_target
from pointsman.loadgen.runner import LoadOptions, LoadRun
from pointsman.telemetry.collector_metrics import CollectorMetrics
from pointsman.traffic.request import TrafficRequest
from pointsman.wire.control import ControlAddress
from tests.control.fake_engine import HURRIED, fake_engine, running_cluster
from tests.support import cancelling
from tests.support.cancelling import Work, cancel_at_each_wait
from tests.support.engines import running_engine

pytestmark = pytest.mark.usefixtures("hurried")

NAME = NodeName("e")


async def test_what_is_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "SETTLES_S_MAX", 0.05)
    left: list[asyncio.Task[None]] = []

    async def leaves() -> None:
        left.append(asyncio.create_task(asyncio.sleep(60)))
        await asyncio.sleep(60)

    async def ignores() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    for work, told in ((leaves, "after wait 0"), (ignores, "swallowed its cancellation")):
        with pytest.raises(AssertionError, match=told):
            await cancel_at_each_wait(work, waits_max=1)
    for task in left:
        task.cancel()


# --- loadgen ------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [None, 1])
async def test_a_run_of_load(concurrency: int | None) -> None:
    requests = [TrafficRequest(at_s=0.0, input_tokens=16, output_tokens=2) for _ in range(3)]
    async with running_engine() as engine:

        async def load() -> None:
            client = LoadClient(parse_target(engine.url))
            try:
                await client.fetch("GET", "/v1/models")
                options = LoadOptions(model="sim", concurrency=concurrency)
                await LoadRun(client, requests, options).run()
            finally:
                client.close()

        assert await cancel_at_each_wait(load, waits_max=20) > 2


# --- collectors ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Describer, Prober, Scraper, Subscriber])
async def test_a_collectors_loop(kind: type) -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        new_session(EngineKeys()) as session,
        event_sockets() as sockets,
    ):
        client = EngineClient(session, engine.url)
        link = linked(engine.url)
        if kind is not Describer:
            known = await describe(partial(client.get, timeout_s=1.0), "127.0.0.1")
            link.describe(known.facts, known.sources, known.page)

        def look() -> Work:
            return kind(link, sockets if kind is Subscriber else client).run()  # type: ignore[no-any-return]

        await cancel_at_each_wait(look, waits_max=10)


def linked(url: str) -> NodeLink:
    """An engine's link to an agent, whose wakings nobody hears."""
    report = EngineReport(
        0, NodeSpec(name=NAME, url=url), clock=time.monotonic, wake=lambda: None, delta_blocks=16
    )
    tally = CollectorMetrics(CollectorRegistry()).node(NAME)
    report.link = NodeLink(report.spec, report, tally, Random(0), cadence=HURRIED)
    report.link.join()
    return report.link


# --- agents -------------------------------------------------------------------------------


@asynccontextmanager
async def listening() -> AsyncIterator[AgentListener]:
    async with running_cluster() as cluster:
        agents = AgentListener(cluster.service, cluster.fleet, ListenerOptions())
        await agents.start()
        try:
            yield agents
        finally:
            await agents.stop()


async def test_the_reporter_of_an_agent() -> None:
    async with listening() as agents:
        options = AgentOptions(
            name="a", scheduler=ControlAddress("127.0.0.1", agents.port), heartbeat_s=0.01
        )

        async def report() -> None:
            told = linked("http://127.0.0.1:9").sink
            assert isinstance(told, EngineReport)
            wake, clock = asyncio.Event(), time.monotonic
            await Reporter(options, [told], wake=wake, clock=clock, rng=Random(0)).run()

        assert await cancel_at_each_wait(report, waits_max=12) > 5


async def test_an_agent_with_a_front() -> None:
    async with listening() as agents, fake_engine() as engine:
        options = AgentOptions(
            name="a",
            scheduler=ControlAddress("127.0.0.1", agents.port),
            engines=(
                LocalEngine(
                    url=engine.url, spec=NodeSpec(name=NAME, url=engine.url), front=FrontOptions()
                ),
            ),
        )
        assert await cancel_at_each_wait(lambda: Agent(options).run(), waits_max=10) > 2


async def test_a_supervisor() -> None:
    def supervise() -> Work:
        return Supervisor(["sleep", "60"], Watcher()).run()

    assert await cancel_at_each_wait(supervise, waits_max=4) > 2


# --- control ------------------------------------------------------------------------------


async def test_a_doctors_examination() -> None:
    async with fake_engine() as engine:
        scope = Scope(targets=(Target(name="e", url=engine.url),), run_s_max=0.5)
        assert await cancel_at_each_wait(lambda: examine(scope), waits_max=10) > 1


# --- cli ----------------------------------------------------------------------------------


async def test_simulated_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\necho engine at http://127.0.0.1:1\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setattr(children.sys, "executable", str(program))  # type: ignore[attr-defined]  # what it imports
    options = children.ChildOptions("m", "p", 1.0, None, 0)

    async def run() -> None:
        async with children.engines(2, options, lambda _: None):
            await asyncio.Event().wait()

    assert await cancel_at_each_wait(run, waits_max=12) > 3


async def test_a_whole_process(tmp_path: Path) -> None:
    async with fake_engine() as engine:
        config = Config(
            listen=Listen(port=0),
            admin=Admin(port=0),
            agents=Agents(listen=str(tmp_path / "agents.sock")),
            log=Log(access=str(tmp_path / "access.log")),
            engines=(Engine(url=engine.url),),
        )

        async def started(_: Process) -> None: ...

        try:
            assert await cancel_at_each_wait(lambda: Process(config).run(started), waits_max=20) > 3
        finally:
            gc.unfreeze()
