"""Encoding piece by piece gives the ids of the whole, whatever the tokenizer."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from pointsman.engines.tokenizer import encoder as encoder_module
from pointsman.engines.tokenizer.encoder import Encoder, _marks
from pointsman.engines.tokenizer.pieces import Pieces
from tests.support.tokenizers import KINDS, SPECIALS, byte_level, tokenizer_json

WRITTEN = "".join([*SPECIALS, "<|tool|>", "<|call|>", "|></s", "word", "[UNK]"])

WORDS = st.sampled_from(
    [
        *(*SPECIALS, "<|tool|>", "<|call|>", "assistant", "user\n", "word", "Große", "<|im_"),
        *(" ", "  ", "\n", "a", "The train", "ﬁ", "é", "e\u0301", "\u0301", "🚂", "信号"),
        *("<", "|>", "x", "▁"),
    ]
)
TEXTS = st.lists(WORDS | st.text(max_size=5), max_size=30).map("".join)


@pytest.fixture(scope="module", params=list(KINDS))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Encoder, Tokenizer]:
    """The encoder, with its memory, and the tokenizer itself."""
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    path.write_text(tokenizer_json(request.param), encoding="utf-8")
    encoder = Encoder(path, Pieces(20_000), template=WRITTEN)
    return encoder, Tokenizer.from_file(str(path))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TEXTS, special_tokens=st.booleans())
def test_pieces_give_the_ids_of_the_whole(
    pair: tuple[Encoder, Tokenizer], text: str, special_tokens: bool
) -> None:
    encoder, whole = pair
    encoded = encoder.encode(text, special_tokens=special_tokens)
    assert list(encoded.tokens) == whole.encode(text, add_special_tokens=special_tokens).ids


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(turns=st.lists(TEXTS, min_size=1, max_size=8))
def test_a_growing_conversation_gives_the_ids_of_the_whole(
    pair: tuple[Encoder, Tokenizer], turns: list[str]
) -> None:
    encoder, whole = pair
    text = "<s>"
    for turn in turns:
        text += f"<|im_start|>user\n{turn}<|im_end|>\n"
        prompt = f"{text}<|im_start|>assistant\n"
        encoded = encoder.encode(prompt, special_tokens=False)
        assert list(encoded.tokens) == whole.encode(prompt, add_special_tokens=False).ids
        text = f"{prompt}{turn[::-1]}<|im_end|>\n"


def test_a_turn_encodes_only_what_is_new(tmp_path: Path) -> None:
    encoder = _encoder(tmp_path)
    before = "<|im_start|>user\nThe train leaves.<|im_end|>\n"
    turn = "<|im_start|>assistant\nAt noon."
    first = encoder.encode(before, special_tokens=False)
    both = encoder.encode(before + turn, special_tokens=False)
    assert first.remembered == 0
    assert both.remembered == len(first.tokens)
    assert encoder.encode(before + turn, special_tokens=False).remembered == len(both.tokens)


def test_two_tokenizers_with_one_memory_give_their_own_ids(tmp_path: Path) -> None:
    pieces = Pieces(1_000_000)
    text = "<|im_start|>user\nThe train leaves.<|im_end|>\n"
    for kind in ("byte_level", "unigram", "byte_level", "unigram"):
        path = tmp_path / f"{kind}.json"
        path.write_text(tokenizer_json(kind), encoding="utf-8")
        encoder = Encoder(path, pieces, template=WRITTEN)
        whole = Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids
        assert list(encoder.encode(text, special_tokens=False).tokens) == whole


def test_a_tokenizer_that_is_not_foreseen_is_not_cut_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_clash", lambda mark, other: False)
    path = tmp_path / "tokenizer.json"
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("x <|im_start|>", special=True)])
    tokenizer.save(str(path))
    assert Encoder(path, Pieces(0), template=WRITTEN)._mark is None


def test_special_tokens_are_the_tokenizers_or_those_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json("byte_level_template"), encoding="utf-8")
    ids = Tokenizer.from_file(str(path)).token_to_id
    own = Encoder(path, Pieces(10_000))
    assert list(own.encode("", special_tokens=True).tokens) == [ids("<s>"), ids("</s>")]
    assert list(own.encode("", special_tokens=False).tokens) == []


def test_tokens_that_the_file_lacks_are_added(tmp_path: Path) -> None:
    added = {"content": "<tool_call>", "special": True, "id": 600}
    encoder = _encoder(tmp_path, added=[added])
    assert len(encoder.encode("<tool_call>", special_tokens=False).tokens) == 1


def test_only_safe_tokens_are_cut_at() -> None:
    """<|tool|> takes blanks along, <|im_start|> may begin a longer token, and x<|im_e be found
    where <|im_end|> stands."""
    added = KINDS["awkward"]().get_added_tokens_decoder().values()
    assert _marks(added, WRITTEN) == ["<|call|>", "<s>"]
    assert _marks(added, "<s> only") == ["<s>"]


def test_a_text_of_nothing_but_marks_is_taken_whole(tmp_path: Path) -> None:
    pieces = Pieces(100_000_000)
    encoder = _encoder(tmp_path, pieces)
    encoded = encoder.encode("<s>" * 40_000, special_tokens=False)
    assert len(encoded.tokens) == 40_000
    assert len(pieces) == 1


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no tokenizer"):
        Encoder(path, Pieces(0))


def test_a_random_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.model.dropout = 0.1
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="dropout"):
        Encoder(tmp_path / "tokenizer.json", Pieces(0))


def _encoder(folder: Path, pieces: Pieces | None = None, **options: object) -> Encoder:
    path = folder / "tokenizer.json"
    path.write_text(tokenizer_json("byte_level"), encoding="utf-8")
    pieces = Pieces(100_000) if pieces is None else pieces
    return Encoder(path, pieces, template=WRITTEN, **options)  # type: ignore[arg-type]  # a test's shorthand
