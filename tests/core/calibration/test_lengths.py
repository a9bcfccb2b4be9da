"""Expected output lengths, and bytes a token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.calibration import OutputLengths, TokenRatio
from pointsman.core.calibration.lengths import (
    _MODELS_MAX,
    _TENANTS_MAX,
    BYTES_PER_TOKEN_PRIOR,
    OUTPUT_TOKENS_PRIOR,
)
from pointsman.core.ids import ModelName

M, N = ModelName("m"), ModelName("n")


def test_before_data_the_prior_is_expected() -> None:
    assert OutputLengths().expect(M, "t") == OUTPUT_TOKENS_PRIOR


def test_the_clients_bound_is_kept() -> None:
    lengths = OutputLengths()
    assert lengths.expect(M, "t", 16) == 16
    assert lengths.expect(M, "t", 0) == 0, "an embedding generates nothing"
    assert lengths.expect(M, "t", 10**9) == OUTPUT_TOKENS_PRIOR


def test_a_tenant_without_data_gets_its_models_mean() -> None:
    lengths = OutputLengths()
    for _ in range(200):
        lengths.observe(M, "known", 40)
    assert lengths.expect(M, "known") in range(40, 44)
    assert lengths.expect(M, "new") in range(40, 52)
    assert lengths.expect(N, "known") == OUTPUT_TOKENS_PRIOR


def test_tenants_of_one_model_differ() -> None:
    lengths = OutputLengths()
    for _ in range(200):
        lengths.observe(M, "terse", 10)
        lengths.observe(M, "chatty", 1_000)
    assert lengths.expect(M, "terse") < 40
    assert lengths.expect(M, "chatty") > 950


def test_the_mean_follows_a_change() -> None:
    lengths = OutputLengths()
    for tokens in (10, 500):
        for _ in range(300):
            lengths.observe(M, "t", tokens)
    assert lengths.expect(M, "t") == pytest.approx(500, rel=0.05)


def test_tenants_and_models_are_bounded_and_the_least_recently_used_go() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.observe(M, "first", 9)
    for n in range(_TENANTS_MAX):
        lengths.observe(M, f"t{n}", 100)
        if n % 1_000 == 0:
            lengths.observe(M, "first", 9)
    assert len(lengths._tenants) == _TENANTS_MAX
    assert lengths.expect(M, "first") < 50, "used all the time"
    assert lengths.expect(M, "t0") == pytest.approx(100, abs=3), "forgotten: its model's mean"
    for n in range(_MODELS_MAX + 1):
        lengths.observe(ModelName(str(n)), "t", 1)
    assert len(lengths._models) == _MODELS_MAX


@given(st.lists(st.integers(0, 10**6), max_size=40), st.none() | st.integers(-5, 10**6))
def test_what_is_expected_lies_between_what_was_seen(seen: list[int], bound: int | None) -> None:
    lengths = OutputLengths()
    for tokens in seen:
        lengths.observe(M, "t", tokens)
    expected = lengths.expect(M, "t", bound)
    assert 0 <= expected <= max([*seen, OUTPUT_TOKENS_PRIOR]) + 1
    assert bound is None or expected <= max(0, bound)


def test_bytes_per_token_is_learned_by_model() -> None:
    ratio = TokenRatio()
    assert ratio.bytes_per_token(M) == BYTES_PER_TOKEN_PRIOR
    assert ratio.tokens(M, 4_000) == 1_000
    for _ in range(100):
        ratio.observe(M, 3_000, 2_000)
    assert ratio.bytes_per_token(M) == pytest.approx(1.5, rel=0.02)
    assert ratio.tokens(M, 3_000) == pytest.approx(2_000, rel=0.02)
    assert ratio.bytes_per_token(N) == BYTES_PER_TOKEN_PRIOR


def test_long_prompts_say_more_than_short_ones() -> None:
    ratio = TokenRatio()
    for _ in range(50):
        ratio.observe(M, 40_000, 10_000)
        ratio.observe(M, 8, 30)  # almost all of it the chat template's
    assert ratio.bytes_per_token(M) == pytest.approx(4.0, rel=0.02)


def test_counts_of_nothing_teach_nothing_and_no_count_breaks_it() -> None:
    ratio = TokenRatio()
    ratio.observe(M, 0, 10)
    ratio.observe(M, 10, 0)
    assert ratio.bytes_per_token(M) == BYTES_PER_TOKEN_PRIOR
    ratio.observe(M, 1, 10**9)
    assert ratio.tokens(M, 1_000) <= 4_000
    assert ratio.tokens(M, 0) == 1


def test_ratios_are_bounded() -> None:
    ratio = TokenRatio()
    for n in range(_MODELS_MAX + 10):
        ratio.observe(ModelName(str(n)), 100, 50)
    assert len(ratio._models) == _MODELS_MAX
