"""Virtual time: calls in order of when they are due; of equal ones the one made first."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Timer:
    """A call that is to come; it can be cancelled, also when it is over."""

    __slots__ = ("_args", "_call", "_clock", "due_s")

    def __init__(
        self, clock: "Clock", due_s: float, call: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self.due_s = due_s
        self._clock = clock
        self._call: Callable[..., object] | None = call
        self._args = args

    def later(self, delay_s: float) -> "Timer":
        """Put the call off: this timer is cancelled, and the one returned stands for it."""
        assert self._call is not None, "it is cancelled"
        call, args = self._call, self._args
        self.cancel()
        return self._clock.at(self.due_s + delay_s, call, *args)

    def cancel(self) -> None:
        """See to it that it is not called."""
        self._call = None
        self._args = ()

    def fire(self) -> None:
        """Call it, unless it was cancelled."""
        if self._call is not None:
            self._call(*self._args)


class Clock:
    """`now_s` goes from call to call; nothing happens in between."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._running = False

    def at(self, due_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """Call at that time. If it has passed: now, after all else that is due now."""
        due_s = max(due_s, self.now_s)
        timer = Timer(self, due_s, call, args)
        self._order += 1
        heappush(self._due, (due_s, self._order, timer))
        return timer

    def after(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """Call `delay_s` from now."""
        return self.at(self.now_s + delay_s, call, *args)

    def run(self) -> None:
        """Until `stop` is called from one of the calls, or nothing is left."""
        self._running = True
        due = self._due
        while self._running and due:
            self.now_s, _, timer = heappop(due)
            timer.fire()

    def stop(self) -> None:
        """The call that is running now is the last one."""
        self._running = False
