"""One node's blocks and the order in which they were used.

The uses lie in order in a history of (stamp, hashes); a hash in it is live if the block's
stamp is still that one. A later use of a chain renews it from the start, so what is dead is
the front of an entry: found by bisection, cut off without touching the rest. (What engines
tell has no such order: there, entries are looked through.)
"""

from array import array
from collections import deque
from collections.abc import Sequence
from functools import reduce
from operator import xor

from pointsman.core.ids import BlockHash
from pointsman.core.prefix.table import SLOT_BITS, SLOT_MASK, WAY_MASK, BlockTable

_ENTRY_HASHES_MAX = 128  # an exact node's events are gathered up to this many hashes
_SLACK = 256  # a history may have this many dead hashes besides as many as are live
_SWEPT_ENTRIES_MAX = 16  # entries looked at in one call

Entry = tuple[int, "array[int]"]


class Holder:
    """What one node holds: counts, digest, stamps of shared blocks, history."""

    __slots__ = (
        "_fresh",
        "_swept",
        "_table",
        "bit",
        "blocks",
        "capacity",
        "digest",
        "exact",
        "history_entries",
        "history_hashes",
        "number",
        "shared",
    )

    def __init__(self, number: int, table: BlockTable) -> None:
        self.number = number
        self.bit = 1 << number
        self.capacity: int | None = None
        self.exact = False  # has been told what its engine holds
        self.blocks = 0
        self.digest = 0
        self.shared: dict[int, int] = {}  # block that others hold too -> stamp
        self.history_entries = 0
        self.history_hashes = 0
        self._table = table
        self._swept: deque[Entry] = deque()  # older than all in `_fresh`
        self._fresh: deque[Entry] = deque()

    def stamp(self, block: int, value: int) -> int:
        """The stamp of `block`'s last use here, given its value in the table; 0 if not held."""
        if value < 0:
            return value if ~value & SLOT_MASK == self.number else 0
        return self.shared[block] if value & self.bit else 0

    def used(self, stamp: int, hashes: Sequence[BlockHash]) -> None:
        """`hashes` have been used at `stamp`."""
        if hashes:
            self._fresh.append((stamp, array("Q", hashes)))
            self._count(entries=1, hashes=len(hashes))

    def gathered(self, stamp: int) -> int:
        """The stamp of the newest entry, if it has room for more, else `stamp`, opened."""
        if not self._fresh or len(self._fresh[-1][1]) >= _ENTRY_HASHES_MAX:
            self._fresh.append((stamp, array("Q")))
            self._count(entries=1, hashes=0)
        return self._fresh[-1][0]

    def gather(self, hashes: Sequence[BlockHash]) -> None:
        """Put `hashes` into the newest entry."""
        self._fresh[-1][1].extend(hashes)
        self._count(entries=0, hashes=len(hashes))

    def pop_victim(self) -> tuple[int, int]:
        """A block to evict, and its value in the table; (0, 0) if nothing is left.

        It is the deepest of the least recently used chain. Of an exact node, whose uses
        nobody tells, it is the newest: either way what remains of a chain is its start.
        """
        at = -1 if self.exact else 0
        while history := self._part_for_eviction():
            stamp, hashes = history[at]
            while hashes:
                block = hashes.pop()
                self._count(entries=0, hashes=-1)
                value = self._table.value(block)
                used = self.stamp(block, value)
                if used == stamp:
                    return block, value
                if used and not self.exact:  # used again since, as all that comes before it
                    self._count(entries=0, hashes=-len(hashes))
                    del hashes[:]
            del history[at]
            self._count(entries=-1, hashes=0)
        return 0, 0

    def _part_for_eviction(self) -> deque[Entry]:
        if self.exact:
            return self._fresh or self._swept
        return self._swept or self._fresh

    def clear_history(self) -> None:
        """Nothing is held any more, so every entry is dead."""
        assert self.blocks == 0, self.blocks
        self._count(entries=-self.history_entries, hashes=-self.history_hashes)
        self._fresh.clear()
        self._swept.clear()
        self.exact = False

    def sweep(self, hashes_max: int) -> None:
        """Drop dead hashes from some entries, oldest first, while they are the majority."""
        for _ in range(_SWEPT_ENTRIES_MAX):
            if self.history_hashes <= 2 * self.blocks + _SLACK or hashes_max <= 0:
                return
            if not self._fresh:
                self._fresh, self._swept = self._swept, self._fresh
            stamp, hashes = self._fresh.popleft()
            hashes_max -= len(hashes)
            live = self._looked_through(stamp, hashes) if self.exact else self._cut(stamp, hashes)
            self._count(entries=-1, hashes=len(live) - len(hashes))
            if live:
                self._settle(stamp, live)

    def _cut(self, stamp: int, hashes: "array[int]") -> "array[int]":
        """`hashes` without the front that was used again and the tail that is not held."""
        first, end = 0, len(hashes)
        while first < end:
            middle = (first + end) >> 1
            if self._last_used(hashes[middle]) in (0, stamp):
                end = middle
            else:
                first = middle + 1
        end = len(hashes)
        while end > first and self._last_used(hashes[end - 1]) != stamp:
            end -= 1
        return hashes[first:end]

    def _looked_through(self, stamp: int, hashes: "array[int]") -> "array[int]":
        once = dict.fromkeys(hashes)
        return array("Q", [block for block in once if self._last_used(block) == stamp])

    def _last_used(self, block: int) -> int:
        return self.stamp(block, self._table.value(block))

    def _settle(self, stamp: int, live: "array[int]") -> None:
        """Keep `live` as an entry, or in the one before, lest small entries become many."""
        if self.exact and self._swept:
            before, hashes = self._swept[-1]
            if len(hashes) + len(live) <= _ENTRY_HASHES_MAX:
                self._restamp(live, before)
                hashes.extend(live)
                return
        self._swept.append((stamp, live))
        self._count(entries=1, hashes=0)

    def _restamp(self, blocks: "array[int]", stamp: int) -> None:
        for block in blocks:
            table = self._table.ways[block & WAY_MASK]
            if table[block] < 0:
                table[block] = stamp
            else:
                self.shared[block] = stamp

    def _count(self, *, entries: int, hashes: int) -> None:
        self.history_entries += entries
        self.history_hashes += hashes
        self._table.history_entries += entries
        self._table.history_hashes += hashes

    def check(self, held: dict[int, int]) -> None:
        """Assert that these books agree with `held`, which is block -> stamp by the table."""
        assert self.blocks == len(held), (self.number, self.blocks, len(held))
        assert self.digest == reduce(xor, held, 0), self.number
        assert all(held.get(block) == stamp for block, stamp in self.shared.items())
        assert self.exact or self.capacity is None or self.blocks <= self.capacity
        entries = [*self._swept, *self._fresh]
        assert self.history_entries == len(entries), self.number
        assert self.history_hashes == sum(len(hashes) for _, hashes in entries), self.number
        serials = [~stamp >> SLOT_BITS for stamp, _ in entries]
        assert serials == sorted(serials), self.number
        live = {
            block: stamp
            for stamp, hashes in entries
            for block in hashes
            if held.get(block) == stamp
        }
        assert live == held, f"slot {self.number} holds a block that nothing can evict"
