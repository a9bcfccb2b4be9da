"""What is kept of the latest: means that follow, and maps of the keys that were used last."""

from collections import OrderedDict
from typing import Final, TypeVar

_SMOOTHING_MIN: Final = 0.02  # a memory of 50 values

_K = TypeVar("_K")
_V = TypeVar("_V")


class RecentMean:
    """A mean of all values at first, then of the last 50 or so."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self.count += 1
        self.value += max(_SMOOTHING_MIN, 1.0 / self.count) * (value - self.value)


def mean_of(means: OrderedDict[_K, RecentMean], key: _K, count_max: int) -> RecentMean:
    """The mean of `key`, made if need be, as the one used last."""
    mean = means.get(key)
    if mean is None:
        mean = RecentMean()
        keep(means, key, mean, count_max)
    else:
        means.move_to_end(key)
    return mean


def keep(latest: OrderedDict[_K, _V], key: _K, value: _V, count_max: int) -> None:
    """Set `key` as the one used last; of more than `count_max` the one unused for longest goes."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > count_max:
        latest.popitem(last=False)
