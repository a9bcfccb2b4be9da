"""Every metric of the request path. Names begin with `pointsman_`, labels are bounded.

A model is a label only while the cluster serves it, everything else is `other`: the name
comes from the client's body, and a thousand bogus ones must not become a thousand series.
Tenants are never labels. What a request changes is resolved once for its combination of
labels, so that the whole of it costs a few microseconds.
"""

from collections.abc import Callable, Container, Iterable
from enum import StrEnum

from prometheus_client.registry import CollectorRegistry

from pointsman.core.errors import Reason
from pointsman.core.exchange_record import ExchangeRecord
from pointsman.core.ids import ModelName
from pointsman.telemetry.instruments import OTHER, Counter, CounterChild, Histogram, HistogramChild

TTFT_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
    *(1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
TPOT_BOUNDS_S = (
    *(0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0),
)
E2E_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0)
QUEUE_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
DECISION_BOUNDS_S = (
    *(10e-6, 20e-6, 40e-6, 80e-6, 150e-6, 300e-6, 500e-6),
    *(1e-3, 2e-3, 3e-3, 5e-3, 10e-3, 50e-3),
)
COMBINATIONS_MAX = 20_000
"""Resolved label combinations kept; then the cache starts anew."""

NO_NODE = "none"
"""The node of requests that were placed on none."""


class RequestMetrics:
    """Counts finished requests (`exchange_ended`, `client_refused`) and what the scheduler
    service sees (`decided`, `slo_met`). `served` tells which models may be labels."""

    def __init__(
        self, registry: CollectorRegistry, served: Callable[[], Container[ModelName]]
    ) -> None:
        self._served = served
        self._ends: dict[tuple[object, ...], _Ended] = {}
        self._flows: dict[tuple[ModelName, str | None], _Flow] = {}
        self._families = _Families(registry)
        self._decision = Histogram(
            registry,
            "pointsman_decision_seconds",
            "Time of one placement decision, index lookup and cost rows included.",
            bounds=DECISION_BOUNDS_S,
        ).labels()

    def exchange_ended(self, record: ExchangeRecord) -> None:
        """Count a request that is over."""
        key = (record.model, record.endpoint, record.status, record.end, record.reason)
        ended = self._ends.get(key)
        if ended is None:
            ended = self._ends[key] = self._resolve_end(record)
        ended.requests.value += 1
        if ended.refusals is not None:
            ended.refusals.value += 1
        flow = self._flows.get((record.model, record.node))
        if flow is None:
            flow = self._flows[record.model, record.node] = self._resolve_flow(record)
        flow.count(record)

    def client_refused(self, reason: Reason) -> None:
        """Count a client that was turned away before it had a request."""
        self._families.refusals.labels(reason, OTHER).add()

    def replayed(self, result: StrEnum) -> None:
        """Count a request that was replayed to warm a node up."""
        self._families.replays.labels(result).add()

    def decided(self, seconds: float) -> None:
        """Count a decision's own time."""
        self._decision.observe(seconds)

    def slo_met(self, model: ModelName, met: bool) -> None:
        """Count a request that carried a time-to-first-token objective."""
        outcome = "met" if met else "missed"
        self._families.slo.labels(self._label(model), outcome).add()

    def refresh_labels(self, nodes: Iterable[str]) -> None:
        """Resolve labels anew: other models may be served. These are the nodes there are; the
        series of others end, so that names which never come back do not take up all room."""
        self._ends.clear()
        self._flows.clear()
        self._families.keep_nodes({*nodes, NO_NODE})

    def _resolve_end(self, record: ExchangeRecord) -> "_Ended":
        if len(self._ends) >= COMBINATIONS_MAX:
            self._ends.clear()
        model, endpoint = self._label(record.model), record.endpoint
        status = "none" if record.status is None else f"{record.status // 100}xx"
        requests = self._families.requests.labels(model, endpoint, status, record.end)
        reason = record.reason
        return _Ended(requests, self._families.refusals.labels(reason, model) if reason else None)

    def _resolve_flow(self, record: ExchangeRecord) -> "_Flow":
        if len(self._flows) >= COMBINATIONS_MAX:
            self._flows.clear()
        return _Flow(self._families, self._label(record.model), record.node or NO_NODE)

    def _label(self, model: ModelName) -> str:
        return model if model in self._served() else OTHER


