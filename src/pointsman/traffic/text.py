"""Block ids to prompt text: equal ids give equal text, and lengths are exact.

A token is a word of three letters and a space, four bytes, which is one token for a tokenizer that
cuts text into chunks of four bytes (as the simulated engine does). The text of a block is its id,
written in the first four words, and then a slice of a pool of words that starts where the id
points. So distinct ids differ in their first words, and a prompt costs one slice a block instead
of one step a word.

    words    W = 26^3        ids    W^4 = 26^12, about 2^56
    written id = (id * MIX + salt) mod W^4

MIX is coprime to 26, so the map is a bijection: ids that differ below W^4 never meet.
"""

import string
from functools import lru_cache
from itertools import product
from random import Random

import xxhash

from pointsman.traffic.request import BLOCK_TOKENS_MAX, TrafficRequest

TOKEN_BYTES = 4
KEPT_BLOCKS_MAX = 16_384
KEPT_TOKENS_MAX = 512
"""Blocks come again in each turn of a conversation: those written last are kept, 32 MiB at most."""
_WORDS = tuple("".join(letters) + " " for letters in product(string.ascii_lowercase, repeat=3))
_BASE = len(_WORDS)
_IDS = _BASE**4
_MIX = 0x9E3779B97F4A7C15 % _IDS | 1  # the golden ratio's bits scatter neighbours
_POOL_TOKENS = 1 << 16
_OWN_STRIDE = 1 << 16  # pieces of one request's own text; 4096 tokens each, so 268 M tokens


class PromptWriter:
    """Writes prompts of one run. Another `salt` gives other text for the same ids.

    Two runs with different salts share no prefix, so the second does not profit from the caches
    that the first one filled.
    """

    def __init__(self, *, salt: str = "") -> None:
        self._offset = xxhash.xxh64_intdigest(salt.encode())
        self._block = lru_cache(KEPT_BLOCKS_MAX)(self._write)
        self._pool = "".join(Random(0).choices(_WORDS, k=_POOL_TOKENS))

    def prompt(self, request: TrafficRequest, *, index: int) -> str:
        """Text of exactly `input_tokens` tokens; `index` names the request's own part.

        Leading blocks come from `block_ids`, what they do not cover is the request's own.
        """
        size = request.block_tokens
        assert size <= BLOCK_TOKENS_MAX, f"block of {size} tokens"
        assert size > 0 or not request.block_ids, "blocks without a size"
        tokens_left = request.input_tokens
        block = self._block if size <= KEPT_TOKENS_MAX else self._write
        parts = []
        for block_id in request.block_ids:
            if tokens_left <= 0:
                break
            parts.append(block(block_id, min(size, tokens_left)))
            tokens_left -= size
        own = -1 - index * _OWN_STRIDE  # below zero: apart from the ids of traces and generators
        while tokens_left > 0:
            parts.append(self._write(own, min(BLOCK_TOKENS_MAX, tokens_left)))
            tokens_left -= BLOCK_TOKENS_MAX
            own -= 1
        return "".join(parts)

    def _write(self, block_id: int, tokens: int) -> str:
        """The first `tokens` words of a block."""
        written = (block_id * _MIX + self._offset) % _IDS
        upper, lower = divmod(written, _BASE * _BASE)
        head = (
            _WORDS[lower % _BASE]
            + _WORDS[lower // _BASE]
            + _WORDS[upper % _BASE]
            + _WORDS[upper // _BASE]
        )
        start = written % (_POOL_TOKENS - BLOCK_TOKENS_MAX) * TOKEN_BYTES
        rest = (tokens - 4) * TOKEN_BYTES
        if rest <= 0:
            return head[: tokens * TOKEN_BYTES]
        return head + self._pool[start : start + rest]
