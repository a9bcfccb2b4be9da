"""A scenario's cluster for real: simulated engines behind sockets, the process that `serve` would
run, and what befalls the engines when the scenario says.

Engines run on this loop, `1 / slowdown` times as fast as their profile. A crash closes the port and
resets every connection; the engine that comes back is a new one, with an empty cache.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import assert_never

import aiohttp
import msgspec
from aiohttp import web

from pointsman.cli.config import Admin, Config, Engine, Listen, Log
from pointsman.cli.process import Process
from pointsman.core.scheduler import Scheduler
from pointsman.engines.simulated import EngineOptions, RunningEngine, start
from pointsman.sim.scenario import Fault, FaultKind, NodeGroup, Scenario
from pointsman.traffic.replayed import NodeSeries, Series
from tests.support.cluster import new_session, running_process

BLOCK_TOKENS = 16
CONNECTIONS_MAX = 8_192
SAMPLE_S = 0.25
READY_S_MAX = 20.0


class LiveNode:
    """One engine that can die and return on its port. `jobs` counts what it got, by request."""

    def __init__(self, name: str, group: NodeGroup, jobs: Counter[str]) -> None:
        assert isinstance(group.profile, str), "an engine has a profile by name"
        kv_tokens = group.kv_tokens
        self.name = name
        self.group = group
        self._jobs = jobs
        self._options = EngineOptions(
            profile=group.profile,
            speed=1 / group.slowdown,
            block_size=BLOCK_TOKENS,
            kv_blocks=None if kv_tokens is None else kv_tokens // BLOCK_TOKENS,
            max_num_seqs=group.sequences_max,
            max_model_len=group.context_tokens,
        )
        self._serving: AbstractAsyncContextManager[RunningEngine] | None = None
        self.running: RunningEngine | None = None
        self.url = ""

    async def up(self) -> None:
        """Start, on the port that it had before."""
        if self.running is not None:
            return
        self._serving = start(self._options)
        self.running = await self._serving.__aenter__()
        self._options = msgspec.structs.replace(self._options, port=self.running.port)
        self.url = self.running.url
        self._count_jobs(self.running)

    async def down(self) -> None:
        """Die: nothing is said to anybody."""
        running, serving = self.running, self._serving
        if running is None or serving is None:
            return
        self.running = None
        for transport in running.transports:
            transport.abort()
        await serving.__aexit__(None, None, None)

    def _count_jobs(self, running: RunningEngine) -> None:
        engine, jobs = running.engine, self._jobs
        named = engine.answer_id

        def counted(request: web.BaseRequest, prefix: str) -> str:
            jobs[request.headers.get("X-Request-Id", "")] += 1
            return named(request, prefix)

        engine.answer_id = counted  # type: ignore[method-assign]  # the engine has no hook for it


class LiveBed:
    """What a bench or a test has in its hands while the cluster runs."""

    def __init__(
        self, process: Process, nodes: Sequence[LiveNode], jobs: Counter[str],
        session: aiohttp.ClientSession,
    ) -> None:  # fmt: skip
        self.process = process
        self.nodes = nodes
        self.jobs = jobs
        self.api = f"http://127.0.0.1:{process.port}"
        self.admin = f"http://127.0.0.1:{process.admin_port}/pointsman/v1"
        self._session = session
        self._times_s: list[float] = []
        self._held: list[int] = []
        self._rows: list[list[tuple[int, int, float]]] = []

    @property
    def scheduler(self) -> Scheduler:
        return self.process.service.scheduler

    def amplification(self) -> float:
        """Jobs that engines got for each request of which they got any."""
        return sum(self.jobs.values()) / len(self.jobs) if self.jobs else 0.0

    # --- what befalls it ----------------------------------------------------------------

    async def befall(self, scenario: Scenario, began_s: float) -> None:
        """Every fault and every late start at its time, counted from `began_s`."""
        async with asyncio.TaskGroup() as tasks:
            for node in self.nodes:
                if node.group.startup_s:
                    tasks.create_task(self._join(node, began_s))
            for fault in scenario.faults:
                names = fault.nodes or tuple(node.name for node in self.nodes)
                for place, name in enumerate(names):
                    node = next(node for node in self.nodes if node.name == name)
                    for begin_s in fault.begins_s(place):
                        tasks.create_task(self._befall(fault, node, began_s + begin_s))

    async def _join(self, node: LiveNode, began_s: float) -> None:
        await _until(began_s + node.group.startup_s)
        await node.up()
        body = {"name": node.name, "url": node.url}
        async with self._session.post(f"{self.admin}/nodes", json=body) as reply:
            assert reply.status < 300, await reply.text()

    async def _befall(self, fault: Fault, node: LiveNode, begin_s: float) -> None:
        await _until(begin_s)
        end_s = begin_s + fault.duration_s
        match fault.kind:
            case FaultKind.CRASH:
                await node.down()
                await _until(end_s)
                await node.up()
            case FaultKind.SLOW:
                await self._simulate(node, slow=fault.factor)
                await _until(end_s)
                await self._simulate(node, slow=1)
            case FaultKind.HANG:
                await self._simulate(node, hang=True)
                await _until(end_s)
                await self._simulate(node, hang=False)
            case FaultKind.FLAP:
                await self._flap(fault, node, end_s)
            case FaultKind.PARTITION | FaultKind.STALE | FaultKind.EVENT_LOSS:
                raise ValueError(f"{fault.kind} is for the simulator")
            case _:
                assert_never(fault.kind)

    async def _flap(self, fault: Fault, node: LiveNode, end_s: float) -> None:
        status = 503
        while perf_counter() < end_s:
            await self._simulate(node, health_status=status)
            status = 200 if status == 503 else 503
            await asyncio.sleep(fault.period_s)
        await self._simulate(node, health_status=None)

    async def _simulate(self, node: LiveNode, **faults: object) -> None:
        async with self._session.post(f"{node.url}/simulate", json=faults) as reply:
            assert reply.status == 200, await reply.text()

    # --- what it looks like -------------------------------------------------------------

    async def sample(self, began_s: float) -> None:
        """For ever: what each engine has, and what the gateway holds."""
        while True:
            self._times_s.append(perf_counter() - began_s)
            self._held.append(self.scheduler.held)
            self._rows.append([_picture(node) for node in self.nodes])
            await asyncio.sleep(SAMPLE_S)

    def series(self) -> Series:
        """What was seen."""
        columns = [list(zip(*column, strict=True)) for column in zip(*self._rows, strict=True)]
        still = tuple(0.0 for _ in self._times_s)
        return Series(
            times_s=tuple(self._times_s),
            held=tuple(self._held),
            nodes=tuple(
                NodeSeries(
                    node=node.name, running=running, waiting=waiting, kv_usage=kv_usage,
                    remaining_s=still,
                )
                for node, (running, waiting, kv_usage) in zip(self.nodes, columns, strict=True)
            ),
        )  # fmt: skip


@asynccontextmanager
async def live_bed(
    scenario: Scenario, *, policy: str, config: Config | None = None, keys: tuple[str, ...] = ()
) -> AsyncIterator[LiveBed]:
    """The cluster, once the gateway knows all that are there from the beginning; `keys` are those
    that it lets in, without limits."""
    jobs: Counter[str] = Counter()
    nodes: list[LiveNode] = []
    for group in scenario.fleet:
        nodes += [LiveNode(f"node-{len(nodes) + n}", group, jobs) for n in range(group.count)]
    async with AsyncExitStack() as stack:
        for node in nodes:
            stack.push_async_callback(node.down)
            if not node.group.startup_s:
                await node.up()
        settings = _settings(config or Config(), policy, [node for node in nodes if node.url], keys)
        process = await stack.enter_async_context(running_process(settings))
        session = await stack.enter_async_context(new_session())
        async with asyncio.timeout(READY_S_MAX):
            await process.fleet.until_described()
        yield LiveBed(process, nodes, jobs, session)


def _settings(
    config: Config, policy: str, nodes: Sequence[LiveNode], keys: tuple[str, ...]
) -> Config:
    limits = msgspec.structs.replace(config.limits, connections_max=CONNECTIONS_MAX)
    engines = tuple(
        Engine(url=node.url, name=node.name, concurrency_max=node.group.concurrency_max)
        for node in nodes
    )
    return msgspec.structs.replace(
        config,
        listen=Listen(port=0, reply_headers=True, api_keys=keys),
        admin=Admin(port=0),
        limits=limits,
        log=Log(level="error", access="none"),
        policy=policy,
        engines=engines,
    )


def _picture(node: LiveNode) -> tuple[int, int, float]:
    if node.running is None:
        return 0, 0, 0.0
    model = node.running.engine.driver.model
    return model.running, model.waiting, round(model.kv_usage, 4)


async def _until(at_s: float) -> None:
    left_s = at_s - perf_counter()
    if left_s > 0:
        await asyncio.sleep(left_s)
