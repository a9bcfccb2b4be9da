"""Measures a retry storm: how many attempts a request has cost of late.

At the gateway that is arrivals for each distinct request. At the engines it is placements for each
distinct request that came so far. 1 means no repeats. Counts fade with a half-life of a minute, all
by the same factor, so that their ratios need no clock.
"""

from typing import Final

from pointsman.core.faded import left, memory_s

HALF_LIFE_S: Final = 60.0

_MEMORY_S: Final = memory_s(HALF_LIFE_S)

_FADE_S: Final = 1.0
"""Counts fade in steps of this length: a power for every single request would be wasted work."""


class Amplification:
    """Counts of arrivals and placements, and of those among them that are repeats."""

    def __init__(self) -> None:
        self._arrivals = 0.0
        self._repeats = 0.0
        self._placements = 0.0
        self._replacements = 0.0
        self._at_s = 0.0

    def arrived(self, now_s: float) -> None:
        """A request is here, for the first time or not."""
        if now_s - self._at_s >= _FADE_S:
            self._fade(now_s)
        self._arrivals += 1.0

    def repeated(self) -> None:
        """The request that arrived last had been here before."""
        self._repeats += 1.0

    def placed(self, *, again: bool) -> None:
        """A request goes to an engine; `again` if it had gone to one before."""
        self._placements += 1.0
        if again:
            self._replacements += 1.0

    @property
    def at_gateway(self) -> float:
        """Arrivals for each distinct request."""
        return _ratio(self._arrivals, self._repeats)

    @property
    def at_engines(self) -> float:
        """Placements for each distinct request that was placed."""
        return _ratio(self._placements, self._replacements)

    def _fade(self, now_s: float) -> None:
        share = left(now_s - self._at_s, _MEMORY_S)
        self._arrivals *= share
        self._repeats *= share
        self._placements *= share
        self._replacements *= share
        self._at_s = now_s


def _ratio(all_: float, repeats: float) -> float:
    """Attempts for each distinct request. At least one is counted as distinct: it may have faded
    away while its repeats go on."""
    return max(1.0, all_ / max(1.0, all_ - repeats)) if all_ else 1.0
