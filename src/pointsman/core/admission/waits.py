"""Foretells how long a request waits, from mean times and the rates at which requests come.

By Little's law, what passes through a stage in a second is what is in it, divided by the mean time
spent there. So the nodes take in, of a model's requests:

    drain = max(prefills / mean time to first token, in flight / mean execution time)      [1/s]
    wait  = position / (drain - overtaking)                                                [s]

In a steady overload both stages are equally fast; while nodes fill up the first one says how fast.
`overtaking` is the rate at which more urgent requests come for the model: they take the room that
becomes free. Where they take all of it, the wait is without end. Times run from placement,
with the engine's own queue in them, as the law has it.
"""

from collections import OrderedDict
from math import inf
from typing import Final

from pointsman.core.ids import ModelName
from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_LOW
from pointsman.core.recent import RecentMean, mean_of

_MODELS_MAX: Final = 1_024
_SAMPLES_MIN: Final = 8
_WINDOW_S: Final = 5.0

URGENCIES: Final = 3


def urgency(priority: int) -> int:
    """The class of a priority: 0 high, 1 normal, 2 low."""
    if priority >= PRIORITY_HIGH:
        return 0
    return 2 if priority <= PRIORITY_LOW else 1


class MeanTimes:
    """Mean times by model: over all samples at first, then over the last 50 or so."""

    def __init__(self) -> None:
        self._means: OrderedDict[ModelName, RecentMean] = OrderedDict()

    def took(self, model: ModelName, seconds: float) -> None:
        """Count one sample of this model."""
        mean_of(self._means, model, _MODELS_MAX).add(seconds)

    def mean_s(self, model: ModelName) -> float | None:
        """The mean; None until there were a few samples."""
        mean = self._means.get(model)
        return None if mean is None or mean.count < _SAMPLES_MIN else max(mean.value, 1e-6)


class Rate:
    """Events a second, over the present window of five seconds and the one before it."""

    __slots__ = ("_before", "_count", "_since_s")

    def __init__(self) -> None:
        self._since_s = -inf
        self._count = 0
        self._before = 0

    def add(self, now_s: float) -> None:
        """Count one event."""
        self._turn(now_s)
        self._count += 1

    def per_s(self, now_s: float) -> float:
        self._turn(now_s)
        return (self._before + self._count) / (_WINDOW_S + now_s - self._since_s)

    def _turn(self, now_s: float) -> None:
        elapsed_s = now_s - self._since_s
        if elapsed_s < _WINDOW_S:
            return
        self._before = self._count if elapsed_s < 2 * _WINDOW_S else 0
        self._since_s = now_s
        self._count = 0
