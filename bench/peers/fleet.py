"""Simulated engines (`pointsman engine`), each a process of its own, behind the routers.

They publish KV events; where, they tell who asks GET /kv_event_sources.
"""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from bench.peers.engines import MODEL
from bench.peers.gateways import OURS, stop
from tests.support.ports import free_ports

START_S_MAX = 60.0
VLLM_TOPIC = ""
"""vLLM's default: from sources it is told of, vllm-router takes no event with another topic."""


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Engines that are alike. `speed` is engine seconds per real second."""

    engines: int
    profile: str
    kv_blocks: int
    speed: float


class Fleet(msgspec.Struct, frozen=True):
    """Engines that serve, with empty caches."""

    urls: list[str]
    kv_events: list[str]
    pids: list[int]


@contextlib.asynccontextmanager
async def simulated_engines(plan: FleetPlan, folder: Path) -> AsyncIterator[Fleet]:
    """Starts them, and stops them at the end; their log goes to `folder`.

    Raises RuntimeError, with the end of the log, if one does not serve within START_S_MAX.
    """
    processes: list[asyncio.subprocess.Process] = []
    ports = free_ports(plan.engines)
    log = folder / "engines.log"
    try:
        with log.open("wb") as output:
            for number, port in enumerate(ports):
                processes.append(await _start(plan, port, seed=number, log=output))
        kv_events = [await _kv_events(process) for process in processes]
        if not all(kv_events):
            raise RuntimeError(f"a simulated engine does not serve:\n{log.read_text()[-2000:]}")
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        yield Fleet(urls, kv_events, [process.pid for process in processes])
    finally:
        for process in processes:  # all at once: each takes a moment
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in processes:
            await stop(process)


async def _start(
    plan: FleetPlan, port: int, *, seed: int, log: BinaryIO
) -> asyncio.subprocess.Process:
    words = ["engine", "--port", port, "--model", MODEL]
    words += ["--kv-events-port", 0, "--kv-events-topic", VLLM_TOPIC]
    words += ["--profile", plan.profile, "--kv-blocks", plan.kv_blocks]
    words += ["--speed", plan.speed, "--seed", seed]
    return await asyncio.create_subprocess_exec(
        OURS, *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=log
    )


async def _kv_events(process: asyncio.subprocess.Process) -> str:
    """Where it publishes; an engine says one line, when it serves. Empty if it does not."""
    assert process.stdout is not None
    with contextlib.suppress(TimeoutError):
        line = await asyncio.wait_for(process.stdout.readline(), START_S_MAX)
        if found := re.search(rb"KV events on (\d+)", line):
            return f"tcp://127.0.0.1:{int(found[1])}"
    return ""
