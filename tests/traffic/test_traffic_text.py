"""Prompt text: equal ids give equal text, and lengths are exact."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.text import TOKEN_BYTES, PromptWriter


def prompt_of(blocks: tuple[int, ...], size: int, tokens: int) -> TrafficRequest:
    return TrafficRequest(
        at_s=0, input_tokens=tokens, output_tokens=1, block_ids=blocks, block_tokens=size
    )


@given(
    st.lists(st.integers(0, 10**6), max_size=6),
    st.sampled_from([1, 3, 4, 16, 512, 4096]),
    st.integers(0, 9000),
)
def test_length_is_exact_and_words_are_words(blocks: list[int], size: int, own: int) -> None:
    tokens = len(blocks) * size + own
    text = PromptWriter().prompt(prompt_of(tuple(blocks), size, tokens), index=5)
    assert len(text) == tokens * TOKEN_BYTES
    assert text.isascii()
    assert all(len(word) == 3 for word in text.split())


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(4, 64))
def test_equal_ids_equal_text_and_other_ids_other_text(one: int, two: int, size: int) -> None:
    writer = PromptWriter(salt="s")
    first = writer.prompt(prompt_of((one,), size, size), index=0)
    second = writer.prompt(prompt_of((two,), size, size), index=9)
    assert (first == second) == (one == two)


def test_own_parts_salts_and_partial_blocks() -> None:
    writer = PromptWriter(salt="a")
    own = prompt_of((), 0, 9000)
    assert writer.prompt(own, index=1) == writer.prompt(own, index=1)
    assert writer.prompt(own, index=1)[:16] != writer.prompt(own, index=2)[:16]
    assert writer.prompt(own, index=1)[:16] != PromptWriter(salt="b").prompt(own, index=1)[:16]
    whole = writer.prompt(prompt_of((4, 5), 16, 32), index=1)
    assert whole.startswith(writer.prompt(prompt_of((4, 5), 16, 21), index=2))
    assert writer.prompt(prompt_of((4, 5), 16, 0), index=1) == ""
