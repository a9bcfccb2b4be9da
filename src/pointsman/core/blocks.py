"""Chained block hashing: a prompt becomes a list of hashes, one for each full block.

The hash of block n covers blocks 0..n: `h[n] = xxh3(block[n], seed=h[n-1])`, and `h[-1]` is
the hash of namespace and scheme. So two prompts share h[n] only if they agree from the
start, in the same namespace, cut the same way; one dict can index every scheme at once.

xxh3 is not collision-proof against an adversary. What a forged collision buys is a wrong
guess about a cache, never another tenant's text: engines verify their own blocks.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, cast

from xxhash import xxh3_64_intdigest

from pointsman.core.ids import HASH_MASK, BlockHash
from pointsman.core.scheme import TEXT_SCHEME, Namespace, Scheme, Unit

_BYTES: Final = Unit.BYTES  # Python 3.11 takes 0.1 us to look an enum's member up


@lru_cache(maxsize=4_096)
def root_hash(namespace: Namespace, scheme: Scheme) -> BlockHash:
    """The chain's seed. Length-prefixed, so that ("ab", "c") and ("a", "bc") differ."""
    parts = (namespace.model, namespace.salt, f"{scheme.unit}:{scheme.size}")
    seed = b"".join([len(p.encode()).to_bytes(4) + p.encode() for p in parts])
    return BlockHash(xxh3_64_intdigest(seed) & HASH_MASK)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as the fixed-width bytes that are hashed: 8 each, so no id is cut off.

    Raises OverflowError for an id outside 64 bits.
    """
    return array("q", tokens).tobytes()


def chain(data: bytes, size_bytes: int, parent: BlockHash) -> list[BlockHash]:
    """Hashes of the full blocks of `data` after `parent`; the rest of it has none."""
    hashes: list[int] = []
    digest, previous = xxh3_64_intdigest, int(parent)
    for start in range(0, len(data) - size_bytes + 1, size_bytes):
        previous = digest(data[start : start + size_bytes], previous) & HASH_MASK
        hashes.append(previous)
    return cast("list[BlockHash]", hashes)  # a call a block would cost a seventh of the loop


_TOKEN_BYTES: Final = 8


class Prompt:
    """A request's prompt, hashed on demand and once for each scheme.

    Holds the canonical text of the conversation, its token ids, or both. `namespace` keeps
    the chains of different models, adapters and salts apart.
    """

    __slots__ = ("_chains", "_fingerprint", "_token_bytes", "namespace", "text", "token_count")

    def __init__(
        self,
        namespace: Namespace,
        *,
        text: bytes = b"",
        tokens: Sequence[int] | None = None,
    ) -> None:
        self.namespace = namespace
        self.text = text
        self.token_count = None if tokens is None else len(tokens)
        self._token_bytes = None if tokens is None else token_bytes(tokens)
        self._chains: dict[Scheme, list[BlockHash]] = {}
        self._fingerprint: int | None = None

    @classmethod
    def chained(
        cls,
        namespace: Namespace,
        token_count: int,
        chains: dict[Scheme, list[BlockHash]],
        fingerprint: int = 0,
    ) -> "Prompt":
        """A prompt of which nothing is known but its length and its blocks' hashes: a trace
        tells no more. It has no blocks under other schemes."""
        prompt = cls(namespace)
        prompt.token_count = token_count
        prompt._chains = chains
        prompt._fingerprint = fingerprint
        return prompt

    def within(self, namespace: Namespace) -> "Prompt":
        """The same prompt in another namespace. A `chained` one has nothing to hash anew."""
        if self._token_bytes is None and not self.text:
            return self
        prompt = Prompt(namespace, text=self.text)
        prompt.token_count, prompt._token_bytes = self.token_count, self._token_bytes
        return prompt

    def chain(self, scheme: Scheme) -> list[BlockHash]:
        """The prompt's block hashes under `scheme`; empty where the unit is not known."""
        known = self._chains.get(scheme)
        if known is None:
            known = self._chains[scheme] = self._hash(scheme)
        return known

    def fingerprint(self) -> int:
        """Tells whole prompts apart, the rest behind the last full block included; 0 where
        nothing is known of it. Hashed when first asked for, 0.1 ms a megabyte."""
        if self._fingerprint is None:
            data = self.text or self._token_bytes
            seed = root_hash(self.namespace, TEXT_SCHEME)
            self._fingerprint = (xxh3_64_intdigest(data, seed) & HASH_MASK or 1) if data else 0
        return self._fingerprint

    def _hash(self, scheme: Scheme) -> list[BlockHash]:
        root = root_hash(self.namespace, scheme)
        if scheme.unit is _BYTES:
            return chain(self.text, scheme.size, root)
        if self._token_bytes is None:
            return []
        return chain(self._token_bytes, scheme.size * _TOKEN_BYTES, root)
