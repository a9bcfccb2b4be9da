"""Segments of prompts that running requests hold together."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ids import BlockHash
from pointsman.core.pins import mark_depths, segments


def test_the_depths_at_which_prompts_are_cut() -> None:
    assert mark_depths(0) == []
    assert mark_depths(9) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert mark_depths(64)[7:] == [8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert mark_depths(65) == mark_depths(64)


@given(length=st.integers(1, 100_000))
def test_what_lies_behind_the_last_cut_is_less_than_a_quarter(length: int) -> None:
    last = mark_depths(length)[-1]
    assert last <= length < last * 1.25 + 1


def test_a_prompt_without_a_whole_block_has_no_segments() -> None:
    assert segments([], 1).blocks == 0


def test_blocks_of_another_size_than_the_prompts() -> None:
    """A hash of 512 bytes stands for eight of an engine's blocks, more or less."""
    cut = segments([BlockHash(n) for n in range(10)], 7.9)
    assert list(cut.marks) == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert list(cut.ends) == [7, 15, 23, 31, 39, 47, 55, 63, 79]
