"""Commands as their users run them: `pointsman` and its helpers in processes of their own."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from click.testing import CliRunner

from pointsman.cli.main import main

START_S_MAX = 60.0
END_S_MAX = 30.0


class Ended:
    """A command that is over."""

    def __init__(self, code: int | None, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


class Serving:
    """A command that serves. `said` is what it has printed to stderr so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""
        self._grown = asyncio.Event()

    @property
    def api(self) -> str:
        return self._url(r"(http://[^/\s]+)/v1\b")

    @property
    def admin(self) -> str:
        return self._url(r"(http://[^/\s]+)/pointsman/v1/state")

    def _url(self, pattern: str) -> str:
        found = re.search(pattern, self.said)
        assert found, self.said
        return found[1]

    async def until_said(self, pattern: str) -> None:
        """Wait for words that match. Fails with what was said instead."""
        try:
            async with asyncio.timeout(START_S_MAX):
                while not re.search(pattern, self.said):
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            raise AssertionError(f"no {pattern!r} in: {self.said}") from None

    async def code(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(END_S_MAX):
            return await self.process.wait()

    def rss_bytes(self) -> int:
        """Resident memory, on Linux."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found, status
        return int(found[1]) * 1024

    async def listen(self) -> None:
        """Read what it says until it ends, so that it never blocks on a full pipe."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.said += line.decode()
            self._grown.set()


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[Serving]:
    """`pointsman ARGUMENTS` on free ports, once it serves; killed at the end if need be."""
    command = ("-m", "pointsman", *arguments, "--port", "0", "--admin-port", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Serving(process)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running.listen())
        try:
            await running.until_said(r"/pointsman/v1/state")
            yield running
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def run_inside(*arguments: str, **environment: str) -> Ended:
    """As `run`, in a thread of this process, which takes a tenth of the time: for commands that
    handle no signals and set up no logging."""
    invoke = partial(CliRunner().invoke, catch_exceptions=False, env=environment)
    result = await asyncio.to_thread(invoke, main, arguments)
    return Ended(result.exit_code, result.stdout, result.stderr)


async def run(*arguments: str) -> Ended:
    """`pointsman ARGUMENTS` to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pointsman", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(END_S_MAX):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode, out.decode(), err.decode())
