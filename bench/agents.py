"""What node agents cost the scheduler's process: its CPU, and the bytes of a heartbeat.

The agents are real reporters over loopback, all in this process; only the engines behind them are
made up. Each tells of `--changes` blocks that came and as many that left a heartbeat.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
import uvloop
from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from bench.peers.cpu import cpu_s, resident_bytes
from pointsman.agent import AgentOptions, reporter
from pointsman.agent.report import EngineReport
from pointsman.agent.reporter import Reporter
from pointsman.collectors.cadence import Cadence
from pointsman.collectors.link import NodeLink
from pointsman.core.cache_events import BlockRemoved, ChainStored
from pointsman.core.events import (
    CacheChanged,
    IndexTrust,
    IndexTrusted,
    ModelCard,
    NodeDescribed,
    NodeFacts,
    NodeReported,
    NodeSignals,
    NodeSpec,
)
from pointsman.core.ids import HASH_BITS, BlockHash, ModelName, NodeId, NodeName
from pointsman.telemetry.collector_metrics import CollectorMetrics
from pointsman.wire.control import AgentFrame, ControlAddress, Heartbeat, encode
from tests.support.ports import free_ports

BAR_PERCENT = 5.0
HEARTBEAT_S = 0.5
BLOCKS = 2_000  # that each engine holds
DELTA_BLOCKS = 16
SETTLED_S = 4.0  # after which a process has started
CONNECTED_S_MAX = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=100, help="agents, one engine each [100]")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch [20]")
    parser.add_argument(
        "--changes",
        type=int,
        action="append",
        help="blocks that come, and that leave, in each 500 ms; repeatable [0, 5, 20]",
    )
    arguments = parser.parse_args()
    for changes in arguments.changes or [0, 5, 20]:
        result = uvloop.run(measure(arguments.agents, changes, arguments.seconds))
        print(result.line(arguments.agents, changes))


class Result:
    """What was measured in one run."""

    def __init__(self, busy: float, idle: float, mib: float, bytes_: int, beats: int) -> None:
        self.percent = 100 * busy
        self.idle_percent = 100 * idle
        self.mib = mib
        self.bytes_each = bytes_ / beats
        self.beats = beats

    def line(self, agents: int, changes: int) -> str:
        verdict = "within" if self.percent <= BAR_PERCENT else "OVER"
        return (
            f"{agents} agents, {changes} blocks in and {changes} out each 500 ms: "
            f"{self.percent:.1f} % of a core ({self.idle_percent:.1f} % without agents), {verdict} "
            f"the bar of {BAR_PERCENT} %; {self.beats} heartbeats of {self.bytes_each:.0f} bytes; "
            f"{self.mib:.0f} MiB"
        )


class Traffic:
    """Counts what the agents send."""

    def __init__(self) -> None:
        self.beats = self.bytes = 0

    def encode(self, frame: AgentFrame) -> bytes:
        data = encode(frame)
        if isinstance(frame, Heartbeat):
            self.beats += 1
            self.bytes += len(data)
        return data


class Engine:
    """An engine that is made up: it works all the time, and its cache is full."""

    def __init__(self, number: int, port: int, wake: asyncio.Event, changes: int) -> None:
        spec = NodeSpec(name=NodeName(f"e-{number}"), url=f"http://127.0.1.{number + 1}:{port}")
        self.report = EngineReport(
            0, spec, clock=time.monotonic, wake=wake.set, delta_blocks=DELTA_BLOCKS
        )
        tally = CollectorMetrics(CollectorRegistry()).node(spec.name)
        self.report.link = NodeLink(spec, self.report, tally, Random(number), cadence=Cadence())
        self.report.link.join()
        self._changes = changes
        self._rng = Random(number)
        self._held: deque[BlockHash] = deque()
        card = ModelCard(ModelName("m"))
        facts = NodeFacts(kind="vllm", models=(card,), block_tokens=16, kv_blocks=BLOCKS)
        self.report.submit(NodeDescribed(NodeId(1), facts))
        self.report.submit(IndexTrusted(NodeId(1), IndexTrust.EXACT))
        self._store(BLOCKS)

    def step(self) -> None:
        """Half a second of work."""
        signals = NodeSignals(
            running=self._rng.randrange(64), waiting=0, kv_usage=self._rng.random(), gpu_busy=0.9
        )
        self.report.submit(NodeReported(NodeId(1), time.monotonic(), signals))
        if self._changes:
            gone = [self._held.popleft() for _ in range(self._changes)]
            self.report.submit(CacheChanged(NodeId(1), [BlockRemoved(tuple(gone))]))
            self._store(self._changes)

    def _store(self, count: int) -> None:
        came = [BlockHash(self._rng.getrandbits(HASH_BITS)) for _ in range(count)]
        self._held.extend(came)
        self.report.submit(CacheChanged(NodeId(1), [ChainStored(came)]))


async def measure(agents: int, changes: int, watched_s: float) -> Result:
    """CPU of the scheduler's process while it hears of `agents` engines."""
    traffic = Traffic()
    setattr(reporter, "encode", traffic.encode)  # noqa: B010 - counts, and does the same
    async with contextlib.AsyncExitStack() as stack:
        health = await stack.enter_async_context(healthy_engines())
        server = await stack.enter_async_context(serving())
        await asyncio.sleep(SETTLED_S)
        idle = await share(server.pid, watched_s / 4)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = [
            tasks.create_task(attend(number, health, server.agents, changes))
            for number in range(agents)
        ]
        await all_exact(server.admin, agents)
        before = traffic.beats, traffic.bytes
        busy = await share(server.pid, watched_s)
        result = Result(
            busy,
            idle,
            resident_bytes(server.pid) / 2**20,
            traffic.bytes - before[1],
            traffic.beats - before[0],
        )
        for task in running:
            task.cancel()
    return result


