"""Counts that fade: what came some time ago counts for less, by exp(-age / memory).

In a steady stream of r a second such a count settles at r · memory, so that a count over its
memory is a rate. `memory_s` turns a half-life into a memory. The memory is given with each call
and not kept: it is its owner's constant, or a rule that may change.
"""

from math import exp
from typing import Final

_LN_2: Final = 0.6931471805599453


class Faded:
    """A sum that fades. `now_s` never goes back."""

    __slots__ = ("_at_s", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_s = 0.0

    def add(self, amount: float, now_s: float, memory_s: float) -> None:
        """Count so much more."""
        self._sum = self.at(now_s, memory_s) + amount
        self._at_s = now_s

    def at(self, now_s: float, memory_s: float) -> float:
        """What is left of all that came."""
        return self._sum * left(now_s - self._at_s, memory_s)


def left(age_s: float, memory_s: float) -> float:
    """The share that is left of what came `age_s` ago."""
    return exp(-age_s / memory_s)


def memory_s(half_life_s: float) -> float:
    """The memory of which half is left after `half_life_s`."""
    return half_life_s / _LN_2
