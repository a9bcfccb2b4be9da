"""Tokenising is counted: tokens by where they came from, fallbacks by cause."""

from prometheus_client.registry import CollectorRegistry

from pointsman.engines.tokenizer import Fallback
from pointsman.telemetry.tokenizer_metrics import TokenizerMetrics


def test_tokens_seconds_and_fallbacks_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = TokenizerMetrics(registry)
    metrics.tokenized(tokens=100, remembered=80, seconds=0.003)
    metrics.fell_back(Fallback.MEDIA)
    metrics.fell_back(Fallback.MEDIA)
    get = registry.get_sample_value
    assert get("pointsman_tokenizer_tokens_total", {"result": "encoded"}) == 20
    assert get("pointsman_tokenizer_tokens_total", {"result": "remembered"}) == 80
    assert get("pointsman_tokenizer_fallbacks_total", {"cause": "media"}) == 2
    assert get("pointsman_tokenizer_seconds_bucket", {"le": "0.002"}) == 0
    assert get("pointsman_tokenizer_seconds_bucket", {"le": "0.005"}) == 1
