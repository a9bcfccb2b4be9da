"""Engines that call themselves busy: how much they are sent from then on.

An engine that answers "busy" has a limit of its own, lower than what is believed: a queue bound,
or work of others. It gets no more than it had until a second has passed, and then a tenth more
each second, or one: so newcomers go elsewhere or wait centrally, where they are in order, instead
of being told so by the engine one by one.
"""

from collections.abc import Iterable

from pointsman.core.limits import BUSY_MEMORY_S
from pointsman.core.node import Node


def narrow(node: Node, now_s: float) -> None:
    """It said that it can take no more than it has."""
    node.concurrency_max = min(node.concurrency_max, node.inflight)
    node.widens_at_s = now_s + BUSY_MEMORY_S


def widen(nodes: Iterable[Node], now_s: float) -> None:
    """Try those that were busy with a little more."""
    for node in nodes:
        if node.concurrency_max < node.concurrency_configured and now_s >= node.widens_at_s:
            wider = node.concurrency_max + max(1, node.concurrency_max // 10)
            node.concurrency_max = min(node.concurrency_configured, wider)
            node.widens_at_s = now_s + BUSY_MEMORY_S
