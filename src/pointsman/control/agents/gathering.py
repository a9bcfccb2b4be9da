"""Reads what agents send, many at a time.

A heartbeat that wakes up the loop alone costs several times what it costs among others: the
processor has slept, and nothing of the code or the index is in its caches. So once somebody has
something to say the others get a moment to say theirs.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from typing import Final

MOMENT_S_MAX = 0.05
"""A tenth of the time between two heartbeats: their news is on average five times as old."""

MOMENT_S_EACH = 0.0005
"""Of each agent's: few cost little, and need not wait."""

READS_A_TURN: Final = 8
"""About a millisecond; then the loop's other work gets its turn."""


class Gathering:
    """The descriptors of many connections, each with who reads it. To be closed when all have left.

    `waited_s` is how long what is being read may have waited.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._selector = selectors.DefaultSelector()
        self._ready: deque[Callable[[], None]] = deque()
        self._begun_s = 0.0
        self._next: asyncio.Handle | None = None

    def join(self, descriptor: int, read: Callable[[], None]) -> None:
        """Call `read` when there is something to be read, or a moment later."""
        self._selector.register(descriptor, selectors.EVENT_READ, read)
        if len(self._selector.get_map()) == 1:
            self._watch()

    def leave(self, descriptor: int) -> None:
        """Call it no more, but for once. To be called before the descriptor is closed."""
        self._selector.unregister(descriptor)
        if not self._selector.get_map():
            self._ready.clear()
            self._ignore()

    def close(self) -> None:
        self._selector.close()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._selector.fileno(), self._begin)

    def _ignore(self) -> None:
        asyncio.get_running_loop().remove_reader(self._selector.fileno())
        if self._next is not None:
            self._next.cancel()

    def _begin(self) -> None:
        """Somebody has something to say: wait a moment for others."""
        self._ignore()
        loop = asyncio.get_running_loop()
        self._begun_s = loop.time()
        moment_s = min(MOMENT_S_MAX, MOMENT_S_EACH * len(self._selector.get_map()))
        self._next = loop.call_later(moment_s, self._read)

    def _read(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._ready:
            self.waited_s = loop.time() - self._begun_s
            self._ready.extend([key.data for key, _ in self._selector.select(0)])
        try:
            for _ in range(READS_A_TURN):
                if self._ready:
                    self._ready.popleft()()
        finally:
            if self._ready:
                self._next = loop.call_soon(self._read)
            elif self._selector.get_map():
                self._watch()
