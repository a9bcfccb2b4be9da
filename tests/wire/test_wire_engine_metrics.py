"""Metrics pages: recorded ones, old names, several ranks, and what is missing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.wire import engine_metrics
from pointsman.wire.engine_metrics import EngineKind, EngineSignals, ranks_on, read_metrics

DATA = Path(__file__).parent / "data"
VLLM = (DATA / "vllm_metrics.txt").read_bytes()


def test_a_recorded_vllm_page() -> None:
    assert read_metrics(VLLM) == EngineSignals(
        kind=EngineKind.VLLM,
        running=0,
        waiting=0,
        kv_usage=0.0,
        kv_blocks_total=512,
        block_size=32,
        prefix_queries=344,
        prefix_hits=160,
        prompt_tokens_total=344,
        generation_tokens_total=19,
        preemptions_total=0,
        prefix_caching=True,
        process_start_time_s=1795996561.99,
    )


def test_a_recorded_llamacpp_page() -> None:
    assert read_metrics((DATA / "llamacpp_metrics.txt").read_bytes()) == EngineSignals(
        kind=EngineKind.LLAMACPP,
        running=0,
        waiting=0,
        prefix_queries=183 + 161,
        prefix_hits=161,
        prompt_tokens_total=183 + 161,
        generation_tokens_total=20,
    )


OLD_VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{model_name="m"} 8.0
vllm:num_requests_waiting{model_name="m"} 55.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_queries{model_name="m"} 100.0
vllm:gpu_prefix_cache_hits{model_name="m"} 40.0
vllm:num_preemptions_total{model_name="m"} 2.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="None",enable_prefix_caching="False"} 1.0
"""


def test_old_names_of_vllm() -> None:
    assert read_metrics(OLD_VLLM) == EngineSignals(
        kind=EngineKind.VLLM,
        running=8,
        waiting=55,
        kv_usage=0.25,
        block_size=16,
        prefix_queries=100,
        prefix_hits=40,
        preemptions_total=2,
        prefix_caching=False,
    )


def test_where_old_and_new_names_stand_together_the_new_one_counts() -> None:
    page = b"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1\n"
    assert read_metrics(page).kv_usage == 0.1


def test_sglang() -> None:
    page = b"""sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 4.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 6400.0
sglang:cached_tokens_total{model_name="m",tp_rank="0"} 10.0
sglang:prompt_tokens_total{model_name="m",tp_rank="0"} 30.0
sglang:generation_tokens_total{model_name="m",tp_rank="0"} 5.0
sglang:cache_config_info{page_size="64",num_pages="100"} 1.0
"""
    signals = EngineSignals(
        kind=EngineKind.SGLANG,
        running=3,
        waiting=4,
        kv_usage=0.5,
        kv_blocks_total=100,
        block_size=64,
        prefix_queries=30,
        prefix_hits=10,
        prompt_tokens_total=30,
        generation_tokens_total=5,
    )
    assert read_metrics(page) == signals
    assert read_metrics(page.replace(b',num_pages="100"', b"")) == signals


def test_data_parallel_ranks_are_added_and_the_usage_is_averaged() -> None:
    page = b"".join(
        b'vllm:num_requests_running{engine="%d"} %d\n'
        b'vllm:kv_cache_usage_perc{engine="%d"} 0.%d\n'
        b'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="100"} 1\n'
        % (rank, running, rank, usage, rank)
        for rank, running, usage in ((0, 3, 2), (1, 5, 6))
    )
    signals = read_metrics(page)
    assert signals.running == 8
    assert signals.kv_usage == pytest.approx(0.4)
    assert (signals.kv_blocks_total, signals.block_size) == (200, 16)


def test_the_ranks_that_a_page_tells_of() -> None:
    assert ranks_on(VLLM) == (0,)
    lines = [b'num_requests_running{model_name="m",engine="%d"} 0' % rank for rank in (2, 10, 3)]
    other = [b'num_requests_waiting{engine="7"} 0', b'num_requests_running_total{engine="8"} 0']
    assert ranks_on(b"".join(b"\nvllm:" + line for line in lines + other)) == (2, 3, 10)
    assert ranks_on(b'\nsglang:num_requests_running{engine="1"} 0') == ()


def test_missing_is_none_and_never_zero() -> None:
    for page in (b"", b"process_x 1\n", b"vllm:something_else 1\n", b"<html>not found</html>"):
        signals = read_metrics(page)
        kind = EngineKind.VLLM if page.startswith(b"vllm") else EngineKind.UNKNOWN
        assert signals == EngineSignals(kind=kind)


def test_the_start_time_is_read_of_any_process() -> None:
    signals = read_metrics(b"process_start_time_seconds 1.5e+09\n")
    assert signals == EngineSignals(kind=EngineKind.UNKNOWN, process_start_time_s=1.5e9)


@pytest.mark.parametrize(
    ("line", "running", "malformed"),
    [
        (b"vllm:num_requests_running 3", 3, 0),
        (b"vllm:num_requests_running 3.0 1795996569000", 3, 0),
        (b"vllm:num_requests_running\t3\r", 3, 0),
        (b'vllm:num_requests_running{a="}\\" {,b=\\"",b="\\\\"} 3', 3, 0),
        (b"vllm:num_requests_running NaN", None, 1),
        (b"vllm:num_requests_running +Inf", None, 1),
        (b"vllm:num_requests_running -1", None, 1),
        (b"vllm:num_requests_running 1e300", None, 1),
        (b"vllm:num_requests_running 1e308\nvllm:num_requests_running 1e308", None, 2),
        (b"vllm:num_requests_running three", None, 1),
        (b"vllm:num_requests_running ", None, 1),
        (b'vllm:num_requests_running{a="b} 3', None, 1),
        (b"vllm:num_requests_running{} 3 4 5", None, 1),
        (b"vllm:num_requests_running_now 3", None, 0),
        (b"x vllm:num_requests_running 3", None, 0),
    ],
)
def test_lines(line: bytes, running: int | None, malformed: int) -> None:
    page = b"vllm:num_requests_waiting 1\n" + line + b"\nvllm:num_preemptions_total 1\n"
    signals = read_metrics(page)
    assert (signals.running, signals.malformed) == (running, malformed)
    assert (signals.waiting, signals.preemptions_total) == (1, 1)


def test_a_label_is_not_found_in_another_ones_value() -> None:
    page = b'vllm:cache_config_info{a=",block_size=\\"1\\"",x_block_size="2",block_size="3"} 1\n'
    assert read_metrics(page).block_size == 3


def test_a_page_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "PAGE_BYTES_MAX", 30)
    signals = read_metrics(b"vllm:num_requests_running 3\nvllm:num_requests_waiting 4\n")
    assert (signals.running, signals.waiting) == (3, None)


@given(st.lists(st.sampled_from([*OLD_VLLM.splitlines(), b"{", b'"', b"\\", b" 1", b"\n"])))
def test_no_page_raises(pieces: list[bytes]) -> None:
    read_metrics(b"\n".join(pieces))
    read_metrics(b"".join(pieces))


@given(st.integers(0, len(VLLM)))
def test_no_truncated_page_raises(length: int) -> None:
    assert read_metrics(VLLM[:length]).malformed <= 1
