"""The cluster's gauges, read from the scheduler at the moment they are scraped.

Nothing is kept between scrapes: a node that is gone has no series, and a signal that no
engine gave is absent, not 0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TypeAlias, TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

from pointsman.core.admission.gate import Watermark
from pointsman.core.admission.retry_guard import RetryGuard
from pointsman.core.health import SERVING, Cause, Health
from pointsman.core.request_events import CompensationCause
from pointsman.core.scheduler import Scheduler
from pointsman.core.views import HOT_PREFIXES_SHOWN, AdmissionView, HotPrefixView, NodeView

_T = TypeVar("_T")
_Gauge: TypeAlias = tuple[str, str, Callable[[_T], float | None]]

_NODE_GAUGES: Sequence[_Gauge[NodeView]] = (
    ("inflight", "Our requests in flight.", lambda n: n.inflight),
    ("weight", "Share of its peers' work that it may have, 0 to 1.", lambda n: n.weight),
    ("failures", "Requests in a row that came to nothing there.", lambda n: n.failures),
    ("foreign", "Requests there that are not ours, as scraped.", lambda n: n.foreign),
    ("running", "Requests the engine says it runs.", lambda n: n.signals.running),
    ("waiting", "Requests the engine says wait in it.", lambda n: n.signals.waiting),
    ("kv_usage_ratio", "Share of KV blocks that requests hold.", lambda n: n.signals.kv_usage),
    ("gpu_busy_ratio", "Share of time its GPU computed.", lambda n: n.signals.gpu_busy),
    (
        "gpu_memory_busy_ratio",
        "Share of time its GPU moved memory.",
        lambda n: n.signals.gpu_memory_busy,
    ),
    (
        "gpu_temperature_celsius",
        "Its hottest GPU's temperature.",
        lambda n: n.signals.gpu_temperature_c,
    ),
    ("gpu_power_watts", "What its GPUs draw.", lambda n: n.signals.gpu_power_w),
    (
        "tcp_retransmit_ratio",
        "TCP segments sent again on its machine, of all sent.",
        lambda n: n.signals.retransmit_ratio,
    ),
    ("signals_age_seconds", "Age of the last scrape.", lambda n: n.signals_age_s),
    ("queue_seconds", "Prefill work placed there and not begun.", lambda n: n.queue_s),
    ("remaining_seconds", "All work left there.", lambda n: n.remaining_s),
    ("kv_blocks_leased", "KV blocks leased by the ledger.", lambda n: n.kv_blocks_leased),
    (
        "kv_blocks_reserved",
        "Of these, those of requests without a token yet.",
        lambda n: n.kv_blocks_reserved,
    ),
    ("kv_blocks", "KV blocks the engine has.", lambda n: n.kv_blocks),
    ("index_blocks", "Blocks the index believes are cached there.", lambda n: n.index_blocks),
    ("hit_tokens_predicted", "Cached tokens expected there.", lambda n: n.cached_tokens_predicted),
    ("hit_tokens_reported", "Cached tokens it reported.", lambda n: n.cached_tokens_reported),
    ("hit_match_ratio", "Answers whose hit was as expected, of late.", lambda n: n.hit_match_share),
    ("calibrated", "1 if its speeds are learned, 0 if assumed.", lambda n: n.calibrated),
)

_PREFIX_GAUGES: Sequence[_Gauge[HotPrefixView]] = (
    ("share", "Share of its model's requests, the hottest first.", lambda p: p.share),
    ("tokens", "Its length in tokens.", lambda p: p.tokens),
    ("holders", "Nodes that hold it.", lambda p: len(p.holders)),
    ("hit_ratio", "Share of its requests that went to a holder.", lambda p: p.hit_share),
)

_LEVELS = {Watermark.GREEN: 0, Watermark.YELLOW: 1, Watermark.RED: 2}

_ADMISSION_GAUGES: Sequence[_Gauge[AdmissionView]] = (
    ("load_ratio", "Share taken of slots or KV blocks.", lambda m: m.load),
    ("backlog_ratio", "Share of the prompts that may wait on engines.", lambda m: m.backlog),
    ("low_ratio", "What low priority holds.", lambda m: m.low_share),
    ("long_ratio", "What very long prompts hold.", lambda m: m.long_share),
    ("watermark", "0 green, 1 yellow, 2 red.", lambda m: _LEVELS[m.watermark]),
    ("expected_wait_seconds", "What who has to wait may expect.", lambda m: m.wait_s),
)

_STATS = (
    ("arrived", "Requests that reached the scheduler."),
    ("placed", "Placements, retries included."),
    ("held", "Requests that had to wait in the central queue."),
    ("refused", "Requests the scheduler refused."),
    ("retried", "Placements after a failed attempt."),
    ("recalled", "Placements taken back before their first byte."),
    ("settled", "Requests that are over."),
    ("stale_events", "Events about nodes or requests that had ended."),
    ("rebooked", "First tokens of requests that had been compensated."),
)


class ClusterMetrics:
    """A prometheus_client collector over one scheduler."""

    def __init__(
        self, registry: CollectorRegistry, scheduler: Scheduler, now_s: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._now_s = now_s
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        scheduler, now_s = self._scheduler, self._now_s()
        nodes = scheduler.nodes(now_s)
        yield from _gauges("node", "node", _NODE_GAUGES, [(node.name, node) for node in nodes])
        yield _states(nodes)
        yield _trust(nodes)
        yield from _spread(nodes)
        yield from self._totals()
        models = [(model.model, model) for model in scheduler.admission(now_s)]
        yield from _gauges("admission", "model", _ADMISSION_GAUGES, models)
        yield _lanes(scheduler.held_by_lane)
        # By rank: as a label of its own, each that comes and goes would be one more for ever.
        hottest = enumerate(scheduler.hot_prefixes(HOT_PREFIXES_SHOWN, now_s), 1)
        ranks = [(str(rank), prefix) for rank, prefix in hottest]
        yield from _gauges("hot_prefix", "rank", _PREFIX_GAUGES, ranks)

    def _totals(self) -> Iterator[Metric]:
        scheduler = self._scheduler
        yield _gauge("queue_depth", "Requests in the central queue.", scheduler.held)
        yield _gauge("inflight", "Placed requests that are not over.", scheduler.in_flight)
        yield _gauge("index_bytes", "Memory of the prefix index.", scheduler.index_bytes)
        policy = GaugeMetricFamily(
            "pointsman_policy", "1 for the policy in force.", labels=["policy"]
        )
        policy.add_metric((scheduler.policy,), 1)
        yield policy
        yield _turns(scheduler.turned)
        yield _compensations(scheduler.compensations)
        yield from _storms(scheduler.guard)
        for name, help_ in _STATS:
            family = CounterMetricFamily(f"pointsman_scheduler_{name}", help_)
            family.add_metric((), getattr(scheduler.stats, name))
            yield family


def _gauges(
    subject: str, label: str, gauges: Sequence[_Gauge[_T]], labelled: Sequence[tuple[str, _T]]
) -> Iterator[Metric]:
    """A family for each of `gauges`, with a sample for whoever has a value."""
    for name, help_, read in gauges:
        family = GaugeMetricFamily(f"pointsman_{subject}_{name}", help_, labels=(label,))
        for value_of, one in labelled:
            value = read(one)
            if value is not None:
                family.add_metric((value_of,), value)
        yield family


def _lanes(held: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(
        "pointsman_queue_lane_depth",
        "Requests in the central queue, by class of size (tokens, at most).",
        labels=("lane",),
    )
    for lane, count in held.items():
        family.add_metric((lane,), count)
    return family


class StateMetrics:
    """Every number of a state struct as a gauge: `prefix` and the field's name."""

    def __init__(
        self, registry: CollectorRegistry, prefix: str, read: Callable[[], msgspec.Struct]
    ) -> None:
        self._prefix = prefix
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for name, value in msgspec.structs.asdict(self._read()).items():
            if value is not None:
                help_ = f"{name.replace('_', ' ').capitalize()}."
                yield GaugeMetricFamily(f"{self._prefix}_{name}", help_, value=value)


