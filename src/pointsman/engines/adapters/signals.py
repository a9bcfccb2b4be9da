"""A metrics page as the core wants it."""

from pointsman.core.events import NodeSignals
from pointsman.wire.engine_metrics import EngineSignals


def node_signals(page: EngineSignals) -> NodeSignals:
    """The load signals of a page; what it does not say stays None."""
    return NodeSignals(
        running=page.running,
        waiting=page.waiting,
        kv_usage=page.kv_usage,
        prefix_queries=page.prefix_queries,
        prefix_hits=page.prefix_hits,
        preemptions=page.preemptions_total,
    )
