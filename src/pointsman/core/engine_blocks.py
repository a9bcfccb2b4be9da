"""An engine's opaque block hashes -> our own chain, for one node that publishes KV events.

Engines differ in hash function, seed and width, and one of them changes over time. So their
hashes are only names here: what is indexed is our own hash over the token ids that an event
carries, chained to its parent's. It equals the hash of a request's prompt wherever model,
adapter, salt, block size and token ids are equal.

An event lists, for each block, what tells it apart beside its tokens: the LoRA adapter's
name (known from the event already), the cache salt (of a prompt's first block only, and part
of our namespace), digests of images. Whatever isn't one of the first two is folded into the
hash: such a block can never be mistaken for the same text without the image.
"""

from collections.abc import Sequence
from typing import Final, cast

from msgspec import msgpack

from pointsman.core.blocks import chain, root_hash, token_bytes
from pointsman.core.cache_events import BlockRemoved, BlockStored, EngineHash
from pointsman.core.ids import HASH_MASK, BlockHash, KeptInt
from pointsman.core.scheme import Namespace, Scheme, Unit

_NAME_BYTES: Final = 8
_GPU: Final = frozenset({"gpu", "cuda", "device"})
Keys = Sequence[object]


class EngineBlocks:
    """The blocks that one engine has told of, each under its own hash and ours.

    Blocks in other tiers than the GPU's memory are ignored, stored and removed alike; given the
    blocks `above` them there, these others are what is kept, and the GPU's are ignored. What is
    copied down is told by its parent or by its name alone, and both may be known above only.

    `orphans` counts blocks whose parent is unknown (their prefix is, then, too), `malformed`
    those whose tokens don't make up a block, `overflows` those beyond `blocks_max`; none of
    these is indexed, and removing it is harmless.
    """

    def __init__(self, model: str, blocks_max: int, *, above: "EngineBlocks | None" = None) -> None:
        assert blocks_max > 0, blocks_max
        self.model = model
        self._above = above
        self.blocks_max = blocks_max
        self.orphans = 0
        self.malformed = 0
        self.overflows = 0
        self._own: dict[KeptInt, KeptInt] = {}  # engine's name -> our hash
        self._copies: dict[KeptInt, int] = {}  # name -> further times that it was stored
        self._names: dict[KeptInt, int] = {}  # our hash -> how many names it has

    def __repr__(self) -> str:
        return (
            f"<EngineBlocks of {self.model}: {len(self._own)} of at most {self.blocks_max}, "
            f"{self.orphans} orphans, {self.overflows} overflows>"
        )

    def __len__(self) -> int:
        return len(self._own)

    def holds(self, block: BlockHash) -> bool:
        """Whether the engine has told that it holds this block of ours."""
        return block in self._names

    def stored(self, event: BlockStored) -> list[BlockHash]:
        """Our hashes of the blocks in `event`, in its order."""
        if is_on_gpu(event.medium) is not (self._above is None):
            return []
        return self._store(_names(event.block_hashes), self._chain(event))

    def chained(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Blocks that are told under our own hashes, which are then their names, too."""
        return self._store(_names(hashes), hashes)

    def _store(self, found: Sequence[KeptInt], chain: Sequence[KeptInt]) -> list[BlockHash]:
        own: list[KeptInt] = []
        known, copies, names = self._own, self._copies, self._names
        for name, computed in zip(found, chain, strict=False):
            block = known.get(name)
            if block is not None:
                copies[name] = copies.get(name, 0) + 1
            elif len(known) < self.blocks_max:
                known[name] = block = computed
                names[block] = names.get(block, 0) + 1
            else:
                self.overflows += len(found) - len(own)
                break
            own.append(block)
        return cast("list[BlockHash]", own)

    def removed(self, event: BlockRemoved) -> list[BlockHash]:
        """Our hashes of what the engine no longer holds under any name."""
        if is_on_gpu(event.medium) is not (self._above is None):
            return []
        gone: list[KeptInt] = []
        for name in _names(event.block_hashes):
            if name in self._copies:
                _count_down(self._copies, name)
            elif (block := self._own.pop(name, None)) is not None and (
                not _count_down(self._names, block)
            ):
                gone.append(block)
        return cast("list[BlockHash]", gone)

    def cleared(self) -> None:
        """The engine holds nothing any more."""
        self._own.clear()
        self._copies.clear()
        self._names.clear()

    def check(self) -> None:
        """Assert that the three maps agree."""
        assert len(self._own) <= self.blocks_max, self
        names: dict[KeptInt, int] = {}
        for block in self._own.values():
            names[block] = names.get(block, 0) + 1
        assert names == self._names, self
        assert all(name in self._own and count > 0 for name, count in self._copies.items())

    def _chain(self, event: BlockStored) -> Sequence[KeptInt]:
        """Our hashes of the event's blocks; fewer, or none, where they cannot be known."""
        count, size = len(event.block_hashes), event.block_size
        if self._above is not None and not event.token_ids:
            return self._named_alone(event)
        if not count or size <= 0 or len(event.token_ids) != count * size:
            self.malformed += count
            return []
        extras = _extras(event)
        salt = _salt(extras) if event.parent_block_hash is None else ""
        if salt:
            extras[0] = ()
        parent = self._parent(event, salt)
        if parent is None:
            self.orphans += count
            return []
        try:
            data = token_bytes(event.token_ids)
        except OverflowError:  # an id outside 64 bits is none
            self.malformed += count
            return []
        if not any(extras):
            return chain(data, len(data) // count, parent)
        return _folded_chain(data, len(data) // count, parent, extras)

    def _named_alone(self, event: BlockStored) -> Sequence[KeptInt]:
        """Blocks whose tokens are not told again, up to the first that nobody has told of."""
        found = [self._known(name) for name in _names(event.block_hashes)]
        known = found.index(None) if None in found else len(found)
        self.orphans += len(found) - known
        return found[:known]

    def _known(self, name: KeptInt) -> KeptInt | None:
        block = self._own.get(name)
        return block if block is not None or self._above is None else self._above._own.get(name)

    def _parent(self, event: BlockStored, salt: str) -> BlockHash | None:
        if event.parent_block_hash is not None:
            return cast("BlockHash | None", self._known(_name(event.parent_block_hash)))
        namespace = Namespace(event.lora_name or self.model, salt)
        return root_hash(namespace, Scheme(Unit.TOKENS, event.block_size))


def is_on_gpu(medium: str | None) -> bool:
    """Whether an event is of the GPU's memory; those that do not say are."""
    return medium is None or medium == "GPU" or medium.lower() in _GPU


def _names(hashes: Sequence[EngineHash]) -> Sequence[KeptInt]:
    """`HASH_BITS` of each of the engine's hashes, which come as numbers or as bytes."""
    return [_name(engine_hash) for engine_hash in hashes]


def _name(engine_hash: EngineHash) -> KeptInt:
    number = engine_hash if isinstance(engine_hash, int) else _number(engine_hash)
    return number & HASH_MASK


def _number(engine_hash: bytes) -> int:
    return int.from_bytes(engine_hash[-_NAME_BYTES:])


def _count_down(counts: dict[KeptInt, int], key: KeptInt) -> bool:
    """Count one less of `key`. Returns whether any is left."""
    count = counts.pop(key)
    if count == 1:
        return False
    counts[key] = count - 1
    return True


def _extras(event: BlockStored) -> list[Keys]:
    """For each block what tells it apart, without the adapter's name; empty if nothing does."""
    if event.extra_keys is None or not any(event.extra_keys):
        return []
    extras = [_without(event.lora_name, keys) for keys in event.extra_keys]
    missing = len(event.block_hashes) - len(extras)
    return extras[: len(event.block_hashes)] + [()] * missing


def _without(lora_name: str | None, keys: object) -> Keys:
    if isinstance(keys, list | tuple):
        return [key for key in keys if key != lora_name]
    return () if keys is None else (keys,)


def _salt(extras: list[Keys]) -> str:
    """The cache salt of a prompt's first block. (The digest of an image that begins there is
    taken for one: it keeps the chain apart just as well.)"""
    if extras and len(extras[0]) == 1 and isinstance(salt := extras[0][0], str):
        return salt
    return ""


def _folded_chain(
    data: bytes, size_bytes: int, parent: BlockHash, extras: list[Keys]
) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    for number, keys in enumerate(extras):
        if keys:
            folded = msgpack.encode(keys)
            [parent] = chain(folded, len(folded), parent)
        [parent] = chain(data[number * size_bytes : (number + 1) * size_bytes], size_bytes, parent)
        hashes.append(parent)
    return hashes
