"""Prefix index: which nodes hold which blocks of a prompt.

A table maps a block's hash to its holders; a node is a bit, its `Slot`. A chained hash
stands for everything before it, so holding is prefix-monotone, and the depth to which each
node holds a prompt is found by bisection instead of a walk.

Nodes that publish KV events tell what they hold: `insert` and `remove`. All others are
guessed from our own placements: `credit`, evicted least recently used first and tail first
when the node's own KV capacity is full, as the engine itself does it.

Reading order: index (the index), sole (blocks that one node alone holds), holder (one node's blocks
and the order of their use), run (values), match (who holds a chain), table (hash -> holders).
Imports `ids` and `limits` only. Owned by the scheduler's thread.

How a block is stored, and why so. Under eviction a dict takes up to 120 bytes an item, so
one that names every block, and another for each node with the times of use, take 200 bytes
a block, and every placement writes to each block of its prompt. Instead a node's blocks lie
in runs that are used together, and the name of a run, its stamp, is one int for all of
them. While a block has one holder, which is the long tail, the table has its stamp; only
when there are several does it have a bit mask, and each of them the block's stamp in a dict
of its own (`Holder.shared`). Stamps are negative, masks positive.

All this is compiled, and compiled code makes an int anew wherever it stores one that it knows as
an int. So hashes, stamps and masks are `KeptInt` here: the index lives from sharing them.

Measured (bench/micro_core.py): 85 to 110 bytes a block with eviction bookkeeping; a
placement writes only the blocks that are new.
"""

from pointsman.core.prefix.index import PrefixIndex
from pointsman.core.prefix.match import slots
from pointsman.core.prefix.run import Added

__all__ = ["Added", "PrefixIndex", "slots"]
