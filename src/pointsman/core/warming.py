"""How a node that is new, or has returned, comes to its full share of work.

Its warmth goes from 0 to 1: with time alone in `slow_start_s`, and faster with every first token
that comes as foreseen, up to three times as fast; a late one takes back what a good one gives.
So a cold node is not given all that is new at once just because it is idle (Mooncake#3688).
"""

from pointsman.core.health_limits import (
    WARMING_SAMPLES,
    WARMING_SPEED_MAX,
    WARMING_WEIGHT_RETURNED,
)
from pointsman.core.rules import HealthRules


class Warming:
    """One node's. Warm until it `begins`."""

    __slots__ = ("_at_s", "_duration_s", "_from", "_since_s", "warmth")

    def __init__(self) -> None:
        self.warmth = 1.0
        self._from = 1.0
        self._duration_s = 1.0
        self._since_s = self._at_s = 0.0

    @property
    def over(self) -> bool:
        return self.warmth >= 1.0

    @property
    def weight(self) -> float:
        return self._from + (1.0 - self._from) * self.warmth

    def begin(self, now_s: float, rules: HealthRules, *, is_new: bool) -> None:
        """From the start. A node that has its cache still needs a third of the time."""
        self.warmth = 0.0
        self._from = rules.slow_start_weight if is_new else WARMING_WEIGHT_RETURNED
        self._duration_s = rules.slow_start_s / (1 if is_new else WARMING_SPEED_MAX)
        self._since_s = self._at_s = now_s

    def first_token(self, now_s: float, *, as_foreseen: bool) -> None:
        """One has come from there."""
        step = 1.0 / WARMING_SAMPLES
        warmth = self.warmth + (step if as_foreseen else -step)
        fastest = WARMING_SPEED_MAX * (now_s - self._since_s) / self._duration_s
        self.warmth = max(0.0, min(warmth, fastest, 1.0))

    def pass_time(self, now_s: float) -> None:
        """End it when its time is over, whatever came."""
        self.warmth += (now_s - self._at_s) / self._duration_s
        self._at_s = now_s
        if self.warmth > 1.0 or now_s - self._since_s >= self._duration_s:
            self.warmth = 1.0
