"""Text to token ids by a model's tokenizer.json, piece by piece.

An added token such as `<|im_start|>` is found in a text before anything else happens to it,
and the text on either side of it is normalised, split and merged on its own. So a text may
be cut before each such token, and the ids of the pieces, one after the other, are those of the
whole; `Pieces` remembers them. That holds for a token of which no other added token can
swallow a part or the surroundings (`_marks`), and only those that the chat template writes
are looked for: they are where messages begin and end.

Imports tokenizers, of the extra `tokenizer`: only `folder.load` may import this module.
"""

import os
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from pointsman.engines.tokenizer.encoded import Encoded
from pointsman.engines.tokenizer.pieces import Pieces

# A batch must not take the cores from the event loop: the threads are our own.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SEGMENTS_MAX = 32_768
"""Pieces of one text. A text with more marks than a conversation can have is taken whole."""

_PROBE = "a"
_TOKEN_BYTES = 8


class Encoder:
    """One tokenizer, for several threads. `template` is what writes its special tokens, `added`
    describes tokens that may be missing in the file.

    Raises ValueError if `path` is no tokenizer.json, or one that does not give the same ids
    each time.
    """

    def __init__(
        self,
        path: Path,
        pieces: Pieces,
        *,
        template: str = "",
        added: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - all that the Rust code raises
            raise ValueError(f"is no tokenizer of the tokenizers library: {error}") from None
        if getattr(self._tokenizer.model, "dropout", None):
            raise ValueError("has a dropout: it cuts the same text differently each time")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._add_missing(added)
        self.pieces, self._owner = pieces, pieces.new_owner()
        marks = _marks(self._tokenizer.get_added_tokens_decoder().values(), template)
        self._mark = re.compile("|".join(map(re.escape, marks))) if marks else None
        if not self._may_cut(marks):
            self._mark = None
        self._before, self._behind = self._frame()

    def encode(self, text: str, *, special_tokens: bool) -> Encoded:
        """The ids of `text`; `special_tokens` are those that a tokenizer adds by itself."""
        tokens, remembered = self.ids(text)
        return self.joined([tokens], remembered, special_tokens=special_tokens)

    def joined(self, parts: Sequence[bytes], remembered: int, *, special_tokens: bool) -> Encoded:
        """The ids of a text from those of its parts, of which so many bytes were remembered."""
        if special_tokens:
            parts = [self._before, *parts, self._behind]
        tokens = array("q")
        tokens.frombytes(b"".join(parts))
        return Encoded(tokens, remembered // _TOKEN_BYTES)

    @property
    def cuts(self) -> bool:
        """Whether it takes texts apart at all."""
        return self._mark is not None

    def begins_apart(self, text: str) -> bool:
        """Whether the ids of `text` are the same whatever stands before it."""
        return not text or (self._mark is not None and self._mark.match(text) is not None)

    def ids(self, text: str) -> tuple[bytes, int]:
        """The ids of a text as they are kept, and how many bytes of them were remembered."""
        texts = self._cut(text)
        found = self.pieces.find(self._owner, texts)
        missing = [text for text, tokens in zip(texts, found, strict=True) if tokens is None]
        computed = self._compute(missing)
        remembered = sum(len(tokens) for tokens in found if tokens is not None)
        return b"".join(computed.pop() if f is None else f for f in found), remembered

    def _compute(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each of `texts`, last first."""
        if not texts:
            return []
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        computed = [array("q", encoding.ids).tobytes() for encoding in encodings]
        for text, tokens in zip(texts, computed, strict=True):
            self.pieces.keep(self._owner, text, tokens)
        computed.reverse()
        return computed

    def _cut(self, text: str) -> list[str]:
        """`text` in pieces; all but the first begin with a mark."""
        if self._mark is None:
            return [text]
        starts = [mark.start() for mark in self._mark.finditer(text)]
        if not starts or len(starts) >= SEGMENTS_MAX:
            return [text]
        if starts[0]:
            starts.insert(0, 0)
        return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]

    def _may_cut(self, marks: Sequence[str]) -> bool:
        """Whether the pieces of a text with all marks give the ids of the whole. They do, but
        for tokenizers of a kind that is not foreseen here."""
        text = "".join(f"{mark} Ab1\n {mark}é  x {mark}" for mark in marks)
        whole: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        encoded = self._tokenizer.encode_batch(self._cut(text), add_special_tokens=False)
        return whole == [number for piece in encoded for number in piece.ids]

    def _add_missing(self, added: Iterable[Mapping[str, Any]]) -> None:
        """Added tokens of tokenizer_config.json that tokenizer.json lacks, as transformers."""
        known = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        for spec in added:
            if spec["content"] not in known:
                known.add(spec["content"])
                self._tokenizer.add_tokens([AddedToken(**_described(spec))])

    def _frame(self) -> tuple[bytes, bytes]:
        """The ids that the file adds before and behind a text. Raises ValueError."""
        encode = self._tokenizer.encode
        inner: list[int] = encode(_PROBE, add_special_tokens=False).ids
        whole: list[int] = encode(_PROBE).ids
        for start in range(len(whole) - len(inner) + 1):
            if whole[start : start + len(inner)] == inner:
                behind = whole[start + len(inner) :]
                return array("q", whole[:start]).tobytes(), array("q", behind).tobytes()
        raise ValueError("changes a text's own ids where it adds special tokens")


def _marks(added: Iterable[AddedToken], template: str) -> list[str]:
    """The added tokens before which any text may be cut, longest first.

    Not one that takes blanks before it along, or counts only between blanks, or is looked for
    after normalisation. Nor one that stands in another, or begins as another ends: there the
    other is found first. (A token that begins within a mark is not found at all: the search
    goes from left to right and takes the longest.)
    """
    firm = [token for token in added if not token.normalized]
    marks = [
        token.content
        for token in firm
        if token.content in template and not (token.lstrip or token.single_word)
    ]
    contents = [token.content for token in firm]
    safe = [mark for mark in marks if mark and not any(_clash(mark, c) for c in contents)]
    return sorted(safe, key=len, reverse=True)


def _clash(mark: str, other: str) -> bool:
    """Whether `other` may be found where it covers a part of `mark`, or all of it."""
    if mark != other and mark in other:
        return True
    return any(other.endswith(mark[:length]) for length in range(1, len(mark)))


def _described(spec: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {field: spec[field] for field in fields if field in spec}
