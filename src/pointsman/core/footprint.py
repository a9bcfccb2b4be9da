"""What a request holds of a node's KV cache while it runs.

    own       = prompt behind its last segment + ½ · expected output · safety     [blocks]
    footprint = own + segments
    needed    = footprint - what requests there hold of the segments

Segments (`pins`) are what others may hold with it. A hit on blocks that nobody holds frees no
room: cached as they are, an engine counts them as free, and the request takes them.
"""

from typing import Final

from pointsman.core.blocks import Prompt
from pointsman.core.ledger import Ledger
from pointsman.core.node import Node
from pointsman.core.placement import Demand, Footprint
from pointsman.core.residency import Residency

_OUTPUT_HELD: Final = 0.5
"""Of its output, what a request holds on average while it runs: those that run together are at
different points of theirs, and one that ends makes room for the growth of the others."""


class Footprints:
    """Remembers those of the prompt that was asked about last: routing asks for each node, and
    booking once more."""

    def __init__(self, residency: Residency, ledger: Ledger, safety: float) -> None:
        self.safety = safety
        self._residency = residency
        self._ledger = ledger
        self._prompt: Prompt | None = None
        self._demand: Demand | None = None
        self._known: dict[int, Footprint] = {}  # by block size, below 0 where nothing is cached

    def of(self, node: Node, prompt: Prompt, demand: Demand) -> Footprint:
        """By blocks of the node's size."""
        if prompt is not self._prompt or demand is not self._demand:
            self._prompt, self._demand = prompt, demand
            self._known.clear()
        kind = node.block_tokens if node.hits.cache_is_believed else -node.block_tokens
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = self._cut(node, prompt, demand)
        return found

    def needed(self, node: Node, prompt: Prompt, demand: Demand) -> int:
        """Blocks that it would take on the node, beside what others there hold with it."""
        return self._ledger.account(node.id).needed(self.of(node, prompt, demand))

    def _cut(self, node: Node, prompt: Prompt, demand: Demand) -> Footprint:
        block = node.block_tokens
        segments = self._residency.segments(node, prompt, demand.prompt_tokens)
        shared_blocks = segments.blocks
        output_tokens = int(demand.output_tokens * _OUTPUT_HELD * self.safety)
        own_blocks = (demand.prompt_tokens - shared_blocks * block + output_tokens) // block + 1
        return Footprint(shared_blocks + own_blocks, segments)
