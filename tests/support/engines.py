"""Simulated engines for tests, inside the test's loop or as a process of their own."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

import msgspec

from pointsman.engines.simulated import EngineOptions, RunningEngine, start

START_S_MAX = 30.0
STOP_S_MAX = 10.0


class SpawnedEngine(msgspec.Struct, frozen=True):
    """An engine in a process of its own."""

    url: str
    process: asyncio.subprocess.Process
    ready_line: str

    def kill(self) -> None:
        """SIGKILL: connections reset, nothing is said."""
        self.process.kill()


@contextlib.asynccontextmanager
async def running_engine(**options: object) -> AsyncIterator[RunningEngine]:
    """An engine on a free port: `.url`, `.options`, `.engine` (driver, model, faults, stats).

    Options are those of EngineOptions; `speed` is 100 unless given.
    """
    given = msgspec.convert({"speed": 100.0, **options}, EngineOptions)
    async with start(given) as running:
        yield running


@contextlib.asynccontextmanager
async def spawned_engine(*arguments: str) -> AsyncIterator[SpawnedEngine]:
    """`pointsman engine --port 0 ARGUMENTS` as a subprocess; killed at the end if need be."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from pointsman.cli.engine import engine; engine()",
        "--port",
        "0",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S_MAX):
            line = (await process.stdout.readline()).decode()
        url = next(word for word in line.split() if word.startswith("http://")).rstrip(",")
        yield SpawnedEngine(url, process, line)
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    # The pipe's transport is closed by the loop once EOF is read.
    if process.stdout is not None:
        await process.stdout.read()
