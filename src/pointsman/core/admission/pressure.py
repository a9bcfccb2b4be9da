"""Says how long refused clients should wait, so that they come back spread out and not in step.

Who is refused comes again. If r are refused for each one placed, they should come back over r more
seconds than the least wait; otherwise each second brings all of them. Up to a half is added by
chance, so that those who were refused together, by a restart or a full queue, come apart.
"""

from random import Random
from typing import Final

from pointsman.core.faded import left, memory_s
from pointsman.core.limits import RETRY_AFTER_MAX_S

PRESSURE_S_MAX: Final = 10.0
"""The most that pressure adds, in seconds. Who waits longer leaves room unused when the trouble is
over."""

JITTER: Final = 0.5
"""The most that chance adds, as a share. Chance never shortens a wait: who comes early is turned
away."""

_MEMORY_S: Final = memory_s(10.0)
_FADE_S: Final = 0.25


class Pressure:
    """Counts refusals for each placement, of late."""

    def __init__(self) -> None:
        self._refused = 0.0
        self._placed = 0.0
        self._at_s = 0.0

    def refused(self, now_s: float) -> None:
        """A request was refused that had not come too early."""
        self._fade(now_s)
        self._refused += 1.0

    def placed(self, now_s: float) -> None:
        """A request was placed."""
        self._fade(now_s)
        self._placed += 1.0

    def wait_s(self, least_s: float, now_s: float) -> float:
        """`least_s` with what pressure adds."""
        self._fade(now_s)
        return least_s + min(PRESSURE_S_MAX, self._refused / max(1.0, self._placed))

    def _fade(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s >= _FADE_S:
            share = left(elapsed_s, _MEMORY_S)
            self._refused *= share
            self._placed *= share
            self._at_s = now_s


def spread_s(wait_s: float, rng: Random) -> float:
    """`wait_s` with jitter, within what a client may be told."""
    return min(RETRY_AFTER_MAX_S, jittered_s(wait_s, rng))


def jittered_s(wait_s: float, rng: Random) -> float:
    """Up to half as much longer, so that those who are turned away together come back apart."""
    return wait_s * (1.0 + JITTER * rng.random())
