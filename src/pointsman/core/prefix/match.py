"""Who holds a chain, and how much of it: by bisection, since holding is prefix-monotone."""

from array import array
from collections.abc import Sequence
from typing import Final

from pointsman.core.ids import BlockHash, Slot
from pointsman.core.prefix.table import SLOT_MASK, WAY_MASK, Ways

_STRIDE: Final = 6  # blocks that are walked through sooner than bisected
_WALK_MAX: Final = 256  # so are all of a short chain that many nodes hold, each to its own depth


def match(ways: Ways, chain: Sequence[BlockHash]) -> list[tuple[int, int]]:
    """What `PrefixIndex.match` answers, of the table's `ways`."""
    if not chain or not (mask := _mask(ways, chain[0])):
        return []
    if len(chain) <= min(2 * mask.bit_count(), _WALK_MAX):
        return _walk(ways, chain)
    found: list[tuple[int, int]] = []
    at, end = 0, len(chain) - 1
    ahead = [(end, _mask(ways, chain[end]))]
    while ahead:
        far, far_mask = ahead[-1]
        if far_mask == mask:
            at = far
            ahead.pop()
            continue
        middle = (at + far) >> 1 if far - at > _STRIDE else at + 1
        held = _mask(ways, chain[middle])
        if held & ~mask or far_mask & ~held:
            return _walk(ways, chain)
        if middle - at > 1:
            ahead.append((middle, held))
        else:
            if held != mask:
                found.append((mask ^ held, middle))
                mask = held
            at = middle
    if mask:
        found.append((mask, end + 1))
    found.reverse()
    return found


def _walk(ways: Ways, chain: Sequence[BlockHash]) -> list[tuple[int, int]]:
    """The same, block by block."""
    found: list[tuple[int, int]] = []
    mask, before = -1, 0
    for depth, block in enumerate(chain):
        value: int = ways[block & WAY_MASK].get(block, 0)
        if value == before:
            continue
        before = value
        kept = mask & (value if value >= 0 else 1 << (~value & SLOT_MASK))
        if kept != mask:
            if depth:
                found.append((mask ^ kept, depth))
            mask = kept
        if not mask:
            break
    if mask:
        found.append((mask, len(chain)))
    found.reverse()
    return found


def _mask(ways: Ways, block: int) -> int:
    """The holders of `block`, a bit each."""
    value: int = ways[block & WAY_MASK].get(block, 0)
    return value if value >= 0 else 1 << (~value & SLOT_MASK)


def slots(mask: int) -> list[Slot]:
    """The slots in `mask`, ascending."""
    found: list[Slot] = []
    while mask:
        bit = mask & -mask
        found.append(Slot(bit.bit_length() - 1))
        mask ^= bit
    return found


def common(hashes: "array[int]", chain: Sequence[BlockHash], at: int) -> int:
    """How many of `hashes` are those of `chain` from `at` on: chained, so by bisection."""
    same, unlike = 0, min(len(hashes), len(chain) - at) + 1
    if hashes[unlike - 2] == chain[at + unlike - 2]:
        return unlike - 1
    while unlike - same > 1:
        middle = (same + unlike) >> 1
        if hashes[middle - 1] == chain[at + middle - 1]:
            same = middle
        else:
            unlike = middle
    return same
