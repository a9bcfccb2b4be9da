"""What the collectors count about each node: probes, scrapes, cache events."""

from collections.abc import Container

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
    """The families; `node` gives one node's series, `keep` drops those of others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families: list[Counter] = []

        def counter(name: str, help_: str, *labels: str) -> Counter:
            made = Counter(registry, name, help_, ("node", *labels))
            self._families.append(made)
            return made

        self.probes = counter(
            "pointsman_probes",
            "Health probes by outcome; busy: no answer, but the engine serves.",
            "result",
        )
        self.scrapes = counter("pointsman_scrapes", "Scrapes of an engine's metrics.", "result")
        self.restarts = counter("pointsman_node_restarts", "Engine restarts that were noticed.")
        self.event_messages = counter("pointsman_kv_event_messages", "KV-event messages.", "result")
        self.event_gaps = counter("pointsman_kv_event_gaps", "Gaps in the sequence of KV events.")
        self.event_losses = counter(
            "pointsman_kv_event_losses",
            "Gaps that no replay could fill; the index is degraded from there on.",
        )
        self.event_replays = counter(
            "pointsman_kv_event_replays", "Replays of KV events asked for."
        )
        self.agent_beats = counter("pointsman_agent_heartbeats", "Heartbeats of a node's agent.")
        self.agent_gaps = counter("pointsman_agent_gaps", "Heartbeats that never came.")
        self.agent_losses = counter(
            "pointsman_agent_losses", "Connections to a node's agent that broke."
        )
        self.index_drifts = counter(
            "pointsman_index_drifts",
            "Heartbeats by which the index differed from what its agent has; it is healed then.",
        )

    def node(self, name: NodeName) -> NodeTally:
        return NodeTally(self, name)

    def keep(self, names: Container[str]) -> None:
        """Drop the series of all other nodes: they are gone."""
        for family in self._families:
            family.keep("node", names)