def _states(nodes: Iterable[NodeView]) -> Metric:
    family = GaugeMetricFamily(
        "pointsman_node_state", "1 for the state a node is in.", labels=("node", "state")
    )
    for node in nodes:
        draining = node.draining and node.health in SERVING
        family.add_metric((node.name, "draining" if draining else node.health), 1)
    return family


def _turns(counts: Mapping[tuple[Health, Cause], int]) -> Metric:
    family = CounterMetricFamily(
        "pointsman_node_turns",
        "Changes of a node's health, by what it came to and why.",
        labels=("state", "cause"),
    )
    for (state, cause), count in counts.items():
        family.add_metric((state, cause), count)
    return family


def _compensations(counts: Mapping[CompensationCause, int]) -> Metric:
    family = CounterMetricFamily(
        "pointsman_compensations",
        "Requests whose KV blocks and place were given back before anybody told of their end: "
        "missing, the engine did not count them; silent, no request may last as long.",
        labels=("cause",),
    )
    for cause in CompensationCause:
        family.add_metric((cause,), counts.get(cause, 0))
    return family


def _trust(nodes: Iterable[NodeView]) -> Metric:
    family = GaugeMetricFamily(
        "pointsman_node_index_trust",
        "1 for how far the index is believed: history, exact, degraded, distrusted.",
        labels=("node", "trust"),
    )
    for node in nodes:
        family.add_metric((node.name, node.index_trust), 1)
    return family


def _spread(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    """How unequal the nodes that serve are: the figure a scheduler exists to keep small."""
    serving = [node for node in nodes if node.health in SERVING and not node.draining]
    for name, help_, values in (
        ("load", "In-flight requests", [float(node.inflight) for node in serving]),
        ("remaining_seconds", "Work left", [node.remaining_s for node in serving]),
    ):
        deviation = pstdev(values) if values else 0.0
        yield _gauge(f"{name}_deviation", f"{help_}: standard deviation over nodes.", deviation)
        yield _gauge(f"{name}_mean", f"{help_}: mean over nodes.", fmean(values or [0.0]))


def _storms(guard: RetryGuard) -> Iterator[Metric]:
    """How often requests come again, what that costs, and what is done about it."""
    amplification = GaugeMetricFamily(
        "pointsman_retry_amplification",
        "Attempts for each distinct request, of late: arrivals here, placements on engines.",
        labels=("at",),
    )
    amplification.add_metric(("gateway",), guard.amplification.at_gateway)
    amplification.add_metric(("engines",), guard.amplification.at_engines)
    yield amplification
    repeats = CounterMetricFamily(
        "pointsman_retry_repeats",
        "Requests that came again after a refusal, or after their client gave up on them.",
        labels=("after",),
    )
    repeats.add_metric(("refusal",), guard.repeats_after_refusal)
    repeats.add_metric(("giving_up",), guard.repeats_after_giving_up)
    yield repeats
    penalties = CounterMetricFamily(
        "pointsman_retry_penalties", "Requests refused first since they came too early."
    )
    penalties.add_metric((), guard.penalties)
    yield penalties


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pointsman_{name}", help_, value=value)
