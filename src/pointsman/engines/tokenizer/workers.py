"""Threads for what takes more than a millisecond: rendering a long chat, encoding new text.

Encoding releases the interpreter's lock; rendering does not, but is a tenth of the work. The
queue is bounded, and what is withdrawn before a thread takes it up is never done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")

THREADS = 2
"""They share the interpreter's lock with the event loop; encoding alone runs beside it."""

PENDING_MAX = 64
"""Jobs queued and running. At 1 MB/s a thread, 64 chats of 10 kB are half a second of work;
whoever comes then is better off with the text index."""


class Workers:
    """Belongs to the loop that makes it. Work must not raise."""

    def __init__(self, *, threads: int = THREADS, pending_max: int = PENDING_MAX) -> None:
        self.pending = 0
        self.pending_max = pending_max
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        return self.pending >= self.pending_max

    def submit(self, work: Callable[[], T], done: Callable[[T], None]) -> Callable[[], object]:
        """Do `work` in a thread, then `done` on the loop; not if the answer was called before
        a thread took it up. Ask `is_full` first."""
        assert not self.is_full, self.pending
        self.pending += 1
        future = self._executor.submit(work)
        future.add_done_callback(partial(self._ended, done))
        return future.cancel

    async def close(self) -> None:
        """Drop what is queued and wait for what runs, which is seconds at most."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)

    def _ended(self, done: Callable[[T], None], future: "Future[T]") -> None:
        self._loop.call_soon_threadsafe(self._deliver, done, future)

    def _deliver(self, done: Callable[[T], None], future: "Future[T]") -> None:
        self.pending -= 1
        if not future.cancelled():
            done(future.result())
