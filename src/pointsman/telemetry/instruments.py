"""Counters and histograms for one thread, exposed through a prometheus_client registry.

prometheus_client's own take a lock for every change, 0.5 to 2 us each; a request changes a
dozen. These are plain attributes (0.1 to 0.3 us) and become metric families only when
scraped. Resolve children once and keep them.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

CHILDREN_MAX = 10_000
"""Label combinations of one metric. Beyond it every new one is counted as `other`: a series
costs memory here and far more of it in the database that scrapes us."""

OTHER: Final = "other"


class CounterChild:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class HistogramChild:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


C = TypeVar("C")


class _Family(Generic[C]):
    """Series of one name, told apart by the values of its labels."""

    def __init__(
        self, name: str, help_: str, labels: Sequence[str], new_child: Callable[[], C]
    ) -> None:
        self._name, self._help, self._labels = name, help_, tuple(labels)
        self._new_child = new_child
        self._children: dict[tuple[str, ...], C] = {}

    def labels(self, *values: str) -> C:
        """The child with these label values, made if it is new."""
        assert len(values) == len(self._labels), (self._name, values)
        child = self._children.get(values)
        if child is None:
            is_full = len(self._children) >= CHILDREN_MAX
            key = (OTHER,) * len(values) if is_full else values
            child = self._children.setdefault(key, self._new_child())
        return child

    def keep(self, label: str, values: Container[str]) -> None:
        """Drop the series whose `label` has none of these values: of nodes that are gone. What
        is counted as `other` stays."""
        at = self._labels.index(label)
        for key in [k for k in self._children if k[at] != OTHER and k[at] not in values]:
            del self._children[key]


class Counter(_Family[CounterChild]):
    """A family of counters; `name` without the `_total` that exposition adds."""

    def __init__(
        self, registry: CollectorRegistry, name: str, help_: str, labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, help_, labels, CounterChild)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class Histogram(_Family[HistogramChild]):
    """A family of histograms with the same bucket bounds, ascending."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        help_: str,
        labels: Sequence[str] = (),
        *,
        bounds: Sequence[float],
    ) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        super().__init__(name, help_, labels, partial(HistogramChild, tuple(bounds)))
        self._names = [*[repr(float(bound)) for bound in bounds], "+Inf"]
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, child in self._children.items():
            cumulated = accumulate(child.counts)
            buckets = list(zip(self._names, map(float, cumulated), strict=True))
            family.add_metric(values, buckets=buckets, sum_value=child.total)
        yield family
