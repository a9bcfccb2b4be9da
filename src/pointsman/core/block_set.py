"""The blocks of one node under our own hashes, with digests by which two copies are compared.

An agent beside the node keeps one, the scheduler another, and only changes travel. A digest
is the exclusive or of hashes: it does not depend on the order of changes, and costs one
operation a block. That two sets that differ have equal digests takes 2^60 tries, unless
somebody forges hashes; who could do so need only lie about the set itself.

Blocks lie in buckets, by the top bits of their hashes: two copies that differ compare the
buckets' digests, find out where, and exchange no more than that.
"""

from collections.abc import Sequence
from typing import Final

from pointsman.core.ids import HASH_BITS, BlockHash, KeptInt

BUCKETS: Final = 64
_SHIFT: Final = HASH_BITS - 6
_DICTS: Final = 8
_DICT_SHIFT: Final = HASH_BITS - 3
"""A dict for eight buckets: a heartbeat's changes meet the same few pages of memory, and one dict
for all would hold up the process for longer when it grows."""
_ABSENT: Final = ()


class BlockSet:
    """At most `blocks_max` blocks; `overflows` counts those that were left out."""

    def __init__(self, blocks_max: int) -> None:
        assert blocks_max > 0, blocks_max
        self.blocks_max = blocks_max
        self.overflows = 0
        self.digest = 0
        self._count = 0
        self._dicts: list[dict[KeptInt, None]] = [{} for _ in range(_DICTS)]

    def __repr__(self) -> str:
        return f"<BlockSet {self._count} of at most {self.blocks_max}, {self.overflows} overflows>"

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._dicts[block >> _DICT_SHIFT]

    def bucket(self, number: int) -> list[BlockHash]:
        """The blocks in one bucket."""
        shared = self._dicts[number * _DICTS // BUCKETS]
        return [block for block in shared if bucket_of(block) == number]

    def bucket_digests(self) -> Sequence[int]:
        """Reckoned when two copies differ, which is rare: 15 ms for 100,000 blocks."""
        digests = [0] * BUCKETS
        for block in self.blocks():
            digests[bucket_of(block)] ^= block
        return digests

    def add(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Add them. Returns those that were not there before."""
        added: list[KeptInt] = []
        dicts, room = self._dicts, self.blocks_max - self._count
        kept: Sequence[KeptInt] = hashes
        for block in kept:
            number: int = block
            known = dicts[number >> _DICT_SHIFT]
            if block in known:
                continue
            if len(added) >= room:
                self.overflows += 1
                continue
            known[block] = None
            added.append(block)
        self.digest = with_hashes(self.digest, added)
        self._count += len(added)
        return added

    def remove(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Remove them. Returns those that were there before."""
        removed: list[KeptInt] = []
        dicts = self._dicts
        kept: Sequence[KeptInt] = hashes
        for block in kept:
            number: int = block
            if dicts[number >> _DICT_SHIFT].pop(block, _ABSENT) is not _ABSENT:
                removed.append(block)
        self.digest = with_hashes(self.digest, removed)
        self._count -= len(removed)
        return removed

    def replace(
        self, number: int, hashes: Sequence[BlockHash]
    ) -> tuple[list[BlockHash], list[BlockHash]]:
        """Make a bucket hold exactly `hashes`, apart from those that belong in another one. Returns
        what came by that, and what left."""
        wanted = dict.fromkeys([block for block in hashes if bucket_of(block) == number])
        removed = self.remove([block for block in self.bucket(number) if block not in wanted])
        return self.add(list(wanted)), removed

    def blocks(self) -> list[BlockHash]:
        """All of them."""
        return [block for blocks in self._dicts for block in blocks]

    def check(self) -> None:
        """Assert that counts and digests are those of the blocks."""
        assert self._count == sum(map(len, self._dicts)) <= self.blocks_max, self
        assert self.digest == with_hashes(0, self.bucket_digests()), self
        for number, blocks in enumerate(self._dicts):
            assert all(block >> _DICT_SHIFT == number for block in blocks), (number, self)


def bucket_of(block: BlockHash) -> int:
    """The number of the bucket that a block belongs in."""
    return block >> _SHIFT


def with_hashes(digest: int, hashes: Sequence[int]) -> int:
    """The digest once these have come, or left."""
    for block in hashes:
        digest ^= block
    return digest