async def share(pid: int, seconds: float) -> float:
    """Of one core, over so long."""
    before_s = cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before_s) / seconds


async def attend(number: int, health: int, port: int, changes: int) -> None:
    """One agent with its engine, for ever."""
    wake = asyncio.Event()
    engine = Engine(number, health, wake, changes)
    options = AgentOptions(name=f"agent-{number}", scheduler=ControlAddress("127.0.0.1", port))
    reporting = Reporter(
        options, [engine.report], wake=wake, clock=time.monotonic, rng=Random(number)
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reporting.run())
        await asyncio.sleep(HEARTBEAT_S * Random(number).random())
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            engine.step()


async def all_exact(admin: int, agents: int) -> None:
    """Wait until every node is known, with all of its blocks."""
    url = f"http://127.0.0.1:{admin}/pointsman/v1/state"
    async with asyncio.timeout(CONNECTED_S_MAX), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as reply:
                nodes = (await reply.json())["nodes"]
            if sum(node["index_trust"] == "exact" for node in nodes) == agents:
                return
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def healthy_engines() -> AsyncIterator[int]:
    """The port on which every address of this machine answers health probes."""

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response()

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


class Serving:
    """The process under test, and its ports."""

    def __init__(self, pid: int, agents: int, admin: int) -> None:
        self.pid = pid
        self.agents = agents
        self.admin = admin


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Serving]:
    """`pointsman serve` with nothing but a place for agents."""
    with tempfile.TemporaryDirectory() as folder:
        ports = free_ports(3)
        config = {
            "listen": {"port": ports[0]},
            "admin": {"port": ports[1]},
            "agents": {"listen": f"127.0.0.1:{ports[2]}"},
            "engines": [],
            "log": {"access": "none", "level": "error"},
        }
        path = Path(folder) / "pointsman.yaml"
        path.write_text(json.dumps(config))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pointsman",
            "serve",
            "-c",
            str(path),
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield Serving(process.pid, ports[2], ports[1])
        finally:
            process.terminate()
            await process.wait()


if __name__ == "__main__":
    main()
