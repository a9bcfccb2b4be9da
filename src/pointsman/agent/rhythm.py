"""Says when the next heartbeat is due: as often as agreed, and less often where the network is
slow.

A heartbeat that is not acknowledged before the next one is a sign of loss. TCP repeats what was
lost, and sending more does not help. So the interval doubles, up to a bound, and halves again with
acknowledgements that are in time. No clock here: times come in as seconds.
"""

from collections import deque
from typing import Final

LOST_S: Final = 8.0
"""After so long without an acknowledgement the connection is given up: four of the longest
intervals."""


class Rhythm:
    """Of the heartbeats on one connection."""

    def __init__(self, interval_s: float, interval_s_max: float) -> None:
        assert 0 < interval_s <= interval_s_max, (interval_s, interval_s_max)
        self.interval_s = interval_s
        self.seq = 0
        self._interval_s_min = interval_s
        self._interval_s_max = interval_s_max
        self._open: deque[tuple[int, float]] = deque()  # not acknowledged: number, when

    @property
    def is_troubled(self) -> bool:
        """Whether heartbeats come less often than agreed; none is sent early then."""
        return self.interval_s > self._interval_s_min

    def send(self, now_s: float) -> int:
        """The number of a heartbeat that goes out now, which is noted as sent."""
        if self._open and now_s - self._open[-1][1] >= self.interval_s:
            self.interval_s = min(2 * self.interval_s, self._interval_s_max)
        self.seq += 1
        self._open.append((self.seq, now_s))
        return self.seq

    def acknowledged(self, seq: int, now_s: float) -> None:
        """Note that all heartbeats up to that number have arrived."""
        while self._open and self._open[0][0] <= seq:
            _, sent_s = self._open.popleft()
            if now_s - sent_s < self.interval_s and not self._open:
                self.interval_s = max(self.interval_s / 2, self._interval_s_min)

    def is_lost(self, now_s: float) -> bool:
        """Whether nothing has been acknowledged for too long."""
        return bool(self._open) and now_s - self._open[0][1] >= LOST_S
