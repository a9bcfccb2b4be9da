"""What a finished request adds to the metrics."""

import pytest
from prometheus_client import CollectorRegistry

from pointsman.core.errors import EndCause, Reason
from pointsman.core.ids import ModelName, NodeName
from pointsman.telemetry import instruments
from pointsman.telemetry import metrics as metrics_module
from pointsman.telemetry.metrics import RequestMetrics
from tests.telemetry.records import STREAMED, refused


class Metrics:
    """Request metrics over a registry, with one served model."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.served = {ModelName("m")}
        self.requests = RequestMetrics(self.registry, lambda: self.served)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"pointsman_{name}", labels)


def test_a_finished_stream_counts_once_everywhere() -> None:
    metrics = Metrics()
    metrics.requests.exchange_ended(STREAMED)
    good = {"model": "m", "endpoint": "chat", "status": "2xx", "end": "finished"}
    assert metrics.value("requests_total", **good) == 1
    assert metrics.value("prompt_tokens_total", model="m") == 100
    assert metrics.value("output_tokens_total", model="m") == 11
    assert metrics.value("cached_tokens_predicted_total", model="m", node="n1") == 64
    assert metrics.value("cached_tokens_reported_total", model="m", node="n1") == 48
    assert metrics.value("ttft_seconds_sum", model="m") == 0.2
    assert metrics.value("tpot_seconds_sum", model="m") == (1.2 - 0.2) / 10
    assert metrics.value("e2e_seconds_count", model="m") == 1
    assert metrics.value("queue_seconds_sum", model="m") == 0.001
    assert metrics.value("retries_total", model="m") == 0


def test_a_refusal_is_counted_by_reason_and_has_no_latency() -> None:
    metrics = Metrics()
    metrics.requests.exchange_ended(refused(Reason.QUEUE_FULL, 429))
    metrics.requests.client_refused(Reason.CONNECTIONS_FULL)
    assert metrics.value("refusals_total", reason="queue_full", model="m") == 1
    assert metrics.value("refusals_total", reason="connections_full", model="other") == 1
    assert metrics.value("ttft_seconds_count", model="m") == 0
    assert metrics.value("e2e_seconds_count", model="m") == 0


def test_a_thousand_bogus_models_are_one_series() -> None:
    """llm-d-router#1625: the model comes from the client's body."""
    metrics = Metrics()
    for number in range(1_000):
        record = refused(Reason.MODEL_NOT_FOUND, 404, model=f"bogus-{number}")
        metrics.requests.exchange_ended(record)
    labels = {"model": "other", "endpoint": "chat", "status": "4xx", "end": "refused"}
    assert metrics.value("requests_total", **labels) == 1_000
    families = list(metrics.registry.collect())
    models = {s.labels["model"] for f in families for s in f.samples if "model" in s.labels}
    assert models == {"other"}


def test_what_is_remembered_of_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "COMBINATIONS_MAX", 4)
    metrics = Metrics()
    for number in range(20):
        metrics.requests.exchange_ended(STREAMED.but(model=ModelName(f"m{number}")))
        assert max(len(metrics.requests._ends), len(metrics.requests._flows)) <= 4


def test_a_model_loaded_later_gets_its_own_label() -> None:
    metrics = Metrics()
    lora = STREAMED.but(model=ModelName("lora"))
    metrics.requests.exchange_ended(lora)
    metrics.served.add(ModelName("lora"))
    metrics.requests.refresh_labels(["n1"])
    metrics.requests.exchange_ended(lora)
    assert metrics.value("prompt_tokens_total", model="other") == 100
    assert metrics.value("prompt_tokens_total", model="lora") == 100


def test_nodes_that_are_gone_have_no_series_and_take_nobodys_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster's nodes have other names after each roll-out."""
    monkeypatch.setattr(instruments, "CHILDREN_MAX", 3)
    metrics = Metrics()
    metrics.requests.exchange_ended(refused(Reason.QUEUE_FULL, 429))
    for number in range(9):
        name = NodeName(f"n{number}")
        metrics.requests.exchange_ended(STREAMED.but(node=name))
        metrics.requests.refresh_labels([name])
    seen = {
        sample.labels["node"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if "node" in sample.labels
    }
    assert seen == {"n8", "none"}


def test_unreported_hits_are_unknown_not_zero() -> None:
    """vllm-ascend#16639: a hit counter that stays 0 says nothing."""
    metrics = Metrics()
    metrics.requests.exchange_ended(STREAMED.but(cached_tokens=None))
    assert metrics.value("cached_tokens_reported_total", model="m", node="n1") == 0
    unreported = metrics.value("cached_tokens_unreported_requests_total", model="m", node="n1")
    assert unreported == 1


def test_retries_and_truncation_show() -> None:
    metrics = Metrics()
    metrics.requests.exchange_ended(STREAMED.but(attempts=3, end=EndCause.TRUNCATED))
    labels = {"model": "m", "endpoint": "chat", "status": "2xx", "end": "truncated"}
    assert metrics.value("requests_total", **labels) == 1
    assert metrics.value("retries_total", model="m") == 2


def test_objectives_and_decisions_are_counted() -> None:
    metrics = Metrics()
    metrics.requests.slo_met(ModelName("m"), met=True)
    metrics.requests.slo_met(ModelName("m"), met=False)
    metrics.requests.decided(35e-6)
    assert metrics.value("slo_requests_total", model="m", outcome="met") == 1
    assert metrics.value("slo_requests_total", model="m", outcome="missed") == 1
    assert metrics.value("decision_seconds_bucket", le="4e-05") == 1


def test_a_single_token_has_no_time_per_token() -> None:
    metrics = Metrics()
    metrics.requests.exchange_ended(STREAMED.but(output_tokens=1))
    metrics.requests.exchange_ended(STREAMED.but(output_tokens=None, streamed_tokens=0))
    assert metrics.value("tpot_seconds_count", model="m") == 0
