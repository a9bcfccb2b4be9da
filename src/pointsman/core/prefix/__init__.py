"""Prefix index: which nodes hold which blocks of a prompt.

A table maps a block's hash to its holders; a node is a bit, its `Slot`. A chained hash
stands for everything before it, so holding is prefix-monotone, and the depth to which each
node holds a prompt is found by bisection instead of a walk.

Nodes that publish KV events tell what they hold: `insert` and `remove`. All others are
guessed from our own placements: `credit`, evicted least recently used first and tail first
when the node's own KV capacity is full, as the engine itself does it.

Reading order: index (the index), holder (one node's blocks and the order of their use),
table (hash -> holders). Imports `ids` and `limits` only. Owned by the scheduler's thread.

How a block is stored, and why so. Dicts that name every block once for each node, with its
time of use, cost 170 bytes a block under eviction. Instead a use is one int, the `stamp`,
shared by all blocks of a placement. While a block has one holder, which is the long tail,
the table has that holder's stamp; only when there are several does it have a bit mask, and
each of them the block's stamp in a dict of its own (`Holder.shared`). Stamps are negative,
masks positive. Measured: 90 to 100 bytes a block, eviction bookkeeping included.
"""

from pointsman.core.prefix.index import Credit, PrefixIndex

__all__ = ["Credit", "PrefixIndex"]
