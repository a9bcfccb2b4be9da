"""How reloads of the configuration went: a bad file would go unnoticed until the next restart."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry


class ReloadState(Protocol):
    """What is counted."""

    @property
    def loaded_at_s(self) -> float: ...

    @property
    def reloads(self) -> Mapping[str, int]: ...

    @property
    def problems(self) -> tuple[str, ...]: ...


class ReloadMetrics:
    """A prometheus_client collector over one reloader's state."""

    def __init__(self, registry: CollectorRegistry, read: Callable[[], ReloadState]) -> None:
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        state = self._read()
        reloads = CounterMetricFamily(
            "pointsman_config_reloads",
            "Reloads of the configuration: changed, unchanged or rejected.",
            labels=("result",),
        )
        for result, count in state.reloads.items():
            reloads.add_metric((result,), count)
        yield reloads
        yield GaugeMetricFamily(
            "pointsman_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read, in seconds since 1970.",
            value=state.loaded_at_s,
        )
        yield GaugeMetricFamily(
            "pointsman_config_last_reload_successful",
            "0 if the file was rejected and an older configuration is in force, else 1.",
            value=0.0 if state.problems else 1.0,
        )
