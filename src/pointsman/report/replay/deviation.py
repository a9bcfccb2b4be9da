"""How unevenly nodes are loaded: sigma / mu between them, over the samples of a series.

Samples in which no node has work are left out: an idle cluster is neither even nor uneven. Sigma
is the population's. 0 is perfectly even; one busy node of N gives sqrt(N - 1).
"""

from collections.abc import Callable, Iterable, Sequence
from math import sqrt

from pointsman.traffic.replayed import NodeSeries, Series


def load_deviation(series: Series) -> float | None:
    """Of requests on the nodes; None where none has any, or there is only one node."""
    return mean(sigma / mu for mu, sigma in spreads(series, load))


def load(node: NodeSeries) -> Sequence[float]:
    """Requests on it, running or waiting, sample by sample."""
    return [running + waiting for running, waiting in zip(node.running, node.waiting, strict=True)]


def spreads(
    series: Series, of: Callable[[NodeSeries], Sequence[float]]
) -> Iterable[tuple[float, float]]:
    """(mu, sigma) between the nodes of each sample in which any of them has work."""
    nodes = [of(node) for node in series.nodes]
    if len(nodes) < 2:
        return
    for sample in zip(*nodes, strict=True):
        mu = sum(sample) / len(sample)
        if mu > 0:
            yield mu, sqrt(sum((value - mu) ** 2 for value in sample) / len(sample))


def mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
