"""The highest speed at which enough requests are within the objective."""

from collections.abc import Callable
from math import sqrt

from pointsman.report.replay.study import SweepPoint

DOUBLINGS_MAX = 8
"""In either direction from where the search starts: 1/256 to 256 times the trace's own speed."""
RESOLUTION = 1.02
"""The bracket's upper speed over the lower one at which the search ends."""


def search(
    evaluate: Callable[[float], SweepPoint], *, target: float
) -> tuple[SweepPoint | None, tuple[SweepPoint, ...]]:
    """The best point and all that were tried, by speed; factors start from 1.

    Doubles or halves until the target lies between two speeds, then bisects between them, on a
    logarithmic scale. That finds one crossing; a policy whose attainment falls and rises again
    has others. None where the target is not met at the lowest speed either.
    """
    tried: dict[float, SweepPoint] = {}

    def holds(factor: float) -> bool:
        tried[factor] = evaluate(factor)
        return tried[factor].slo_attainment >= target

    low, high = _bracket(holds)
    while low is not None and high is not None and high / low > RESOLUTION:
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    ordered = tuple(tried[factor] for factor in sorted(tried))
    return None if low is None else tried[low], ordered


def _bracket(holds: Callable[[float], bool]) -> tuple[float | None, float | None]:
    """(the highest factor that holds, the lowest that does not), as far as looked."""
    factor = 1.0
    held = holds(factor)
    for _ in range(DOUBLINGS_MAX):
        before, factor = factor, factor * (2 if held else 0.5)
        if holds(factor) != held:
            return (before, factor) if held else (factor, before)
    return (factor, None) if held else (None, factor)
