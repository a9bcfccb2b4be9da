"""The prefix index once more, as plain as can be: what each slot holds, and when it was used."""

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from pointsman.core.ids import HASH_MASK, BlockHash


def chain(path: Sequence[int]) -> list[BlockHash]:
    """Chained hashes of a path in a tree: equal paths have equal hashes, up to the fork."""
    hashes: list[BlockHash] = []
    parent = 0
    for step in path:
        parent = xxh3_64_intdigest(bytes([step % 256]), parent) & HASH_MASK
        hashes.append(BlockHash(parent))
    return hashes


class SlowIndex:
    """Slot -> block -> (time of last use, place in its chain). Every method is a full scan."""

    def __init__(self) -> None:
        self.held: dict[int, dict[BlockHash, tuple[int, int]]] = {}
        self.capacities: dict[int, int | None] = {}
        self.now = 0

    def depth(self, slot: int, hashes: Sequence[BlockHash]) -> int:
        held = self.held.get(slot, {})
        for depth, block in enumerate(hashes):
            if block not in held:
                return depth
        return len(hashes)

    def match(self, hashes: Sequence[BlockHash]) -> list[tuple[int, int]]:
        depths: dict[int, int] = {}
        for slot in self.held:
            if depth := self.depth(slot, hashes):
                depths[depth] = depths.get(depth, 0) | 1 << slot
        return [(depths[depth], depth) for depth in sorted(depths, reverse=True)]

    def credit(self, slot: int, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        self.now += 1
        fits = hashes[: self.capacities.get(slot)]
        held = self.held.setdefault(slot, {})
        added = [block for block in fits if block not in held]
        for place, block in enumerate(fits):
            held[block] = (self.now, place)
        self.evict(slot)
        return added

    def evict(self, slot: int) -> None:
        """Least recently used first, of one use the deepest first."""
        held, capacity = self.held.setdefault(slot, {}), self.capacities.get(slot)
        while capacity is not None and len(held) > capacity:
            del held[min(held, key=lambda block: (held[block][0], -held[block][1]))]

    def withdraw(self, slot: int, added: Sequence[BlockHash], at: int) -> None:
        held = self.held.get(slot, {})
        for block in added:
            if held.get(block, (0, 0))[0] == at:
                del held[block]

    def set_capacity(self, slot: int, blocks: int | None) -> None:
        self.capacities[slot] = blocks
        self.evict(slot)

    def insert(self, slot: int, hashes: Sequence[BlockHash]) -> None:
        held = self.held.setdefault(slot, {})
        for block in hashes:
            held.setdefault(block, (self.now, 0))

    def remove(self, slot: int, hashes: Sequence[BlockHash]) -> None:
        for block in hashes:
            self.held.get(slot, {}).pop(block, None)

    def clear(self, slot: int) -> None:
        self.held.pop(slot, None)
