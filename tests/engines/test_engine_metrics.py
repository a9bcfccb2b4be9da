"""/metrics against what really happened, and against the names of a recorded vLLM."""

import asyncio

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pointsman.engines.simulated import RunningEngine
from pointsman.engines.simulated.metrics import Histogram
from tests.support.engines import running_engine
from tests.support.waiting import eventually

# Read off a vLLM 0.32 under load.
VLLM_GAUGES = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "cache_config_info",
]
VLLM_COUNTERS = [
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_by_source",
    "prompt_tokens_cached",
    "generation_tokens",
    "request_success",
    "admission_rejections",
]
VLLM_HISTOGRAMS = [
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_num_preemptions",
    "request_prefill_kv_computed_tokens",
]
VLLM_NAMES = {
    *VLLM_GAUGES,
    *(f"{name}_total" for name in VLLM_COUNTERS),
    *(f"{name}_{part}" for name in VLLM_HISTOGRAMS for part in ("bucket", "sum", "count")),
}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(engine: RunningEngine) -> Samples:
    async with aiohttp.ClientSession(engine.url) as http, http.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    wanted = {"engine": "0", "model_name": "sim", **labels}
    return samples[f"vllm:{name}", tuple(sorted(wanted.items()))]


async def ask(engine: RunningEngine, prompt: str, tokens: int) -> None:
    body = {"prompt": prompt, "max_tokens": tokens}
    async with (
        aiohttp.ClientSession(engine.url) as http,
        http.post("/v1/completions", json=body) as response,
    ):
        assert response.status == 200


async def test_names_are_vllms() -> None:
    async with running_engine() as engine:
        names = {name for name, _labels in await scrape(engine)}
    assert {f"vllm:{name}" for name in VLLM_NAMES} <= names
    assert not any("gpu_" in name for name in names)


async def test_old_names_on_request() -> None:
    async with running_engine(legacy_metrics=True) as engine:
        names = {name for name, _labels in await scrape(engine)}
    assert "vllm:gpu_cache_usage_perc" in names
    assert "vllm:gpu_prefix_cache_hits_total" in names
    assert "vllm:time_per_output_token_seconds_bucket" in names


async def test_counts_are_exact() -> None:
    async with running_engine() as engine:
        await ask(engine, "abc " * 64, 5)
        await ask(engine, "abc " * 70, 3)
        samples = await scrape(engine)
    assert value(samples, "prompt_tokens_total") == 134
    assert value(samples, "prefix_cache_queries_total") == 134
    assert value(samples, "prefix_cache_hits_total") == 64
    assert value(samples, "prompt_tokens_by_source_total", source="local_compute") == 70
    assert value(samples, "generation_tokens_total") == 8
    assert value(samples, "request_success_total", finished_reason="length") == 2
    assert value(samples, "time_to_first_token_seconds_count") == 2
    assert value(samples, "inter_token_latency_seconds_count") == 6
    assert value(samples, "iteration_tokens_total_sum") == 134 - 64 + 6
    assert value(samples, "request_prefill_kv_computed_tokens_sum") == 70
    assert value(samples, "num_requests_running") == 0


async def test_gauges_under_load() -> None:
    async with (
        running_engine(speed=0.5, max_num_seqs=2, kv_blocks=100) as engine,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(ask(engine, f"{n:03d} " * 32, 500)) for n in range(3)]
        await eventually(lambda: engine.engine.driver.steps >= 3)
        samples = await scrape(engine)
        for task in tasks:
            task.cancel()
    assert value(samples, "num_requests_running") == 2
    assert value(samples, "num_requests_waiting_by_reason", reason="capacity") == 1
    assert value(samples, "kv_cache_usage_perc") in (0.04, 0.06)  # 2 or 3 blocks each


async def test_the_cache_is_described() -> None:
    async with running_engine(block_size=32, kv_blocks=77) as engine:
        samples = await scrape(engine)
    (labels,) = (dict(labels) for name, labels in samples if name == "vllm:cache_config_info")
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("32", "77")
    assert labels["kv_cache_size_tokens"] == "2464"


async def test_times_follow_the_profile() -> None:
    async with running_engine(speed=10) as engine:
        await ask(engine, "abc ", 11)
        samples = await scrape(engine)
        profile = engine.engine.profile
    each_s = (profile.base_s + profile.sequence_s) / 10
    assert value(samples, "inter_token_latency_seconds_sum") == pytest.approx(10 * each_s, rel=0.01)


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(number)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 8.0
