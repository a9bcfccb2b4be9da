"""Blocks that one node alone holds, entered into the table's `ways` and taken out: the rule for
what engines tell, and nearly all the work of it. Whatever others hold, too, is left to the index.
"""

from collections.abc import Sequence

from pointsman.core.ids import KeptInt
from pointsman.core.prefix.table import SLOT_MASK, WAY_MASK, Ways


def enter(ways: Ways, hashes: Sequence[KeptInt], stamp: KeptInt) -> int:
    """Enter blocks that nobody holds, up to the first that somebody does: how many."""
    entered = 0
    for block in hashes:
        number: int = block
        table = ways[number & WAY_MASK]
        if block in table:
            break
        table[block] = stamp
        entered += 1
    return entered


def take_out(
    ways: Ways, hashes: Sequence[KeptInt], slot: int, only: KeptInt | None
) -> tuple[dict[KeptInt, list[KeptInt]], list[KeptInt]]:
    """Take out blocks that `slot` alone holds, in the run `only` if one is given: the blocks by
    the run that they were in, and those that several hold."""
    taken: dict[KeptInt, list[KeptInt]] = {}
    several: list[KeptInt] = []
    slot_mask = SLOT_MASK
    last: KeptInt = None
    blocks: list[KeptInt] = []
    for block in hashes:
        number: int = block
        table = ways[number & WAY_MASK]
        stamp = table.get(block)
        if stamp is None:
            continue
        value: int = stamp
        if value >= 0:
            several.append(block)
        elif ~value & slot_mask == slot and (only is None or stamp == only):
            del table[block]
            if stamp is not last:
                last = stamp
                blocks = taken.setdefault(stamp, [])
            blocks.append(block)
    return taken, several
