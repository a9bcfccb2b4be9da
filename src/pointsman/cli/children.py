"""Simulated engines as child processes that never outlive this one."""

import asyncio
import ctypes
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple

START_S_MAX = 60.0
"""For all of them to say that they listen; a second or two on a quiet machine."""

STOP_S_MAX = 5.0
"""After SIGTERM, before SIGKILL."""

_ADDRESS = re.compile(rb" at (http://[^\s,]+)")
_PR_SET_PDEATHSIG = 1  # prctl(2)


class EngineFailed(Exception):  # noqa: N818 - named by what happened
    """An engine ended, or said nothing, before it served. The text is for the user."""


class ChildOptions(NamedTuple):
    """What `pointsman engine` is given; None leaves its default."""

    model: str
    profile: str
    speed: float
    kv_blocks: int | None
    seed: int


@asynccontextmanager
async def engines(
    count: int, options: ChildOptions, progress: Callable[[int], None]
) -> AsyncIterator[Sequence[str]]:
    """URLs of `count` running engines, which stop with the context. Raises EngineFailed.

    `progress` is told how many serve so far.
    """
    async with AsyncExitStack() as stack:
        children = []
        for number in range(count):
            child = await _spawn(options._replace(seed=options.seed + number))
            stack.push_async_callback(_stop, child)
            children.append(child)
        urls = await _addresses(children, progress)
        async with asyncio.TaskGroup() as tasks:
            drains = [tasks.create_task(_drain(child)) for child in children]
            try:
                yield urls
            finally:
                for drain in drains:
                    drain.cancel()
                for child in children:  # all at once; the stack waits for each
                    _ask_to_end(child)


async def _spawn(options: ChildOptions) -> asyncio.subprocess.Process:
    arguments = ["--port", "0", "--kv-events-port", "0", "--model", options.model]
    arguments += ["--speed", str(options.speed), "--seed", str(options.seed)]
    arguments += ["--profile", options.profile]
    if options.kv_blocks is not None:
        arguments += ["--kv-blocks", str(options.kv_blocks)]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pointsman", "engine", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours to handle: they stop after the last request
        preexec_fn=die_with_parent(os.getpid()),
    )


def die_with_parent(parent: int) -> Callable[[], None]:
    """Run in the child before exec: the kernel ends it when its parent is gone, even killed."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return prepare


async def _addresses(
    children: Iterable[asyncio.subprocess.Process], progress: Callable[[int], None]
) -> Sequence[str]:
    urls: list[str] = []
    try:
        async with asyncio.timeout(START_S_MAX):
            for child in children:
                urls.append(await _address(child))
                progress(len(urls))
    except TimeoutError:
        raise EngineFailed(f"an engine said nothing within {START_S_MAX:g} s") from None
    return urls


async def _address(child: asyncio.subprocess.Process) -> str:
    """Where the engine listens: its first line says so."""
    assert child.stdout is not None
    found = _ADDRESS.search(await child.stdout.readline())
    if found is None:
        raise EngineFailed("an engine ended before it served; its message is above")
    return found[1].decode()


async def _drain(child: asyncio.subprocess.Process) -> None:
    """Read what it prints, so that it never blocks on a full pipe."""
    assert child.stdout is not None
    while await child.stdout.read(65_536):
        pass


async def _stop(child: asyncio.subprocess.Process) -> None:
    """End it, politely first."""
    _ask_to_end(child)
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()


def _ask_to_end(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        child.terminate()
