"""The tokenizer: exact counts, no collisions, and answers that come back as they were generated."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.engines.simulated.tokenizer import (
    WORDS,
    Turn,
    count_tokens,
    decode,
    encode,
    media_text,
    plan_output,
    render_chat,
)

text = st.text(max_size=40)


@given(text)
def test_text_survives(sample: str) -> None:
    assert decode(encode(sample)) == sample.encode("utf-8", "replace").decode()


@given(text)
def test_count_is_the_number_of_ids(sample: str) -> None:
    assert count_tokens(sample) == len(encode(sample))


@given(text, text)
def test_distinct_texts_have_distinct_ids(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


def test_lone_surrogates_are_tokens_too() -> None:
    assert len(encode("\ud800")) == 1


def test_n_short_words_are_n_tokens() -> None:
    assert count_tokens("abc " * 500) == 500


def test_a_short_tail_is_no_prefix_of_a_longer_text() -> None:
    assert list(encode("a")) != list(encode("a\0\0\0"))


def test_the_template_frames_each_message_and_puts_tools_first() -> None:
    turns = [Turn("system", ["abcd"]), Turn("user", ["efgh", "ijkl"])]
    tokens = render_chat(turns, tools=["{}"])
    assert decode(tokens) == (
        "<|bos|><|tools|>{}<|system|>abcd<|end|><|user|>efghijkl<|end|><|assistant|>"
    )
    assert len(tokens) == 1 + 2 + 3 + 4 + 1


def test_an_unknown_role_is_spelled_out() -> None:
    assert decode(render_chat([Turn("critic", [])])) == "<|bos|><|other|>critic<|end|><|assistant|>"


def test_media_are_told_apart_by_their_digest() -> None:
    assert media_text("data:a") != media_text("data:b")
    assert count_tokens(media_text("data:a")) * 4 == len(media_text("data:a"))


@given(st.integers(0, 10**20), st.integers(1, 5000))
def test_the_next_turn_shares_the_tokens_of_prompt_and_answer(offset: int, tokens: int) -> None:
    asked = Turn("user", ["hello"])
    output = plan_output(offset, tokens)
    first = [*render_chat([asked]), *output.token_ids]
    turns = [asked, Turn("assistant", [output.text]), Turn("user", ["go on"])]
    assert list(render_chat(turns)[: len(first)]) == first


@given(st.integers(0, 10**20), st.integers(1, 300))
def test_pieces_ids_and_text_agree(offset: int, tokens: int) -> None:
    output = plan_output(offset, tokens)
    pieces = b"".join(output.piece(index) for index in range(tokens)).decode()
    assert pieces == output.text == decode(output.token_ids)


def test_a_stop_string_cuts_the_text_before_it_and_ends_generation_with_it() -> None:
    plain = plan_output(5, 50).text
    stop = plain[9:13]  # lies across two words
    output = plan_output(5, 50, [stop, "never"])
    assert output.cut == plain[:9]
    assert output.tokens == 4
    assert b"".join(output.piece(index) for index in range(4)).decode() == plain[:9]


def test_a_stop_string_that_does_not_occur_changes_nothing() -> None:
    assert plan_output(5, 50, ["never", ""]) == plan_output(5, 50)


def test_words_are_distinct_and_one_token_each() -> None:
    assert len(set(WORDS)) == len(WORDS) == 2000
    assert all(count_tokens(word) == 1 for word in WORDS)
