"""Token ids of pieces of text, kept for when they come again.

A conversation that grows repeats all it has said, so nearly every piece of a turn is known
from the turn before. The least recently used pieces go when there are too many.
"""

import sys
from collections.abc import Sequence
from threading import Lock

_ENTRY_BYTES = 264
"""Of an entry beside its text and ids: three objects' heads and its place in the dict."""

Text = str | bytes
"""Of a piece, or what stands for it."""

Key = tuple[int, Text]


class Pieces:
    """Text -> its token ids, 8 bytes each, of several tokenizers under one cap in bytes.

    Every tokenizer takes an `owner` number, for the same text has other ids in another. Shared
    between threads.
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max >= 0, bytes_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self._tokens: dict[Key, bytes] = {}  # least recently used first
        self._owners = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._tokens)

    def new_owner(self) -> int:
        """A number that nobody else has."""
        with self._lock:
            self._owners += 1
            return self._owners

    def find(self, owner: int, texts: Sequence[Text]) -> list[bytes | None]:
        """The ids of each text, None where they are not known."""
        known = self._tokens
        found: list[bytes | None] = []
        with self._lock:
            for text in texts:
                key = (owner, text)
                tokens = known.pop(key, None)
                if tokens is not None:
                    known[key] = tokens  # the last to be forgotten
                found.append(tokens)
        return found

    def keep(self, owner: int, text: Text, tokens: bytes) -> None:
        """Keep what was computed. What is larger than the cap is not kept."""
        size = _size(text, tokens)
        if size > self.bytes_max:
            return
        with self._lock:
            before = self._tokens.pop((owner, text), None)
            self.bytes += size if before is None else 0
            self._tokens[owner, text] = tokens
            while self.bytes > self.bytes_max:
                oldest = next(iter(self._tokens))
                self.bytes -= _size(oldest[1], self._tokens.pop(oldest))

    def check(self) -> None:
        """Raise AssertionError if the books are wrong."""
        total = sum(_size(text, tokens) for (_, text), tokens in self._tokens.items())
        assert total == self.bytes, (total, self.bytes)
        assert self.bytes <= self.bytes_max, (self.bytes, self.bytes_max)


def _size(text: Text, tokens: bytes) -> int:
    return _ENTRY_BYTES + sys.getsizeof(text) + len(tokens)
