"""A tokenizer that needs no vocabulary: each text is cut into chunks of 4 UTF-8 bytes.

A token id is its chunk as a big-endian integer, so distinct texts never share ids. A short last
chunk is padded with 0xFF, a byte that UTF-8 never contains; ids that begin with 0xFF are the chat
template's control tokens. A text of N three-letter words, each with a space behind it, is exactly N
tokens, and every generated token is such a word: an answer that comes back in the next turn has the
token ids it was generated with.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence

import msgspec
import xxhash

CHUNK_BYTES = 4
_PADDING = b"\xff" * CHUNK_BYTES
_CONTROL = 0xFFFFFF00
_NAMES = ("bos", "end", "tools", "media", "other", "system", "user", "assistant", "tool")
_IDS = {name: _CONTROL + index for index, name in enumerate(_NAMES)}
_ROLES = {
    "system": _IDS["system"],
    "developer": _IDS["system"],
    "user": _IDS["user"],
    "assistant": _IDS["assistant"],
    "tool": _IDS["tool"],
}
_SWAP = sys.byteorder == "little"


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One message of a conversation: its role and its texts, each tokenised on its own."""

    role: str
    texts: Sequence[str]


def encode(text: str) -> "array[int]":
    """The token ids of a text."""
    # surrogatepass: JSON may hold lone surrogates, and they still contain no 0xFF.
    data = text.encode("utf-8", "surrogatepass")
    tokens = array("I", data + _PADDING[: -len(data) % CHUNK_BYTES])
    if _SWAP:
        tokens.byteswap()
    return tokens


def decode(tokens: Iterable[int]) -> str:
    """The text of token ids; control tokens become `<|name|>`, unknown ids U+FFFD."""
    pieces: list[bytes] = []
    for token in tokens:
        index = token - _CONTROL
        if 0 <= index < len(_NAMES):
            pieces.append(f"<|{_NAMES[index]}|>".encode())
        else:
            pieces.append((token & 0xFFFFFFFF).to_bytes(CHUNK_BYTES, "big").rstrip(b"\xff"))
    return b"".join(pieces).decode("utf-8", "replace")


def count_tokens(text: str) -> int:
    """How many tokens a text is."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // CHUNK_BYTES)


def render_chat(
    turns: Iterable[Turn], *, tools: Iterable[str] = (), generation_prompt: bool = True
) -> "array[int]":
    """The chat template: tools first, then one control token before and one after each message."""
    tokens = array("I", [_IDS["bos"]])
    for tool in tools:
        tokens.append(_IDS["tools"])
        tokens.extend(encode(tool))
    for turn in turns:
        tokens.extend(_role(turn.role))
        for text in turn.texts:
            tokens.extend(encode(text))
        tokens.append(_IDS["end"])
    if generation_prompt:
        tokens.append(_IDS["assistant"])
    return tokens


def media_text(reference: str) -> str:
    """What stands in the prompt for an image or audio: its digest, so distinct media differ."""
    return f"<|media|>{xxhash.xxh3_128_hexdigest(reference.encode('utf-8', 'surrogatepass'))}   "


def _role(role: str) -> Sequence[int]:
    known = _ROLES.get(role)
    return [known] if known is not None else [_IDS["other"], *encode(role)]


def _make_words() -> tuple[str, ...]:
    """2,000 three-letter words with a space, in a fixed scrambled order."""
    consonants, vowels = "bcdfghjklmnpqrstvwxz", "aeiou"
    words = [f"{a}{b}{c} " for a in consonants for b in vowels for c in consonants]
    return tuple(words[index * 1_203 % len(words)] for index in range(len(words)))


WORDS = _make_words()
WORD_BYTES = tuple(word.encode() for word in WORDS)
_WORD_TOKENS = encode("".join(WORDS))


class Output(msgspec.Struct, frozen=True, gc=False):
    """A generated text, known in full beforehand: `tokens` words from `offset` on, cyclically.

    `cut` is the text that a stop string leaves of it, None where none occurs.
    """

    offset: int
    tokens: int
    cut: str | None = None

    def piece(self, index: int) -> bytes:
        """What token `index` adds to the text (safe inside a JSON string)."""
        if self.cut is None:
            return WORD_BYTES[(self.offset + index) % len(WORD_BYTES)]
        return self.cut[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES].encode()

    @property
    def text(self) -> str:
        return _words_text(self.offset, self.tokens) if self.cut is None else self.cut

    @property
    def token_ids(self) -> "array[int]":
        start = self.offset % len(WORDS)
        repeats = -(-(start + self.tokens) // len(WORDS))
        return (_WORD_TOKENS * repeats)[start : start + self.tokens]


def plan_output(offset: int, tokens: int, stops: Sequence[str] = ()) -> Output:
    """The output that starts at `offset`, ended by the first stop string in it."""
    offset %= len(WORDS)
    if not stops:
        return Output(offset, tokens)
    text = _words_text(offset, tokens)
    found = [(text.find(stop), len(stop)) for stop in stops if stop]
    ends = [(position, position + length) for position, length in found if position >= 0]
    if not ends:
        return Output(offset, tokens)
    position, end = min(ends)
    return Output(offset, -(-end // CHUNK_BYTES), text[:position])


def _words_text(offset: int, tokens: int) -> str:
    repeats = -(-(offset + tokens) // len(WORDS))
    return "".join((WORDS * repeats)[offset : offset + tokens])
