"""Block hash -> holders, as a mask of several or the stamp of one; and what it all weighs.

The table is many small dicts, since one of 2 million blocks stops the process for 0.3 s
when it resizes, and one of 4,000 for 0.2 ms. They have unequal shares of the hashes: so they
double one after the other, and a block takes the same bytes at every size.
"""

import sys
from typing import Final

from pointsman.core.ids import KeptInt
from pointsman.core.limits import NODES_MAX

SLOT_MASK: Final = NODES_MAX - 1
SLOT_BITS: Final = SLOT_MASK.bit_length()
assert 1 << SLOT_BITS == NODES_MAX, "a stamp's low bits are its slot"

WAYS: Final = 1 << 15
WAY_MASK: Final = WAYS - 1

Ways = list[dict[KeptInt, KeptInt]]
"""By the low bits of a hash: the dict that it belongs in, of which several have the same."""

_SHARES: Final = (5, 6, 7, 8, 9)
_MASKS_MAX: Final = 16_384  # equal masks are one object; above this many, sharing starts afresh

# Bytes of memory, held to the truth by tests/core/prefix/test_prefix_memory.py.
_BASE_BYTES: Final = 600_000
_BLOCK_BYTES: Final = 32 + 52  # the hash, and its place in the table
_SHARED_BYTES: Final = 40  # its place in a holder's dict of stamps
_MASK_BYTES: Final = 76  # an interned mask, without its bits
_HOLDER_BYTES: Final = 2_000
_RUN_BYTES: Final = 230  # stamp, place in the order of use, run, array
_RUN_HASH_BYTES: Final = 8

# The most that holding one block more can cost, and what comes with a call: a run for what
# it adds, one for what it splits, and some masks.
_ADDED_BYTES: Final = _RUN_HASH_BYTES + max(_BLOCK_BYTES, 2 * _SHARED_BYTES)
_CALL_ADDED: Final = -(-(2 * _RUN_BYTES + 16 * _MASK_BYTES) // _ADDED_BYTES)
_TIDIED_AFTER: Final = 16  # changes, for one dict that is looked at


class BlockTable:
    """The dicts, and the counts from which memory is reckoned.

    `ways[hash & WAY_MASK]` is the dict that a hash belongs in: hot loops reach in directly.
    """

    __slots__ = (
        "_changes",
        "_masks",
        "_next_tidied",
        "_room",
        "_serial",
        "_tables",
        "bytes_max",
        "distinct",
        "holders",
        "run_hashes",
        "runs",
        "shared",
        "ways",
    )

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.ways: Ways = [{}] * WAYS  # many tables stay empty: the first run brings the dicts
        self._tables = self.ways[:1]
        self._next_tidied = 0
        self._changes = 0
        self._room = 0  # blocks that fit for certain, before memory is reckoned anew
        self._masks: dict[KeptInt, KeptInt] = {}
        self._serial = 0
        self.distinct = 0  # blocks in the table
        self.shared = 0  # places in the holders' dicts of stamps
        self.runs = 0
        self.run_hashes = 0  # the dead ones twice
        self.holders = 0

    def value(self, block: KeptInt) -> KeptInt:
        """A mask of several holders, the stamp of the only one, or 0."""
        way: int = block & WAY_MASK
        return self.ways[way].get(block, 0)

    def mask(self, block: KeptInt) -> int:
        """The holders of `block`, a bit each."""
        value: int = self.value(block)
        return value if value >= 0 else 1 << (~value & SLOT_MASK)

    def new_stamp(self, slot: int) -> KeptInt:
        """The name of a new run of this slot's, to be asked for before its blocks are entered."""
        if not self._serial:
            self.ways, self._tables = _staggered_dicts()
        self._serial += 1
        return ~(self._serial << SLOT_BITS | slot)

    def interned(self, mask: KeptInt) -> KeptInt:
        """An equal mask, the same object for all its blocks."""
        if len(self._masks) >= _MASKS_MAX:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)

    def bytes(self) -> int:
        """Memory in use, reckoned from counts: within a fifth of the truth."""
        return (
            _BASE_BYTES
            + self.distinct * _BLOCK_BYTES
            + self.shared * _SHARED_BYTES
            + self.runs * _RUN_BYTES
            + self.run_hashes * _RUN_HASH_BYTES
            + self.holders * _HOLDER_BYTES
            + len(self._masks) * (_MASK_BYTES + self.holders // 7)
        )

    def has_room(self, added: int) -> bool:
        """Whether a call may add so many blocks, in a run of their own."""
        if self._room < added + _CALL_ADDED:
            self._room = (self.bytes_max - self.bytes()) // _ADDED_BYTES
        return self._room >= added + _CALL_ADDED

    def room(self) -> int:
        """How many blocks a call may add."""
        self.has_room(0)
        return max(0, self._room - _CALL_ADDED)

    def take_room(self, added: int) -> None:
        """Count the blocks that a call adds."""
        self._room -= added + _CALL_ADDED

    def changed(self, blocks: int) -> bool:
        """Count blocks that came or went. Returns whether it is time to `tidy`."""
        self._changes += blocks
        return self._changes >= _TIDIED_AFTER

    def tidy(self) -> None:
        """Rebuild dicts that deletions have left too wide: a few at a time, in turn."""
        tables, at = self._tables, self._next_tidied
        for _ in range(self._changes // _TIDIED_AFTER):
            at = (at + 1) % len(tables)
            shrink(tables[at])
        self._next_tidied, self._changes = at, 0

    def is_empty(self) -> bool:
        """Nothing is stored, nor remembered."""
        return self.distinct == self.runs == 0

    def items(self) -> list[tuple[KeptInt, KeptInt]]:
        """Every block with its value. For checks."""
        filled = [table for table in self._tables if table]
        for table in filled:
            assert all(self.ways[block & WAY_MASK] is table for block in table)
        return [item for table in filled for item in table.items()]


def shrink(table: dict[KeptInt, KeptInt]) -> None:
    """Rebuild `table` if it is wider than a fresh copy, which has 30 to 60 bytes an item."""
    if sys.getsizeof(table) > 64 * len(table) + 256:
        items = table.copy()
        table.clear()
        table.update(items)


def _staggered_dicts() -> tuple[Ways, Ways]:
    """The dict of each value of a hash's low bits, and the dicts: 5 to 9 values share one.

    Dealt out a stride at a time, which takes a sixth of the time of one value after the other.
    """
    stride = sum(_SHARES)
    rounds = -(-WAYS // stride)
    tables: Ways = [{} for _ in range(rounds * len(_SHARES))]
    ways = tables[:1] * (rounds * stride)
    nth_of_stride = [nth for nth, share in enumerate(_SHARES) for _ in range(share)]
    for way, nth in enumerate(nth_of_stride):
        ways[way::stride] = tables[nth :: len(_SHARES)]
    return ways[:WAYS], tables
