"""What the collectors count about each node: probes, scrapes, cache events."""

from prometheus_client.registry import CollectorRegistry

from pointsman.core.ids import NodeName
from pointsman.telemetry.instruments import Counter


class NodeTally:
    """One node's counters, resolved."""

    def __init__(self, metrics: "CollectorMetrics", name: NodeName) -> None:
        self.probes_good = metrics.probes.labels(name, "good")
        self.probes_failed = metrics.probes.labels(name, "failed")
        self.probes_busy = metrics.probes.labels(name, "busy")
        self.scrapes_good = metrics.scrapes.labels(name, "good")
        self.scrapes_failed = metrics.scrapes.labels(name, "failed")
        self.restarts = metrics.restarts.labels(name)
        self.event_messages = metrics.event_messages.labels(name, "taken")
        self.event_duplicates = metrics.event_messages.labels(name, "duplicate")
        self.event_foreign = metrics.event_messages.labels(name, "foreign_topic")
        self.event_malformed = metrics.event_messages.labels(name, "malformed")
        self.event_dropped = metrics.event_messages.labels(name, "dropped")
        self.event_gaps = metrics.event_gaps.labels(name)
        self.event_losses = metrics.event_losses.labels(name)
        self.event_replays = metrics.event_replays.labels(name)
        self.agent_beats = metrics.agent_beats.labels(name)
        self.agent_gaps = metrics.agent_gaps.labels(name)
        self.agent_losses = metrics.agent_losses.labels(name)
        self.index_drifts = metrics.index_drifts.labels(name)


class CollectorMetrics:
    """The families; `node` gives one node's series and `forget` drops them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.probes = Counter(
            registry,
            "pointsman_probes",
            "Health probes by outcome; busy: no answer, but the engine serves.",
            ("node", "result"),
        )
        self.scrapes = Counter(
            registry, "pointsman_scrapes", "Scrapes of an engine's metrics.", ("node", "result")
        )
        self.restarts = Counter(
            registry, "pointsman_node_restarts", "Engine restarts that were noticed.", ("node",)
        )
        self.event_messages = Counter(
            registry, "pointsman_kv_event_messages", "KV-event messages.", ("node", "result")
        )
        self.event_gaps = Counter(
            registry, "pointsman_kv_event_gaps", "Gaps in the sequence of KV events.", ("node",)
        )
        self.event_losses = Counter(
            registry,
            "pointsman_kv_event_losses",
            "Gaps that no replay could fill; the index is degraded from there on.",
            ("node",),
        )
        self.event_replays = Counter(
            registry, "pointsman_kv_event_replays", "Replays of KV events asked for.", ("node",)
        )

        self.agent_beats = Counter(
            registry, "pointsman_agent_heartbeats", "Heartbeats of a node's agent.", ("node",)
        )
        self.agent_gaps = Counter(
            registry, "pointsman_agent_gaps", "Heartbeats that never came.", ("node",)
        )
        self.agent_losses = Counter(
            registry,
            "pointsman_agent_losses",
            "Connections to a node's agent that broke.",
            ("node",),
        )
        self.index_drifts = Counter(
            registry,
            "pointsman_index_drifts",
            "Heartbeats by which the index differed from what its agent has; it is healed then.",
            ("node",),
        )

        self._plain = (
            *(self.restarts, self.event_gaps, self.event_losses, self.event_replays),
            *(self.agent_beats, self.agent_gaps, self.agent_losses, self.index_drifts),
        )

    def node(self, name: NodeName) -> NodeTally:
        return NodeTally(self, name)

    def forget(self, name: NodeName) -> None:
        """The node is gone: so are its series."""
        for family in (self.probes, self.scrapes):
            for result in ("good", "failed", "busy"):
                family.remove(name, result)
        for result in ("taken", "duplicate", "foreign_topic", "malformed", "dropped"):
            self.event_messages.remove(name, result)
        for family in self._plain:
            family.remove(name)
