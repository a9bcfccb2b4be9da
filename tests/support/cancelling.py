"""Work that is cancelled wherever it waits: at its first await, its second, and so on.

After each time nothing may be left of it: no task, no process, and no descriptor, which is a
socket, a file or a pipe. What it awaits in tasks of its own counts as one wait.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import coroutine
from typing import Any, NamedTuple

IDLE_S = 0.3
"""What has not come to its next wait by now has none."""

SETTLES_S_MAX = 10.0
"""For whoever was connected with it to let go, too."""

Work = Coroutine[Any, Any, object]


async def cancel_at_each_wait(make: Callable[[], Work], *, waits_max: int) -> int:
    """How often it waits, if not more often than that. Raises AssertionError for what it leaves,
    or if it does not heed its cancellation."""
    await _Run(make()).until(waits_max)  # what is loaded, and opened, once
    before = _held()
    for wait in range(waits_max):
        if not await _Run(make()).until(wait):
            return wait
        await _settled(before, wait)
    return waits_max


class _Run:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._is_cancelled = False

    async def until(self, wait: int) -> bool:
        """Whether it has come so far."""
        task = asyncio.create_task(self._cancelled_at(wait))
        await asyncio.wait([task], timeout=IDLE_S)
        task.cancel()
        await asyncio.wait([task], timeout=SETTLES_S_MAX)
        assert task.done(), f"it goes on although it was cancelled at wait {wait}"
        if not task.cancelled():
            task.result()
            assert not self._is_cancelled, f"it has swallowed its cancellation at wait {wait}"
        return self._is_cancelled

    @coroutine
    def _cancelled_at(self, wait: int) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        advance: Callable[[Any], Any] = self._work.send
        argument: object = None
        waits = 0
        while True:
            try:
                awaited = advance(argument)
            except StopIteration:
                return
            if waits == wait:
                self._is_cancelled = True
                task.cancel()
            waits += 1
            try:
                argument = yield awaited
                advance = self._work.send
            except BaseException as error:  # noqa: BLE001 - the work's to handle
                argument, advance = error, self._work.throw


async def _settled(before: "_Held", wait: int) -> None:
    try:
        async with asyncio.timeout(SETTLES_S_MAX):
            while any(now > then for now, then in zip(_held(), before, strict=True)):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"{_held()} after wait {wait}, {before} before") from None


class _Held(NamedTuple):
    tasks: int
    processes: int
    descriptors: int


def _held() -> _Held:
    processes = sum(len(each.read_text().split()) for each in _TASKS.glob("*/children"))
    return _Held(len(asyncio.all_tasks()), processes, len(os.listdir("/proc/self/fd")))


_TASKS = Path("/proc/self/task")
