"""The queue in front of an engine: by priority, and short requests past long ones.

A long prompt holds up everybody behind it. So each priority has two lanes, and the short one goes
first; every `LONG_EVERY`th turn is the long one's, so that it is never starved. No clock and no
socket: the driver says who came, who has begun and who gave up.
"""

from collections import deque
from enum import StrEnum
from typing import Final

import msgspec

LONG_EVERY: Final = 4

SHORT_BYTES_MAX: Final = 32 * 1_024
"""The bytes up to which a body counts as short: about 8,000 tokens, a second of prefill on a large
GPU."""

_SERVICE_MEMORY: Final = 0.9  # of the mean duration, a request


class Lane(StrEnum):
    SHORT = "short"
    LONG = "long"


class Ticket(msgspec.Struct, eq=False):
    """One request's place. `begun` and `left` are final."""

    priority: int
    lane: Lane
    begun: bool = False
    left: bool = False


def lane_of(body_bytes: int) -> Lane:
    """The lane of a request, by what can be told without reading it."""
    return Lane.SHORT if body_bytes <= SHORT_BYTES_MAX else Lane.LONG


class FrontQueue:
    """The queue of one engine: at most `running_max` have begun, at most `waiting_max` wait."""

    def __init__(self, running_max: int, waiting_max: int) -> None:
        assert running_max > 0, running_max
        assert waiting_max >= 0, waiting_max
        self.running_max = running_max
        self.waiting_max = waiting_max
        self.running = 0
        self.waiting = 0
        self._service_s: float | None = None
        self._lanes: dict[tuple[int, Lane], deque[Ticket]] = {}
        self._turn = 0

    def adapt(self, running: int, waiting: int, running_max: int) -> None:
        """Learn that the engine runs so many, and that so many wait in it. Let through what it can
        start, and try a tenth more while nothing waits. What has begun goes on."""
        if waiting:
            self.running_max = max(1, min(running, running_max))
        else:
            self.running_max = min(running_max, self.running_max + max(1, self.running_max // 10))

    def expected_wait_s(self) -> float:
        """How long one that comes now would wait, if all go as the last ones did."""
        if self.running < self.running_max and not self.waiting:
            return 0.0
        return (self.waiting + 1) * (self._service_s or 0.0) / self.running_max

    def enter(self, priority: int, lane: Lane) -> Ticket | None:
        """A place in the queue, or None if there is none. It may begin when `next` says so."""
        if self.waiting >= self.waiting_max and (self.waiting or self.running >= self.running_max):
            return None
        ticket = Ticket(priority, lane)
        self._lanes.setdefault((priority, lane), deque()).append(ticket)
        self.waiting += 1
        return ticket

    def next(self) -> Ticket | None:
        """Who may begin now, if anybody. From here on it counts as begun."""
        if self.running >= self.running_max or not self.waiting:
            return None
        priority = max(priority for priority, _ in self._lanes)
        short, long = (priority, Lane.SHORT), (priority, Lane.LONG)
        self._turn += 1
        first, second = (long, short) if self._turn % LONG_EVERY == 0 else (short, long)
        key = first if first in self._lanes else second
        ticket = self._lanes[key].popleft()
        if not self._lanes[key]:
            del self._lanes[key]
        self.waiting -= 1
        self.running += 1
        ticket.begun = True
        return ticket

    def leave(self, ticket: Ticket, service_s: float | None = None) -> None:
        """Note that a request is over, or gave up waiting; a second call changes nothing.
        `service_s` is how long the engine took, where it is a sample of that."""
        if ticket.left:
            return
        ticket.left = True
        if ticket.begun:
            self.running -= 1
            if service_s is not None:
                self._learn(service_s)
            return
        key = (ticket.priority, ticket.lane)
        self._lanes[key].remove(ticket)
        if not self._lanes[key]:
            del self._lanes[key]
        self.waiting -= 1

    def _learn(self, service_s: float) -> None:
        if self._service_s is None:
            self._service_s = service_s
        else:
            self._service_s += (1 - _SERVICE_MEMORY) * (service_s - self._service_s)

    def check(self) -> None:
        """Assert that the counts are those of the lanes."""
        assert self.waiting == sum(map(len, self._lanes.values())), self._lanes
        assert self.running >= 0, self.running
        assert all(self._lanes.values()), "an empty lane"
