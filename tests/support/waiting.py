"""Waiting for what tells nobody: it is looked at until it holds, on however slow a machine."""

import asyncio
from collections.abc import Awaitable, Callable

WITHIN_S = 20.0
"""Far above what any of it takes, so that a slow machine fails nothing and a hang ends."""

PAUSE_S = 0.005


async def eventually(holds: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait until it holds; what it returns is awaited where it can be."""
    async with asyncio.timeout(within_s):
        while not await _value(holds()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(PAUSE_S)


async def _value(told: object) -> object:
    return await told if isinstance(told, Awaitable) else told
