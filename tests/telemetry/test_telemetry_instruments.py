"""Counters and histograms read as prometheus_client's own would."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from pointsman.telemetry import instruments
from pointsman.telemetry.instruments import Counter, Histogram


def test_counter_is_exposed_with_its_labels() -> None:
    registry = CollectorRegistry()
    counter = Counter(registry, "x", "Help.", ("a",))
    counter.labels("1").add()
    counter.labels("1").add(2)
    assert registry.get_sample_value("x_total", {"a": "1"}) == 3


def test_histogram_reads_as_the_reference_does() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    bounds = (0.1, 1.0, 2.5)
    histogram = Histogram(ours, "h_seconds", "Help.", bounds=bounds).labels()
    reference = Reference("h_seconds", "Help.", buckets=bounds, registry=theirs)
    for value in (0.05, 0.1, 0.2, 1.0, 2.5, 3.0, 100.0):
        histogram.observe(value)
        reference.observe(value)
    expected = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == expected


def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "CHILDREN_MAX", 2)
    registry = CollectorRegistry()
    counter = Counter(registry, "x", "Help.", ("a",))
    for value in ("1", "2", "3", "4"):
        counter.labels(value).add()
    assert registry.get_sample_value("x_total", {"a": "2"}) == 1
    assert registry.get_sample_value("x_total", {"a": "3"}) is None
    assert registry.get_sample_value("x_total", {"a": "other"}) == 2


def test_what_is_not_kept_has_no_series() -> None:
    registry = CollectorRegistry()
    counter = Counter(registry, "x", "Help.", ("node", "result"))
    for node, result in (("a", "good"), ("a", "bad"), ("b", "good")):
        counter.labels(node, result).add()
    counter.keep("node", ["b", "never there"])
    [metric] = counter.collect()
    assert [sample.labels["node"] for sample in metric.samples] == ["b"]
