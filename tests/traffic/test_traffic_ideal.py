"""Ideal hit ratios against published values, by hand, and against a slow twin."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.traffic.ideal import bounded_hit_ratio, ideal_hit_ratio
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.trace import read_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public trace slices are not here")
@pytest.mark.parametrize(
    ("name", "percent", "percent_of_8m"),
    [
        ("mooncake_conversation", 32.4, 25.5),
        ("mooncake_synthetic", 26.1, 22.1),
        ("agentic_claude_code_b512", 95.1, 95.1),
        ("agentic_claude_code_b64_small", 89.2, 89.2),
    ],
)
def test_published_ratios(name: str, percent: float, percent_of_8m: float) -> None:
    with gzip.open(TRACES / f"{name}.jsonl.gz") as lines:
        requests = read_trace(lines, name=name).requests
    ideal = ideal_hit_ratio(requests)
    pooled = bounded_hit_ratio(requests, capacity_tokens=8_000_000)
    assert ideal is not None
    assert pooled is not None
    assert round(ideal * 100, 1) == percent
    assert round(pooled * 100, 1) == percent_of_8m
    assert bounded_hit_ratio(requests, capacity_tokens=10**12) == ideal


def request(blocks: tuple[int, ...], input_tokens: int) -> TrafficRequest:
    return TrafficRequest(
        at_s=0, input_tokens=input_tokens, output_tokens=1, block_ids=blocks, block_tokens=10
    )


def test_a_partial_last_block_weighs_only_its_tokens() -> None:
    assert ideal_hit_ratio([request((1, 2), 15), request((1, 2), 15)]) == 0.5


def test_nothing_known_is_not_zero() -> None:
    unknown = [TrafficRequest(at_s=0, input_tokens=5, output_tokens=1)]
    assert ideal_hit_ratio(unknown) is None
    assert bounded_hit_ratio(unknown, capacity_tokens=100) is None


def test_a_prompt_larger_than_the_cache_leaves_its_head() -> None:
    requests = [request((1, 2, 3), 30), request((1, 2, 3), 30)]
    assert bounded_hit_ratio(requests, capacity_tokens=20) == 20 / 60
    assert bounded_hit_ratio(requests, capacity_tokens=0) == 0


@st.composite
def chained_streams(draw: st.DrawFn) -> list[TrafficRequest]:
    """Prompts as paths in a tree: the id of a block is the path that leads to it."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=30))
    ids: dict[tuple[int, ...], int] = {}
    stream = []
    for path in paths:
        blocks = tuple(
            ids.setdefault(tuple(path[: depth + 1]), len(ids)) for depth in range(len(path))
        )
        short = draw(st.integers(0, 9))
        stream.append(request(blocks, len(blocks) * 10 - short))
    return stream


def slow_twin(requests: list[TrafficRequest], capacity_blocks: int) -> float | None:
    """The same cache as a list of ids, most recently used first."""
    cache: list[int] = []
    hits = total = 0
    for item in requests:
        held = 0
        while held < len(item.block_ids) and item.block_ids[held] in cache:
            held += 1
        hits += min(held * 10, item.input_tokens)
        total += item.input_tokens
        cache = [*item.block_ids, *(block for block in cache if block not in item.block_ids)]
        cache = cache[:capacity_blocks]
    return hits / total if total else None


@given(chained_streams(), st.integers(0, 12))
def test_bounded_cache_equals_its_slow_twin(requests: list[TrafficRequest], blocks: int) -> None:
    assert bounded_hit_ratio(requests, capacity_tokens=blocks * 10) == slow_twin(requests, blocks)


@given(chained_streams())
def test_unbounded_cache_equals_its_slow_twin(requests: list[TrafficRequest]) -> None:
    assert ideal_hit_ratio(requests) == slow_twin(requests, 10**9)
