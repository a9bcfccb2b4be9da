"""A bucket of tokens that refills steadily: at most so many at once, and so many a minute.

The level may fall below zero: what was used is used, and is paid off by waiting.
"""

_SLACK = 1e-6
"""The share of a token that may be missing: who waits as long as told is not sent away for a
rounding error."""

_MINUTE_S = 60.0


class TokenBucket:
    """A bucket that starts full. `now_s` never goes back; one thread owns it."""

    def __init__(self, per_minute: int) -> None:
        assert per_minute > 0, per_minute
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = float("-inf")

    def level(self, now_s: float) -> float:
        """Tokens that may be taken now; below zero there is a debt."""
        if now_s > self._at_s:
            if self._level < self.per_minute:
                refilled = self._level + (now_s - self._at_s) * self.per_minute / _MINUTE_S
                self._level = min(float(self.per_minute), refilled)
            self._at_s = now_s
        return self._level

    def holds(self, amount: float, now_s: float) -> bool:
        """Whether `amount` may be taken now."""
        return self.level(now_s) + _SLACK >= amount

    def take(self, amount: float, now_s: float) -> None:
        """Take `amount`, even into debt: ask `holds` first where that is not meant."""
        self._level = self.level(now_s) - amount

    def give_back(self, amount: float, now_s: float) -> None:
        """Undo a part of what was taken. The bucket never holds more than a minute's worth."""
        self._level = min(float(self.per_minute), self.level(now_s) + amount)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` may be taken; infinite if it never fits."""
        if amount > self.per_minute:
            return float("inf")
        return max(0.0, amount - self.level(now_s)) * _MINUTE_S / self.per_minute

    def resize(self, per_minute: int, now_s: float) -> None:
        """Take another limit from here on. What was taken stays taken."""
        assert per_minute > 0, per_minute
        taken = self.per_minute - self.level(now_s)
        self.per_minute = per_minute
        self._level = per_minute - taken
