"""What is kept of a run, and what a placement is told of one.

Plain values, which stay interpreted: a compiled class is walked by the garbage collector, and
there are hundreds of thousands of runs.
"""

from array import array

import msgspec

from pointsman.core.ids import BlockHash


class Run(msgspec.Struct, gc=False):
    """Blocks in the order of their chain, and those of them that are no longer `dead`."""

    hashes: "array[int]"
    dead: "array[int] | None" = None
    used_again: bool = False


class Added(list[BlockHash]):
    """The blocks that one placement added, and the `stamp` of the run that they are."""

    __slots__ = ("stamp",)
    stamp: int