class _Families:
    """The families, each with its help."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(registry, f"pointsman_{name}", help_, labels)

        def histogram(name: str, help_: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(registry, f"pointsman_{name}", help_, ("model",), bounds=bounds)

        self.requests = counter(
            "requests", "Requests that ended.", "model", "endpoint", "status", "end"
        )
        self.refusals = counter(
            "refusals", "Answers of the gateway's own, by reason.", "reason", "model"
        )
        self.retries = counter("retries", "Attempts after the first one.", "model")
        self.replays = counter(
            "warm_up_replays", "Requests replayed to warm nodes up, by result.", "result"
        )
        self.slo = counter(
            "slo_requests", "Requests with a TTFT objective, by outcome.", "model", "outcome"
        )
        self.ttft = histogram(
            "ttft_seconds", "Arrival to first byte for the client.", TTFT_BOUNDS_S
        )
        self.tpot = histogram("tpot_seconds", "Mean time of an output token.", TPOT_BOUNDS_S)
        self.e2e = histogram("e2e_seconds", "Arrival to the end of the answer.", E2E_BOUNDS_S)
        self.queue = histogram("queue_seconds", "Arrival to first placement.", QUEUE_BOUNDS_S)
        self.prompt = counter("prompt_tokens", "Prompt tokens, as the engines count.", "model")
        self.output = counter("output_tokens", "Generated tokens.", "model")
        self.predicted = counter(
            "cached_tokens_predicted", "Cached prompt tokens we expected.", "model", "node"
        )
        self.reported = counter(
            "cached_tokens_reported", "Cached prompt tokens engines reported.", "model", "node"
        )
        self.unreported = counter(
            "cached_tokens_unreported_requests",
            "Answers that do not say how much was cached: the reported ratio is unknown there.",
            "model",
            "node",
        )

    def keep_nodes(self, names: Container[str]) -> None:
        for family in (self.predicted, self.reported, self.unreported):
            family.keep("node", names)


class _Ended:
    """The counters of one way to end."""

    __slots__ = ("refusals", "requests")

    def __init__(self, requests: CounterChild, refusals: CounterChild | None) -> None:
        self.requests = requests
        self.refusals = refusals


class _Flow:
    """The series of one model on one node."""

    __slots__ = (
        "_e2e",
        "_output",
        "_predicted",
        "_prompt",
        "_queue",
        "_reported",
        "_retries",
        "_tpot",
        "_ttft",
        "_unreported",
    )

    def __init__(self, families: _Families, model: str, node: str) -> None:
        self._ttft: HistogramChild = families.ttft.labels(model)
        self._tpot: HistogramChild = families.tpot.labels(model)
        self._e2e: HistogramChild = families.e2e.labels(model)
        self._queue: HistogramChild = families.queue.labels(model)
        self._retries: CounterChild = families.retries.labels(model)
        self._prompt: CounterChild = families.prompt.labels(model)
        self._output: CounterChild = families.output.labels(model)
        self._predicted: CounterChild = families.predicted.labels(model, node)
        self._reported: CounterChild = families.reported.labels(model, node)
        self._unreported: CounterChild = families.unreported.labels(model, node)

    def count(self, record: ExchangeRecord) -> None:
        if record.queue_s is not None:
            self._queue.observe(record.queue_s)
        if record.attempts > 1:
            self._retries.value += record.attempts - 1
        ttft_s = record.ttft_s
        if ttft_s is None:
            return  # nothing was answered: no latency, no tokens
        self._e2e.observe(record.e2e_s)
        if record.streamed:
            self._ttft.observe(ttft_s)
        self._count_tokens(record, ttft_s)

    def _count_tokens(self, record: ExchangeRecord, ttft_s: float) -> None:
        output = record.output_tokens
        if output is None:
            output = record.streamed_tokens
        self._output.value += output
        if record.streamed and output > 1:
            self._tpot.observe((record.e2e_s - ttft_s) / (output - 1))
        if record.prompt_tokens is not None:
            self._prompt.value += record.prompt_tokens
        if record.cached_tokens_predicted is not None:
            self._predicted.value += record.cached_tokens_predicted
        if record.cached_tokens is None:
            self._unreported.value += 1
        else:
            self._reported.value += record.cached_tokens
