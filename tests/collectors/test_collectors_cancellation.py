"""Errors of a group of tasks hide no cancellation that came amid them."""

import asyncio

from pointsman.collectors.cancellation import heed_cancellation


async def test_who_is_cancelled_in_the_moment_when_its_group_fails_ends() -> None:
    went_on = False

    async def going_on() -> None:
        nonlocal went_on
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(failing())
                await asyncio.Event().wait()
        except* ValueError:
            heed_cancellation()
        went_on = True

    async def failing() -> None:
        task.cancel()
        raise ValueError("amid")

    task = asyncio.create_task(going_on())
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert not went_on


async def test_who_is_not_cancelled_goes_on() -> None:
    heed_cancellation()
