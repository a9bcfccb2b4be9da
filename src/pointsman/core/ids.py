"""Names and numbers that must not be mixed up."""

from array import array
from typing import Any, Final, Literal, NewType

RequestId = NewType("RequestId", str)
"""A request, from its first byte to its settlement; unique within one gateway."""

NodeName = NewType("NodeName", str)
"""What an operator calls an engine. Stable over restarts; an incarnation is a `NodeId`."""

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z"
"""What an engine, an agent or a key may be called: names stand in headers, labels and logs, where
a line's end would begin another."""

NodeId = NewType("NodeId", int)
"""One incarnation of a node. Counts up and is never used again, so that a late message
about an engine that restarted cannot be booked on its successor."""

Slot = NewType("Slot", int)
"""A node's bit in the prefix index's masks. Reused once the index has forgotten the node."""

ModelName = NewType("ModelName", str)
"""A model or LoRA adapter, as clients name it."""

BlockHash = NewType("BlockHash", int)
"""A chained hash of a prompt's first n blocks, of `HASH_BITS`."""

HASH_BITS: Final = 60
"""Two digits of a CPython int, which then takes 32 bytes; with 64 bits it has three, and takes 48
in the allocator's size classes."""

HASH_MASK: Final = (1 << HASH_BITS) - 1

HASH_CODE: Final[Literal["L", "Q"]] = "L" if array("L").itemsize == 8 else "Q"
"""Of an array of hashes. CPython fills one of "Q" the long way round, which takes three times as
long; "L" has 4 bytes on some systems."""

KeptInt = Any
"""A hash, or what one is looked up for, that is only kept and passed on. Compiled code makes
what it knows as an int anew wherever it stores it: 32 bytes in each map, for each block of each
engine.
"""
