"""The paged KV cache: reference-counted blocks, a prefix cache over full ones, LRU eviction.

A block is in one of four states:

    blank      never used, or freed with no reusable content      (a count)
    anonymous  held by one sequence, content not reusable         (a count)
    held       cached and referenced by one or more sequences     hash -> references
    idle       cached, referenced by none                         hash, least recently used first

Blocks of one state are alike, so no block has a number: memory is proportional to what is cached.
A second copy of a block that is cached already stays anonymous, as vLLM keeps the duplicate block.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pointsman.engines.compute_model.jobs import CacheCleared, CacheEvent, Removed


class BlockPool:
    """Owns every block of one engine. `events` collects evictions until the model takes them."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.events: list[CacheEvent] = []
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._anonymous = 0

    @property
    def used(self) -> int:
        """Blocks held by sequences; cached blocks that nobody references count as free."""
        return len(self._held) + self._anonymous

    @property
    def free(self) -> int:
        return self.blocks - self.used

    @property
    def cached(self) -> frozenset[int]:
        """All hashes that a new sequence could reuse (a copy, for tests and checks)."""
        return frozenset(self._held) | frozenset(self._idle)

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """How many leading blocks are cached, at most `limit`."""
        held, idle = self._held, self._idle
        count = 0
        for block in hashes[:limit]:
            if block not in held and block not in idle:
                break
            count += 1
        return count

    def idle_among(self, hashes: Iterable[int]) -> int:
        """How many of these cached blocks would leave the free list if they were referenced."""
        return sum(block in self._idle for block in hashes)

    def acquire(self, hashes: Iterable[int]) -> None:
        """Take a reference on cached blocks."""
        for block in hashes:
            if block in self._idle:
                del self._idle[block]
                self._held[block] = 1
            else:
                self._held[block] += 1

    def allocate(self, count: int) -> None:
        """Take `count` anonymous blocks: blank ones first, then the least recently used idle."""
        assert count <= self.free, f"{count} blocks wanted, {self.free} free"
        evicted = count - (self.free - len(self._idle))
        if evicted > 0:
            idle = self._idle
            self.events.append(Removed([idle.popitem(last=False)[0] for _ in range(evicted)]))
        self._anonymous += count

    def publish(
        self, hashes: Sequence[int], first: int, last: int, named: list[int]
    ) -> list[tuple[int, int]]:
        """Give the anonymous blocks [first, last) of a chain, full now, their hashes.

        A block of which another copy is cached stays anonymous. Appends the others to the holder's
        `named` and returns them as runs [first, last).
        """
        held, idle = self._held, self._idle
        runs: list[tuple[int, int]] = []
        before = len(named)
        start = first
        for index in range(first, last):
            block = hashes[index]
            if block in held or block in idle:
                if index > start:
                    runs.append((start, index))
                start = index + 1
            else:
                held[block] = 1
                named.append(block)
        if last > start:
            runs.append((start, last))
        self._anonymous -= len(named) - before
        return runs

    def release(self, named: list[int], anonymous: int) -> None:
        """Drop a sequence's references, last block first: leaves are evicted before roots."""
        held, idle = self._held, self._idle
        for block in reversed(named):
            references = held[block] - 1
            if references:
                held[block] = references
            else:
                del held[block]
                idle[block] = None
        self._anonymous -= anonymous

    def clear(self) -> bool:
        """Forget every cached block. Refused (False) while any block is in use, as in vLLM."""
        if self.used:
            return False
        self._idle.clear()
        self.events.append(CacheCleared())
        return True

    def check(self, holdings: Iterable[tuple[list[int], int]]) -> None:
        """Assert conservation against what the sequences say they hold: (named, anonymous) each."""
        references: dict[int, int] = {}
        anonymous = 0
        for named, unnamed in holdings:
            assert unnamed >= 0, f"a sequence holds {unnamed} anonymous blocks"
            anonymous += unnamed
            for block in named:
                references[block] = references.get(block, 0) + 1
        assert references == self._held, "reference counts differ from the sequences' holdings"
        assert anonymous == self._anonymous, f"{self._anonymous} anonymous, {anonymous} accounted"
        assert not self._held.keys() & self._idle.keys(), "a block is held and idle at once"
        blank = self.blocks - self.used - len(self._idle)
        assert blank >= 0, f"more blocks in use than exist: blank = {blank}"
