"""Wires a whole agent: a collector for each engine, and the reporter."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from urllib.parse import urlsplit

import aiohttp
from msgspec.structs import replace
from prometheus_client.registry import CollectorRegistry

from pointsman.agent.front import Front
from pointsman.agent.gpu import find_gpus
from pointsman.agent.machine import Machine
from pointsman.agent.options import AgentOptions, LocalEngine
from pointsman.agent.report import EngineReport
from pointsman.agent.reporter import Reporter
from pointsman.agent.supervisor import GaveUp, Supervisor, SupervisorOptions, Watcher
from pointsman.agent.tcp import Retransmits
from pointsman.collectors.client import EngineClient, new_session
from pointsman.collectors.event_socket import EventSockets, event_sockets
from pointsman.collectors.link import NodeLink
from pointsman.collectors.node import NodeCollector
from pointsman.engines.adapters import EngineKeys
from pointsman.telemetry.collector_metrics import CollectorMetrics

IDLE_LOOK_S = 0.2

log = logging.getLogger(__name__)


class Agent:
    """A whole agent. It runs until stopped: where an engine fails or the scheduler is away, it
    waits for it.

    `failed` says why the agent has ended by itself: a supervised engine does not stay up.
    """

    def __init__(
        self,
        options: AgentOptions,
        *,
        rng: Random | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """`prepare` runs in supervised processes before they become engines."""
        self.failed = ""
        self._options = options
        self._keys = EngineKeys({engine.url: engine.api_key for engine in options.engines})
        self._rng = rng or Random()
        self._prepare = prepare
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._running: list[Supervisor] = []
        wake = asyncio.Event()
        self.reports = [
            EngineReport(
                number,
                engine.spec,
                clock=time.monotonic,
                wake=wake.set,
                delta_blocks=options.delta_blocks,
            )
            for number, engine in enumerate(options.engines)
        ]
        self.reporter = Reporter(
            options, self.reports, wake=wake, clock=time.monotonic, rng=self._rng
        )

    @property
    def pids(self) -> list[int | None]:
        """The process ids of the supervised engines, of each the last one."""
        return [supervisor.pid for supervisor in self._running]

    def stop(self) -> None:
        """Say goodbye and end. Supervised engines finish what runs, and end first; a second call
        does not wait for that."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`, or until a supervised engine is given up. Raises OSError where a front
        cannot listen."""
        metrics = CollectorMetrics(CollectorRegistry())
        machine = Machine(find_gpus(self._options.gpus), Retransmits())
        async with (
            self._fronts(),
            new_session(self._keys) as session,
            event_sockets() as sockets,
            asyncio.TaskGroup() as tasks,
        ):
            watching = [
                tasks.create_task(self._collector(engine, report, metrics, session, sockets).run())
                for engine, report in zip(self._options.engines, self.reports, strict=True)
            ]
            watching.append(tasks.create_task(machine.watch(self.reports)))
            supervisors = self._running = self._supervisors()
            for supervisor in supervisors:
                tasks.create_task(self._keep_up(supervisor))
            reporting = tasks.create_task(self.reporter.run())
            await self._stopping.wait()
            if supervisors:
                await self._drain()
                for supervisor in supervisors:
                    await supervisor.stop()
            self.reporter.leave(gone=bool(supervisors))
            await reporting
            for task in watching:
                task.cancel()

    # --- supervised engines -------------------------------------------------------------

    def _supervisors(self) -> list[Supervisor]:
        return [
            Supervisor(
                engine.command,
                _Supervised(report),
                self._options.supervisor,
                prepare=self._prepare,
                clock=time.monotonic,
            )
            for engine, report in zip(self._options.engines, self.reports, strict=True)
            if engine.command
        ]

    async def _keep_up(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.run()
        except GaveUp as gave_up:
            log.error("%s", gave_up)
            self.failed = str(gave_up)
            self._hurrying.set()
            self._stopping.set()

    async def _drain(self) -> None:
        """Tell the scheduler that nothing new should come, and wait for what runs."""
        for report in self.reports:
            report.drain()
        try:
            async with asyncio.timeout(self._options.drain_s), asyncio.TaskGroup() as tasks:
                hurrying = tasks.create_task(self._hurrying.wait())
                idling = tasks.create_task(self._until_idle())
                await asyncio.wait((hurrying, idling), return_when=asyncio.FIRST_COMPLETED)
                hurrying.cancel()
                idling.cancel()
        except TimeoutError:
            log.warning("requests still run: the engines are ended all the same")

    async def _until_idle(self) -> None:
        """Wait until nothing runs, by a look that began after the scheduler was told."""
        await asyncio.sleep(self._options.heartbeat_s)
        while True:
            for report in self.reports:
                report.look_again()
            await asyncio.sleep(max(IDLE_LOOK_S, self._options.cadence.scrape_s))
            if all(report.is_idle for report in self.reports):
                return

    # --- parts --------------------------------------------------------------------------

    @asynccontextmanager
    async def _fronts(self) -> AsyncIterator[None]:
        """The fronts, which listen and are announced in place of their engines."""
        async with AsyncExitStack() as stack:
            for engine, report in zip(self._options.engines, self.reports, strict=True):
                if engine.front is not None:
                    front = Front(engine.url, engine.front, keys=self._keys, clock=time.monotonic)
                    report.front = await stack.enter_async_context(front.serving())
                    report.spec = replace(report.spec, url=_on_port(report.spec.url, front.port))
            yield

    def _collector(
        self,
        engine: LocalEngine,
        report: EngineReport,
        metrics: CollectorMetrics,
        session: aiohttp.ClientSession,
        sockets: EventSockets,
    ) -> NodeCollector:
        local = report.local_spec(engine.url)
        report.link = NodeLink(
            local,
            report,
            metrics.node(local.name),
            Random(self._rng.random()),
            kv_events=engine.kv_events,
            cadence=self._options.cadence,
        )
        return NodeCollector(report.link, EngineClient(session, engine.url), sockets)


class _Supervised(Watcher):
    """A supervised engine: its report tells what becomes of its process."""

    def __init__(self, report: EngineReport) -> None:
        self._report = report
        self._has_died = False

    def began(self) -> None:
        if self._has_died:
            self._report.respawned()

    def ended(self, detail: str) -> None:
        self._has_died = True
        self._report.died(detail)

    def is_well(self, since_s: float, options: SupervisorOptions) -> bool:
        lived_s = self._report.now_s() - since_s
        if not self._report.is_described:
            return lived_s < options.start_s_max
        return min(lived_s, self._report.silent_s) < options.sick_s_max


def _on_port(url: str, port: int) -> str:
    """An engine's address with another port: the same host, and the same rank."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return parts._replace(netloc=f"{host}:{port}").geturl()
