"""Blocks that one node alone holds, entered into the table's `ways` and taken out: the rule for
what engines tell, and nearly all the work of it. Whatever others hold, too, is left to the index.

Compiled: a hash is an object here that is only passed on. Typed as an int it would be made anew
wherever it is stored, and the index lives from sharing them.
"""

from collections.abc import Sequence
from typing import Any

from pointsman.core.prefix.table import SLOT_MASK, WAY_MASK

_Kept = Any

Ways = list[dict[_Kept, _Kept]]


def enter(ways: Ways, hashes: Sequence[_Kept], stamp: _Kept) -> int:
    """Enter blocks that nobody holds, up to the first that somebody does: how many."""
    entered = 0
    for block in hashes:
        way: int = block & WAY_MASK
        table = ways[way]
        if block in table:
            break
        table[block] = stamp
        entered += 1
    return entered


def take_out(
    ways: Ways, hashes: Sequence[_Kept], slot: int, only: _Kept | None
) -> tuple[dict[_Kept, list[_Kept]], list[_Kept]]:
    """Take out blocks that `slot` alone holds, in the run `only` if one is given: the blocks by
    the run that they were in, and those that several hold."""
    taken: dict[_Kept, list[_Kept]] = {}
    several: list[_Kept] = []
    last: _Kept = None
    blocks: list[_Kept] = []
    for block in hashes:
        way: int = block & WAY_MASK
        table = ways[way]
        stamp = table.get(block)
        if stamp is None:
            continue
        number: int = stamp
        if number >= 0:
            several.append(block)
        elif ~number & SLOT_MASK == slot and (only is None or stamp == only):
            del table[block]
            if stamp is not last:
                last = stamp
                blocks = taken.setdefault(stamp, [])
            blocks.append(block)
    return taken, several
