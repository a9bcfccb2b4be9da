"""What engines keep outside of the GPU's memory: copies of blocks in the host's, or on disks.

A prompt's prefix that goes on there is not computed again but copied back, which takes a share
of the time. vLLM tells of such blocks by a `medium` (CPU, STORAGE), with their tokens or by name
alone; SGLang tells of its hierarchical cache likewise.
"""

from collections.abc import Sequence

from pointsman.core.cache_events import BlockRemoved, BlockStored
from pointsman.core.engine_blocks import EngineBlocks, is_on_gpu
from pointsman.core.ids import BlockHash, Slot
from pointsman.core.limits import RESTORE_SHARE_HOST, RESTORE_SHARE_STORAGE
from pointsman.core.node import Node
from pointsman.core.prefix import PrefixIndex


class SlowerTiers:
    """An index of all nodes' slower tiers, each node's taken together, under `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._index = PrefixIndex(bytes_max=bytes_max)
        self._engine_blocks: dict[Slot, EngineBlocks] = {}

    def depth(self, node: Node, chain: Sequence[BlockHash]) -> int:
        """How many of the first blocks of `chain` the node's slower tiers hold."""
        return self._index.depth(node.slot, chain)

    def stored(self, node: Node, event: BlockStored, above: EngineBlocks) -> None:
        """`above` are the node's blocks on the GPU; an event of those changes nothing."""
        if is_on_gpu(event.medium):
            return
        engine = self._engine_blocks.get(node.slot)
        if engine is None:
            engine = EngineBlocks(above.model, _DEPTH * above.blocks_max, above=above)
            self._engine_blocks[node.slot] = engine
        self._index.insert(node.slot, engine.stored(event))
        node.restore_share = max(node.restore_share, _share(event.medium))

    def removed(self, node: Node, event: BlockRemoved) -> None:
        engine = self._engine_blocks.get(node.slot)
        if engine is not None:
            self._index.remove(node.slot, engine.removed(event))

    def bytes(self) -> int:
        return self._index.bytes()

    def forget(self, node: Node) -> None:
        """Forget all that is known of the node's slower tiers."""
        if self._engine_blocks.pop(node.slot, None) is not None:
            self._index.forget(node.slot)
        node.restore_share = 0.0

    def check(self) -> None:
        self._index.check()
        for engine in self._engine_blocks.values():
            engine.check()


_DEPTH = 8
"""Times the GPU's blocks: hosts have so much more memory. Of disks that have more yet, what was
told first is known."""


def _share(medium: str | None) -> float:
    is_host = medium is not None and medium.upper().startswith("CPU")
    return RESTORE_SHARE_HOST if is_host else RESTORE_SHARE_STORAGE
