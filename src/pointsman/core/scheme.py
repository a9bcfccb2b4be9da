"""How a prompt is cut into blocks, and what must agree before two share any."""

from enum import StrEnum

import msgspec

from pointsman.core.limits import TEXT_BLOCK_BYTES


class Unit(StrEnum):
    """What a block is counted in."""

    BYTES = "bytes"
    TOKENS = "tokens"


class Scheme(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """How a prompt is cut: `size` bytes of text, or `size` token ids, a block."""

    unit: Unit
    size: int


TEXT_SCHEME = Scheme(Unit.BYTES, TEXT_BLOCK_BYTES)


class Namespace(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """What must agree before two equal prompts share KV blocks.

    `model` is the served name, an adapter's own name included: adapters never share blocks.
    """

    model: str
    salt: str = ""
