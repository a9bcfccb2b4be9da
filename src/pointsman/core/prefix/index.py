"""The index itself: ask which nodes hold a prompt, tell it what they hold."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from pointsman.core.ids import BlockHash, KeptInt, Slot
from pointsman.core.limits import INDEX_BYTES_MAX, NODES_MAX
from pointsman.core.prefix.holder import Holder
from pointsman.core.prefix.match import match, slots
from pointsman.core.prefix.run import Added
from pointsman.core.prefix.sole import enter, take_out
from pointsman.core.prefix.table import SLOT_MASK, WAY_MASK, BlockTable, shrink

_EVICTED_AT_ONCE: Final = 256  # blocks taken from the fullest holder before looking for it again
_NOTHING: Final = Added()  # by most placements of a prompt that is known
_NOTHING.stamp = 0


class PrefixIndex:
    """Block hash -> holders, under a hard cap of memory.

    `bytes_max` bounds `bytes()`: what does not fit evicts from the slot with the most
    blocks, and is left out where that isn't enough. The hashes of one call are of one
    chain, in its order.
    """

    def __init__(self, *, bytes_max: int = INDEX_BYTES_MAX) -> None:
        assert bytes_max > 0, bytes_max
        self.bytes_max = bytes_max
        self._table = BlockTable(bytes_max)
        self._holders: dict[int, Holder] = {}

    def __repr__(self) -> str:
        return (
            f"<PrefixIndex {self._table.distinct} blocks on {len(self._holders)} slots, "
            f"{self.bytes() / 2**20:.1f} of {self.bytes_max / 2**20:.1f} MiB>"
        )

    # --- asking: changes nothing ---

    def match(self, chain: Sequence[BlockHash]) -> list[tuple[int, int]]:
        """`(mask, depth)`, deepest first: the slots in `mask` hold the first `depth` blocks.

        The masks are disjoint, depths at least 1. Block `depth - 1` has been looked up and
        is held, block `depth` is not; what lies between two equal masks is taken to be held.
        Where masks contradict that (an exact node may have holes), the chain is walked.
        """
        return match(self._table.ways, chain)

    def depth(self, slot: Slot, chain: Sequence[BlockHash]) -> int:
        """How many of the chain's first blocks `slot` holds, by bisection."""
        table, bit = self._table, 1 << slot
        return bisect_left(chain, True, key=lambda block: not table.mask(block) & bit)

    def holders(self, block: BlockHash) -> int:
        """The mask of the slots that hold `block`."""
        return self._table.mask(block)

    def blocks(self, slot: Slot) -> int:
        """How many blocks `slot` holds."""
        holder = self._holders.get(slot)
        return 0 if holder is None else holder.blocks

    def bytes(self) -> int:
        """Memory in use, reckoned from counts: within a fifth of the truth."""
        return self._table.bytes()

    # --- nodes guessed from our own placements ---

    def credit(self, slot: Slot, chain: Sequence[BlockHash]) -> Added:
        """A prompt goes to `slot`: hold the blocks of its whole `chain`, from the first on.

        Returns what was added. Blocks that are held already count as used now. Evicts what
        exceeds the slot's capacity: least recently used first, of one chain the deepest first,
        never this chain. Its tail is left out if it is longer than the capacity, or than
        memory allows.
        """
        holder = self._holder(slot)
        if holder.exact:
            return self._advance(holder, chain)
        fits = chain if holder.capacity is None else chain[: holder.capacity]
        if self._table.has_room(len(fits)):
            path, held = holder.follow(fits)
            missing = len(fits) - held
        else:
            path, held, missing = self._follow_with_room(holder, fits)
        if not missing:
            holder.use(path)
            return _NOTHING
        added = self._add(holder, fits[held : held + missing])
        holder.use(path)
        if holder.capacity is not None and holder.blocks > holder.capacity:
            self._evict(holder, holder.blocks - holder.capacity)
        self._tidy(holder, len(added))
        return added

    def _follow_with_room(
        self, holder: Holder, chain: Sequence[BlockHash]
    ) -> tuple[list[KeptInt], int, int]:
        """`Holder.follow` where memory is short, and how many blocks may be added."""
        if not self._table.has_room(0):
            self._make_room(0)
        path, held = holder.follow(chain) if self._table.has_room(0) else ([], 0)
        missing = len(chain) - held
        if not self._table.has_room(missing):
            holder.use(path)
            missing = min(missing, self._make_room(missing))
            path, held = holder.follow(chain)
        return path, held, missing

    def _advance(self, holder: Holder, chain: Sequence[BlockHash]) -> Added:
        """Credit a node whose engine tells what it holds: until it tells of these, too."""
        added = self._add(holder, self._absent(holder, chain))
        self._tidy(holder, len(added))
        return added

    def _add(self, holder: Holder, hashes: Sequence[KeptInt]) -> Added:
        """Let `holder` hold `hashes` as its newest run, but for those that it held."""
        stamp = self._table.new_stamp(holder.number)
        added = Added(self._hold(holder, hashes, stamp))
        added.stamp = stamp
        holder.add_run(stamp, added)
        return added

    def withdraw(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Take back blocks that a placement added: an `Added`, or a part of one.

        Of a whole `Added`, what another placement has used since stays.
        """
        holder = self._holders.get(slot)
        if holder is None:
            return
        stamp = hashes.stamp if isinstance(hashes, Added) else None
        if stamp is not None and holder.was_used_again(stamp):
            return
        self._drop(holder, hashes[::-1], only=stamp)

    def set_capacity(self, slot: Slot, blocks: int | None) -> None:
        """How many blocks `credit` may let `slot` hold; None sets no bound."""
        assert blocks is None or blocks >= 0, blocks
        holder = self._holder(slot)
        holder.capacity = blocks
        if blocks is not None and holder.blocks > blocks:
            self._evict(holder, holder.blocks - blocks)

    # --- nodes that tell what they hold ---

    def insert(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Note that the engine holds these blocks. No capacity bounds them, only memory does."""
        holder = self._holder(slot)
        holder.exact = True
        if not self._table.has_room(len(hashes)):
            hashes = self._absent(holder, hashes)
        stamp = holder.gathering()
        if added := self._hold(holder, hashes, stamp):
            holder.gather(stamp, added)
            self._tidy(holder, len(added))

    def remove(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """The engine dropped these blocks. One that `slot` does not hold changes nothing."""
        holder = self._holders.get(slot)
        if holder is not None:
            self._drop(holder, hashes)

    # --- both ---

    def clear(self, slot: Slot) -> None:
        """`slot` holds nothing any more; its capacity stays."""
        holder = self._holders.get(slot)
        if holder is not None:
            self._evict(holder, holder.blocks)
            assert holder.blocks == 0, holder.blocks
            holder.exact = False

    def forget(self, slot: Slot) -> None:
        """The node is gone: its slot may be given to another."""
        self.clear(slot)
        if self._holders.pop(slot, None) is not None:
            self._table.holders -= 1

    def check(self) -> None:
        """Assert that table, holders, histories and counts tell one story. Slow."""
        held: dict[int, dict[KeptInt, KeptInt]] = {number: {} for number in self._holders}
        items = self._table.items()
        for block, value in items:
            assert value < 0 or value & (value - 1), (block, value)
            for number in slots(self._table.mask(block)):
                held[number][block] = self._holders[number].stamp(block, value)
        runs = [holder.check(held[number]) for number, holder in self._holders.items()]
        table, holders = self._table, self._holders.values()
        assert table.distinct == len(items), (table.distinct, len(items))
        assert table.shared == sum(len(holder.shared) for holder in holders)
        assert table.runs == sum(count for count, _ in runs), table.runs
        assert table.run_hashes == sum(hashes for _, hashes in runs), table.run_hashes
        assert table.holders == len(holders), (table.holders, len(holders))
        assert table.is_empty() or self.bytes() <= self.bytes_max, repr(self)

    # --- holding, releasing, evicting ---

    def _holder(self, slot: Slot) -> Holder:
        holder = self._holders.get(slot)
        if holder is None:
            assert 0 <= slot < NODES_MAX, slot
            holder = self._holders[slot] = Holder(slot, self._table)
            self._table.holders += 1
        return holder

    def _hold(self, holder: Holder, hashes: Sequence[KeptInt], stamp: KeptInt) -> list[KeptInt]:
        """Let `holder` hold `hashes` in the run `stamp`; returns those it did not hold."""
        fresh = enter(self._table.ways, hashes, stamp)
        self._table.distinct += fresh
        added = list(hashes[:fresh])
        if fresh < len(hashes):
            added += self._hold_with_others(holder, hashes[fresh:], stamp)
        holder.blocks += len(added)
        self._table.take_room(len(added))
        return added

    def _hold_with_others(
        self, holder: Holder, hashes: Sequence[KeptInt], stamp: KeptInt
    ) -> list[KeptInt]:
        """`_hold`, where others or `holder` itself may hold some of them."""
        ways, shared, bit = self._table.ways, holder.shared, holder.bit
        added: list[KeptInt] = []
        fresh = 0
        joined: KeptInt = 0  # neighbours in a chain mostly have the same holders
        joined_mask: KeptInt = 0
        for block in hashes:
            table = ways[block & WAY_MASK]
            value = table.get(block)
            if value is None:
                table[block] = stamp
                fresh += 1
            elif holder.stamp(block, value):
                continue
            else:
                if value < 0:
                    value = self._share(block, value)
                if joined != value:
                    joined, joined_mask = value, self._table.interned(value | bit)
                table[block] = joined_mask
                shared[block] = stamp
                self._table.shared += 1
            added.append(block)
        self._table.distinct += fresh
        return added

    def _share(self, block: KeptInt, stamp: KeptInt) -> int:
        """Let the only holder of `block` keep its stamp itself; returns the holder's bit."""
        owner = self._holders[~stamp & SLOT_MASK]
        owner.shared[block] = stamp
        self._table.shared += 1
        return owner.bit

    def _drop(
        self, holder: Holder, hashes: Sequence[KeptInt], *, only: KeptInt | None = None
    ) -> None:
        """`holder` no longer holds those of `hashes` that it did, or that are in the run `only`."""
        for stamp, blocks in self._release(holder, hashes, only).items():
            holder.dropped(blocks, stamp)
        self._tidy(holder, len(hashes))

    def _release(
        self, holder: Holder, hashes: Sequence[KeptInt], only: KeptInt | None
    ) -> dict[KeptInt, list[KeptInt]]:
        """Take `hashes` off the table, as far as `holder` held them: by the run they were in."""
        taken, several = take_out(self._table.ways, hashes, holder.number, only)
        self._table.distinct -= sum(map(len, taken.values()))
        for block in several:
            value = self._table.value(block)
            stamp = holder.stamp(block, value)
            if stamp and (only is None or stamp == only):
                self._unshare(holder, block, value)
                taken.setdefault(stamp, []).append(block)
        for blocks in taken.values():
            holder.blocks -= len(blocks)
        return taken

    def _unshare(self, holder: Holder, block: KeptInt, value: KeptInt) -> None:
        """Leave `block` to the other holders in its mask `value`."""
        del holder.shared[block]
        self._table.shared -= 1
        left = value ^ holder.bit
        if left & (left - 1):
            left = self._table.interned(left)
        else:
            left = self._holders[left.bit_length() - 1].shared.pop(block)
            self._table.shared -= 1
        self._table.ways[block & WAY_MASK][block] = left

    def _evict(self, holder: Holder, count: int) -> None:
        """Release up to `count` blocks, in the holder's order."""
        while count > 0 and (stamp := holder.next_victim()):
            released = self._release(holder, holder.take_tail(stamp, count), stamp)
            count -= len(released.get(stamp, ()))

    def _absent(self, holder: Holder, hashes: Sequence[KeptInt]) -> list[KeptInt]:
        """Those that `holder` does not hold, as many as memory allows."""
        ways, number, bit = self._table.ways, holder.number, holder.bit
        absent: list[KeptInt] = []
        for block in hashes:
            value = ways[block & WAY_MASK].get(block, 0)
            if not (value & bit if value >= 0 else ~value & SLOT_MASK == number):
                absent.append(block)
        if not self._table.has_room(len(absent)):
            del absent[self._make_room(len(absent)) :]
        return absent

    def _make_room(self, added: int) -> int:
        """Evict up to twice as much as is to be added; returns how much may be."""
        table = self._table
        for _ in range(1 + 2 * added // _EVICTED_AT_ONCE):
            if table.has_room(added):
                return added
            self._evict(max(self._holders.values(), key=_blocks), _EVICTED_AT_ONCE)
        return added if table.has_room(added) else min(added, table.room())

    def _tidy(self, holder: Holder, changes: int) -> None:
        if self._table.changed(changes):
            shrink(holder.shared)
            self._table.tidy()


def _blocks(holder: Holder) -> int:
    return holder.blocks
