"""What engines tell of their caches: which blocks came, and which are gone."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from pointsman.core.ids import BlockHash

EngineHash = int | bytes
"""A block hash of the engine's own making: opaque, compared only with its like."""


class BlockStored(msgspec.Struct, frozen=True, gc=False, tag="BlockStored"):
    """Blocks that became reusable: `token_ids` of all of them, `block_size` ids each.

    `parent_block_hash` is None at a prompt's start. `extra_keys` has one entry a block: None,
    or what beside the tokens tells it apart (LoRA name, image hashes, cache salt). Fields are
    named as vLLM names them: the codec decodes straight into these.
    """

    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None = None
    token_ids: tuple[int, ...] = ()
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, gc=False, tag="BlockRemoved"):
    """Blocks that were evicted from `medium`."""

    block_hashes: tuple[EngineHash, ...]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False, tag="AllBlocksCleared"):
    """The engine dropped its whole prefix cache; it names none of the blocks."""

    block_hashes: ClassVar[tuple[EngineHash, ...]] = ()


CacheChange = BlockStored | BlockRemoved | AllBlocksCleared


class ChainStored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that became reusable, told under our own hashes by who has chained them already.
    A later `BlockRemoved` names them by the same."""

    hashes: Sequence[BlockHash]
