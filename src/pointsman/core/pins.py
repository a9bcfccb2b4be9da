"""What running requests hold of a node's KV cache together: each shared block once.

An engine keeps one copy of a prefix for all requests that run on it, and keeps it until the last
of them ends. What is cached and held by nobody is room: whoever comes and needs it takes it from
the free ones. So a request needs of its prompt what no other one there holds just then.

A prompt is pinned in segments that end at fixed depths of its chain, four in each doubling: for
64 blocks and more, at most a fifth of what two prompts share lies behind the last of these, and
is counted for each. A pinned segment's predecessors are pinned, since every holder has all.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from pointsman.core.ids import BlockHash
from pointsman.core.placement import NO_SEGMENTS, Segments

_STEPS: Final = 4


def _mark_depths(depth_max: int) -> list[int]:
    depths = list(range(1, 2 * _STEPS))
    width = 2
    while depths[-1] < depth_max:
        depths += range(_STEPS * width, 2 * _STEPS * width, width)
        width *= 2
    return depths


_DEPTHS: Final = _mark_depths(1 << 20)
"""For 16 million tokens in blocks of 16."""


def mark_depths(chain_length: int) -> list[int]:
    """Where the segments of a chain of so many blocks end, the last of them within it."""
    return _DEPTHS[: bisect_right(_DEPTHS, chain_length)]


def segments(chain: Sequence[BlockHash], blocks_per_hash: float) -> Segments:
    """The segments of a prompt, of so many of the node's blocks for each of its hashes."""
    depths = mark_depths(len(chain))
    if not depths:
        return NO_SEGMENTS
    return Segments(
        [chain[depth - 1] for depth in depths], [int(d * blocks_per_hash) for d in depths]
    )


class Pins:
    """One node's segments that are held, and by how many."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[BlockHash, _Pin] = {}

    def shared(self, of: Segments) -> int:
        """Blocks of these that are held already."""
        held, marks = self._held, of.marks
        low, high = 0, len(marks) if held else 0
        while low < high:
            middle = (low + high) // 2
            if marks[middle] in held:
                low = middle + 1
            else:
                high = middle
        return of.ends[low - 1] if low else 0

    def pin(self, of: Segments) -> int:
        """One more request holds these. Returns the blocks that nobody held before."""
        held, ends, new, before = self._held, of.ends, 0, 0
        for at, mark in enumerate(of.marks):
            pin, end = held.get(mark), ends[at]
            if pin is None:
                held[mark] = _Pin(end - before)
                new += end - before
            else:
                pin.holders += 1
            before = end
        return new

    def unpin(self, of: Segments) -> int:
        """One request holds them no more. Returns the blocks that nobody holds now."""
        held, freed = self._held, 0
        for mark in of.marks:
            pin = held[mark]
            pin.holders -= 1
            if not pin.holders:
                freed += held.pop(mark).blocks
        return freed

    def held_once(self, of: Segments) -> int:
        """Blocks of these, which are held, that nobody else holds."""
        pins = [self._held[mark] for mark in of.marks]
        return sum(pin.blocks for pin in pins if pin.holders == 1)

    @property
    def blocks(self) -> int:
        """All that are held."""
        return sum(pin.blocks for pin in self._held.values())


class _Pin:
    __slots__ = ("blocks", "holders")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.holders = 1
