"""Keeps one engine's process running: starts, watches and restarts it, and ends it with all that it
has started itself.

The engine gets a session of its own, so that whatever it forks can be ended with it: a vLLM whose
API server is killed leaves a core process behind that holds its ports. Its output goes where the
agent's goes.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25


class SupervisorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """start_s_max   for the engine to answer; one that loads a large model takes minutes
    sick_s_max      without a good probe, before it is ended and started again
    steady_s        after which a run counts as a good one, and failures are forgotten
    restarts_max    in a row without a good run between them; then it is given up
    pause_s_min     before a restart; doubles from one to the next, up to `pause_s_max`
    stop_s_max      between SIGTERM and SIGKILL
    """

    start_s_max: float = 900.0
    sick_s_max: float = 60.0
    steady_s: float = 60.0
    restarts_max: int = 5
    pause_s_min: float = 1.0
    pause_s_max: float = 60.0
    stop_s_max: float = 15.0


class GaveUp(Exception):  # noqa: N818 - named by what happened
    """The engine does not stay up. The text is for people."""


class Watcher:
    """What the supervisor tells and asks of whoever watches; the agent's report overrides it."""

    def began(self) -> None:
        """A process has been started."""

    def ended(self, detail: str) -> None:
        """The process is no more."""

    def is_well(self, since_s: float, options: SupervisorOptions) -> bool:
        """Whether a process that began at `since_s` may go on."""
        return True


class Supervisor:
    """Supervises one command. `prepare` runs in the child before it becomes the engine."""

    def __init__(
        self,
        command: Sequence[str],
        watcher: Watcher,
        options: SupervisorOptions | None = None,
        *,
        prepare: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert command, "no command"
        self.options = options or SupervisorOptions()
        self.starts = 0
        self._command = command
        self._watcher = watcher
        self._prepare = prepare
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The id of the process, or of the last one."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Keep the engine running until `stop`. Raises GaveUp."""
        failures, pause_s = 0, self.options.pause_s_min
        while not self._stopping.is_set():
            began_s = self._clock()
            detail = await self._run_once(began_s)
            if self._stopping.is_set():
                return
            self._watcher.ended(detail)
            if self._clock() - began_s >= self.options.steady_s:
                failures, pause_s = 0, self.options.pause_s_min
            failures += 1
            if failures > self.options.restarts_max:
                raise GaveUp(f"the engine does not stay up: {detail}, {failures} times in a row")
            log.warning("the engine's process is gone (%s): again in %g s", detail, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, self.options.pause_s_max)

    async def stop(self) -> None:
        """End the engine: SIGTERM, and SIGKILL for what is left after a while. Second calls and
        calls while nothing runs change nothing."""
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            await self._end(process)

    async def _run_once(self, began_s: float) -> str:
        """Run the engine once, to its end. How it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, start_new_session=True, preexec_fn=self._prepare
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        self._process = process
        self.starts += 1
        self._watcher.began()
        try:
            if self._stopping.is_set():  # while it was being started
                await self._end(process)
            detail = await self._watch(process, began_s)
        finally:
            _signal_group(process.pid, signal.SIGKILL)  # what it has left behind
            await process.wait()
        return detail

    async def _watch(self, process: asyncio.subprocess.Process, began_s: float) -> str:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    status = await process.wait()
            except TimeoutError:
                if self._watcher.is_well(began_s, self.options):
                    continue
                await self._end(process)
                return "no answer for too long"
            return f"signal {-status}" if status < 0 else f"exit status {status}"

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        _signal_group(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(self.options.stop_s_max):
                await process.wait()
        except TimeoutError:
            log.warning("the engine does not end on SIGTERM: SIGKILL")
            _signal_group(process.pid, signal.SIGKILL)
            await process.wait()


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
