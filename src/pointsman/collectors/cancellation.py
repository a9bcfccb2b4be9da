"""Errors of a group of tasks: which was the first, and what goes on after them, but not after its
own end."""

import asyncio


def heed_cancellation() -> None:
    """Raises CancelledError if the calling task is to end.

    A TaskGroup whose tasks fail raises their errors alone, though it was cancelled amid that
    (Python before 3.13). Who handles those errors and goes on would run for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def first_error(error: BaseException) -> BaseException:
    """The first error in a group, in a group of groups too; what is no group is its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
