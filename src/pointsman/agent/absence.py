"""Says what is worth a line of the log while the scheduler stays away: an attempt to reach it is
made every few seconds, for as long as it takes.

No clock here: times come in as seconds.
"""

from typing import Final

REPEAT_S_MIN: Final = 30.0
REPEAT_S_MAX: Final = 3_600.0
"""Between two lines that say the same: who reads the end of the log finds it, and a weekend's
outage is some dozens of lines."""


class Absence:
    """The time without a scheduler, if there is none."""

    def __init__(self) -> None:
        self._problem = ""
        self._since_s: float | None = None
        self._repeat_s = REPEAT_S_MIN
        self._next_s = 0.0

    def told(self, problem: str, now_s: float) -> str:
        """What is to be said of an attempt that failed: a new problem at once, the same one again
        after a while, twice as long each time. Empty: nothing."""
        if self._since_s is None:
            self._since_s, self._repeat_s = now_s, REPEAT_S_MIN
        if problem == self._problem:
            if now_s < self._next_s:
                return ""
            self._repeat_s = min(2 * self._repeat_s, REPEAT_S_MAX)
        self._problem, self._next_s = problem, now_s + self._repeat_s
        away_s = now_s - self._since_s
        return f"{problem}, for {away_s:.0f} s now" if away_s >= REPEAT_S_MIN else problem

    def over(self, now_s: float) -> str:
        """What is to be said now that it is there."""
        since_s, self._since_s, self._problem = self._since_s, None, ""
        return "connected" if since_s is None else f"connected after {now_s - since_s:.0f} s"
