"""An agent with everything: a collector for each engine, and the reporter."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from urllib.parse import urlsplit

import aiohttp
import zmq.asyncio
from msgspec.structs import replace
from prometheus_client.registry import CollectorRegistry

from pointsman.agent.front import Front
from pointsman.agent.options import AgentOptions, EngineOptions
from pointsman.agent.report import EngineReport
from pointsman.agent.reporter import Reporter
from pointsman.collectors.client import EngineClient, new_session
from pointsman.collectors.event_socket import zmq_context
from pointsman.collectors.link import NodeLink
from pointsman.collectors.node import NodeCollector
from pointsman.telemetry.collector_metrics import CollectorMetrics


class Agent:
    """Runs until stopped. Engines may fail, and the scheduler be away: both are waited for."""

    def __init__(
        self,
        options: AgentOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: Random | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._rng = rng or Random()
        self._stopping = asyncio.Event()
        self._gone = False
        wake = asyncio.Event()
        self.reports = [
            EngineReport(
                number,
                engine.spec,
                clock=clock,
                wake=wake.set,
                delta_blocks=options.delta_blocks,
            )
            for number, engine in enumerate(options.engines)
        ]
        self.reporter = Reporter(options, self.reports, wake=wake, clock=clock, rng=self._rng)

    def stop(self, *, gone: bool = False) -> None:
        """Say goodbye and end; `gone` if the engines end, too."""
        self._gone = gone
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`."""
        metrics = CollectorMetrics(CollectorRegistry())
        async with (
            self._fronts(),
            new_session() as session,
            zmq_context() as context,
            asyncio.TaskGroup() as tasks,
        ):
            collecting = [
                tasks.create_task(self._collector(engine, report, metrics, session, context).run())
                for engine, report in zip(self._options.engines, self.reports, strict=True)
            ]
            reporting = tasks.create_task(self.reporter.run())
            await self._stopping.wait()
            self.reporter.leave(gone=self._gone)
            await reporting
            for task in collecting:
                task.cancel()

    @asynccontextmanager
    async def _fronts(self) -> AsyncIterator[None]:
        """What stands in front of engines listens, and is announced in their place."""
        async with AsyncExitStack() as stack:
            for engine, report in zip(self._options.engines, self.reports, strict=True):
                if engine.front is not None:
                    front = Front(engine.url, engine.front, clock=self._clock)
                    report.front = await stack.enter_async_context(front.serving())
                    report.spec = replace(report.spec, url=_on_port(report.spec.url, front.port))
            yield

    def _collector(
        self,
        engine: EngineOptions,
        report: EngineReport,
        metrics: CollectorMetrics,
        session: aiohttp.ClientSession,
        context: zmq.asyncio.Context,
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
        return NodeCollector(report.link, EngineClient(session, engine.url), context)


def _on_port(url: str, port: int) -> str:
    """The same host."""
    host = urlsplit(url).hostname or ""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
