"""Names and numbers that must not be mixed up."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""A request, from its first byte to its settlement; unique within one gateway."""

NodeName = NewType("NodeName", str)
"""What an operator calls an engine. Stable over restarts; an incarnation is a `NodeId`."""

NodeId = NewType("NodeId", int)
"""One incarnation of a node. Counts up and is never used again, so that a late message
about an engine that restarted cannot be booked on its successor."""

Slot = NewType("Slot", int)
"""A node's bit in the prefix index's masks. Reused once the index has forgotten the node."""

ModelName = NewType("ModelName", str)
"""A model or LoRA adapter, as clients name it."""

BlockHash = NewType("BlockHash", int)
"""A chained hash of a prompt's first n blocks. 60 bits: a CPython int of that size takes
32 bytes, one of 64 bits takes 48 in the allocator's size classes."""
