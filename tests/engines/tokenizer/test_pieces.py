"""The memory of pieces: bounded, the least recently used go first."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.engines.tokenizer.pieces import Pieces, _size

SIZE = _size("a", bytes(8))


def test_pieces_come_back_with_their_ids() -> None:
    pieces = Pieces(10 * SIZE)
    pieces.keep(1, "a", b"12345678")
    assert pieces.find(1, ["a", "b", "a"]) == [b"12345678", None, b"12345678"]


def test_tokenizers_do_not_share_pieces() -> None:
    pieces = Pieces(10 * SIZE)
    first, second = pieces.new_owner(), pieces.new_owner()
    pieces.keep(first, "a", b"12345678")
    assert pieces.find(second, ["a"]) == [None]
    pieces.keep(second, "a", bytes(8))
    assert pieces.find(first, ["a"]) == [b"12345678"]


def test_the_least_recently_used_goes_first() -> None:
    pieces = Pieces(2 * SIZE)
    pieces.keep(1, "a", bytes(8))
    pieces.keep(1, "b", bytes(8))
    pieces.find(1, ["a"])
    pieces.keep(1, "c", bytes(8))
    assert pieces.find(1, ["a", "b", "c"]) == [bytes(8), None, bytes(8)]


def test_what_is_larger_than_the_cap_is_not_kept() -> None:
    pieces = Pieces(2 * SIZE)
    pieces.keep(1, "a", bytes(8))
    pieces.keep(1, "b", bytes(10_000))
    assert pieces.find(1, ["a", "b"]) == [bytes(8), None]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40)), max_size=60))
def test_the_cap_holds_and_the_newest_are_there(kept: list[tuple[str, int]]) -> None:
    pieces = Pieces(3 * SIZE + 60)
    lengths: dict[str, int] = {}  # the newest last; a text's ids are always the same
    for text, length in kept:
        length = lengths.pop(text, length)  # noqa: PLW2901
        lengths[text] = length
        pieces.keep(1, text, bytes(length))
        pieces.check()
    newest = list(lengths)[-2:]
    assert pieces.find(1, newest) == [bytes(lengths[text]) for text in newest]
    pieces.check()
