"""What each node is believed to hold of a prompt, in two indexes of one kind.

    texts    prompts known only as text: credited by our own placements
    tokens   prompts known as token ids: fed by the node's KV events where it publishes them,
             else credited like texts

A placement is credited at once, so that a burst of siblings goes together, and taken back if
the node never began it. Where a node's events are exact, a credit is only an advance: it is
taken back at the end unless the engine has reported the blocks.

What engines tell of slower tiers than the GPU's memory is in `tiers`.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from pointsman.core.block_set import BlockSet
from pointsman.core.blocks import Prompt
from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheChange,
    ChainStored,
)
from pointsman.core.engine_blocks import EngineBlocks
from pointsman.core.events import CacheTold, IndexTrust
from pointsman.core.hot_prefixes import HotPrefixes
from pointsman.core.ids import BlockHash, Slot
from pointsman.core.limits import INDEX_BYTES_MAX
from pointsman.core.node import Node
from pointsman.core.pins import segments
from pointsman.core.placement import NO_SEGMENTS, Credit, Segments
from pointsman.core.prefix import PrefixIndex
from pointsman.core.scheme import TEXT_SCHEME, Scheme, Unit
from pointsman.core.tiers import SlowerTiers
from pointsman.core.told import Told

Levels = list[tuple[int, int]]
"""Per mask of slots the leading tokens of a prompt that they hold, most first. Masks are
disjoint; who holds nothing is in none."""


# Python 3.11 takes 0.1 us to look an enum's member up and a tenth of that for a global.
_BYTES: Final = Unit.BYTES
_TOKENS: Final = Unit.TOKENS


class Residency:
    """Both indexes and the engines' own names for their blocks."""

    def __init__(self, bytes_max: int = INDEX_BYTES_MAX) -> None:
        self._texts = PrefixIndex(bytes_max=bytes_max * 3 // 8)
        self._tokens = PrefixIndex(bytes_max=bytes_max // 2)
        self._indexes = (self._texts, self._tokens)
        self._slower = SlowerTiers(bytes_max // 8)
        self._engine_blocks: dict[Slot, EngineBlocks] = {}
        self.hot = HotPrefixes()
        self._told: dict[Slot, Told] = {}

    # --- asking ------------------------------------------------------------------------

    def levels(self, nodes: Sequence[Node], prompt: Prompt, prompt_tokens: int) -> Levels:
        """Which of `nodes`, and maybe others, hold how much of `prompt`."""
        if prompt.token_count is not None:
            return self._token_levels(nodes, prompt)
        found = self._texts.match(prompt.chain(TEXT_SCHEME))
        tokens, text_bytes = prompt_tokens * TEXT_SCHEME.size, len(prompt.text)
        return [(mask, tokens * depth // text_bytes) for mask, depth in found]

    def boundary(
        self, node: Node, prompt: Prompt, prompt_tokens: int, tokens: int
    ) -> BlockHash | None:
        """The block that ends the first `tokens` of `prompt`, as `node` cuts it."""
        if prompt.token_count is not None:
            chain, depth = prompt.chain(node.token_scheme), tokens // node.block_tokens
        else:
            chain = prompt.chain(TEXT_SCHEME)
            depth = round(tokens * len(prompt.text) / (prompt_tokens * TEXT_SCHEME.size))
        return chain[depth - 1] if 0 < depth <= len(chain) else None

    def _token_levels(self, nodes: Sequence[Node], prompt: Prompt) -> Levels:
        """A node's blocks are of its own size: a chain cut otherwise says nothing of it."""
        sizes = dict.fromkeys([node.block_tokens for node in nodes])
        levels: Levels = []
        for size in sizes:
            found = self._tokens.match(prompt.chain(Scheme(Unit.TOKENS, size)))
            slots = -1 if len(sizes) == 1 else _slots(nodes, size)
            levels += [(mask & slots, depth * size) for mask, depth in found if mask & slots]
        levels.sort(key=itemgetter(1), reverse=True)
        return levels

    def holders(self, block: BlockHash) -> int:
        """The mask of those that hold the prefix that ends with `block`."""
        return self._texts.holders(block) | self._tokens.holders(block)

    def restorable_tokens(self, node: Node, prompt: Prompt, after_tokens: int) -> int:
        """Tokens behind the first `after_tokens` that the node's slower tiers hold."""
        if prompt.token_count is None:
            return 0
        rest = prompt.chain(node.token_scheme)[after_tokens // node.block_tokens :]
        return self._slower.depth(node, rest) * node.block_tokens

    def segments(self, node: Node, prompt: Prompt, prompt_tokens: int) -> Segments:
        """What of `prompt` others may hold with it on `node`; nothing where an engine caches
        nothing."""
        if not node.hits.cache_is_believed:
            return NO_SEGMENTS
        if prompt.token_count is not None:
            return segments(prompt.chain(node.token_scheme), 1)
        tokens_per_hash = prompt_tokens * TEXT_SCHEME.size / max(1, len(prompt.text))
        return segments(prompt.chain(TEXT_SCHEME), tokens_per_hash / node.block_tokens)

    def blocks(self, node: Node) -> int:
        return sum(index.blocks(node.slot) for index in self._indexes)

    def bytes(self) -> int:
        return self._slower.bytes() + sum(index.bytes() for index in self._indexes)

    def told(self, node: Node) -> BlockSet | None:
        """What the node's agent has told, to be read only; None without one that is believed."""
        told = self._told.get(node.slot)
        return None if told is None else told.blocks

    # --- crediting ---------------------------------------------------------------------

    def credit(self, node: Node, prompt: Prompt) -> Credit:
        if prompt.token_count is None:
            added = self._texts.credit(node.slot, prompt.chain(TEXT_SCHEME))
            return Credit(node.slot, _BYTES, added)
        added = self._tokens.credit(node.slot, prompt.chain(node.token_scheme))
        return Credit(node.slot, _TOKENS, added)

    def withdraw(self, credit: Credit) -> None:
        """The node never began the request, so it holds none of this."""
        if credit.unit is _BYTES:
            self._texts.withdraw(credit.slot, credit.hashes)
        else:
            self._tokens.withdraw(credit.slot, self._unreported(credit))

    def settle(self, node: Node, credit: Credit) -> None:
        """The request ran. An exact node has reported what it keeps of it by now; but events
        name tokens, so a prompt known only as text keeps its credit."""
        if credit.unit is not _TOKENS or node.trust is not IndexTrust.EXACT:
            return
        told = self._told.get(node.slot)
        if told is None or not told.keep(credit):
            self.withdraw(credit)

    def _unreported(self, credit: Credit) -> Sequence[BlockHash]:
        told = self._told.get(credit.slot)
        if told is not None:
            return [block for block in credit.hashes if block not in told.blocks]
        engine = self._engine_blocks.get(credit.slot)
        if engine is None:
            return credit.hashes
        return [block for block in credit.hashes if not engine.holds(block)]

    # --- nodes -------------------------------------------------------------------------

    def describe(self, node: Node, bytes_per_token: float) -> None:
        """Bound what the node is credited with by its KV capacity; unknown is unbounded here
        and stays under the index's own cap."""
        blocks = node.facts.kv_blocks
        tokens = None if blocks is None else blocks * node.block_tokens
        text_blocks = None if tokens is None else int(tokens * bytes_per_token) // TEXT_SCHEME.size
        self._texts.set_capacity(node.slot, text_blocks)
        self._bound_tokens(node)

    def _bound_tokens(self, node: Node) -> None:
        """A node whose events are exact says itself what it drops."""
        exact = node.trust is IndexTrust.EXACT
        self._tokens.set_capacity(node.slot, None if exact else node.facts.kv_blocks)

    def trust(self, node: Node, trust: IndexTrust) -> None:
        """The node's events are in sync, or no longer are. What the other source has claimed
        of its token blocks gives way."""
        if node.trust is IndexTrust.DISTRUSTED:
            return  # in sync or not, they do not tell what it finds
        node.trust = trust
        if trust is IndexTrust.EXACT and not self._is_reported(node.slot):
            self._begin_events(node)
        if trust in _BY_HISTORY and self._is_reported(node.slot):
            self._forget_reports(node)
        self._bound_tokens(node)

    def cache_changed(self, node: Node, changes: Sequence[CacheChange | ChainStored]) -> None:
        """One message of the node's KV event stream."""
        if node.trust is IndexTrust.DISTRUSTED:
            return
        engine = self._engine_blocks.get(node.slot)
        if engine is None:
            engine = self._begin_events(node)
        batch = _Batch(self._tokens, node.slot)
        for change in changes:
            match change:
                case BlockStored():
                    if came := engine.stored(change):
                        batch.insert(came)
                    else:
                        self._slower.stored(node, change, engine)
                case ChainStored():
                    batch.insert(engine.chained(change.hashes))
                case BlockRemoved():
                    if gone := engine.removed(change):
                        batch.remove(gone)
                    else:
                        self._slower.removed(node, change)
                case AllBlocksCleared():
                    batch.flush()
                    engine.cleared()
                    self.clear(node)
        batch.flush()

    def cache_told(self, node: Node, event: CacheTold) -> None:
        """What an agent says of the node's cache."""
        if node.trust is IndexTrust.DISTRUSTED:
            return
        told = self._told.get(node.slot)
        if told is None:
            self._forget_reports(node)
            told = self._told[node.slot] = Told(_blocks_max(node))
        if event.bucket is None:
            gone, came = told.blocks.remove(event.removed), told.blocks.add(event.stored)
        else:
            came, gone = told.blocks.replace(event.bucket, event.stored)
        if gone:
            self._tokens.remove(node.slot, gone)
        if came:
            self._tokens.insert(node.slot, came)
        if event.bucket is None:
            for credit in told.beat():
                self.withdraw(credit)

    def clear(self, node: Node) -> None:
        """The node's cache is empty."""
        self._slower.forget(node)
        for index in self._indexes:
            index.clear(node.slot)

    def forget(self, node: Node) -> None:
        """The incarnation ends; its slot is free for another."""
        self._forget_reports(node)
        for index in self._indexes:
            index.forget(node.slot)

    def _begin_events(self, node: Node) -> EngineBlocks:
        """What history or an agent claimed of token blocks gives way to what the engine says."""
        self._forget_reports(node)
        engine = EngineBlocks(
            next((card.name for card in node.models if card.parent is None), ""), _blocks_max(node)
        )
        self._engine_blocks[node.slot] = engine
        return engine

    def _is_reported(self, slot: Slot) -> bool:
        """Whether engine or agent tell what the node holds."""
        return slot in self._engine_blocks or slot in self._told

    def _forget_reports(self, node: Node) -> None:
        """Another source is to be believed of the node's token blocks."""
        self._engine_blocks.pop(node.slot, None)
        self._told.pop(node.slot, None)
        self._tokens.clear(node.slot)
        self._slower.forget(node)

    def check(self) -> None:
        self._slower.check()
        for index in self._indexes:
            index.check()
        for told in self._told.values():
            told.blocks.check()


class _Batch:
    """What an engine's events say in a row that came or left, told to the index at once: engines
    that send an event for each block are the rule, and a call costs as much as a block."""

    def __init__(self, index: PrefixIndex, slot: Slot) -> None:
        self._index = index
        self._slot = slot
        self._came: list[BlockHash] = []
        self._left: list[BlockHash] = []

    def insert(self, hashes: Sequence[BlockHash]) -> None:
        if self._left:
            self.flush()
        self._came += hashes

    def remove(self, hashes: Sequence[BlockHash]) -> None:
        if self._came:
            self.flush()
        self._left += hashes

    def flush(self) -> None:
        if self._came:
            self._index.insert(self._slot, self._came)
            self._came = []
        if self._left:
            self._index.remove(self._slot, self._left)
            self._left = []


_BY_HISTORY: Final = frozenset({IndexTrust.HISTORY, IndexTrust.DISTRUSTED})

_ENGINE_BLOCKS_DEFAULT: Final = 1 << 19
"""Blocks tracked for an engine of unknown capacity: 8 million tokens of 16 a block."""


def _blocks_max(node: Node) -> int:
    """Twice its capacity: an engine may tell of a new block before it tells which one that
    replaced."""
    return 2 * (node.facts.kv_blocks or _ENGINE_BLOCKS_DEFAULT)


def _slots(nodes: Sequence[Node], block_tokens: int) -> int:
    """The mask of those that cut prompts so."""
    return sum(1 << node.slot for node in nodes if node.block_tokens == block_tokens)


def indexed_tokens(node: Node, levels: Levels) -> int:
    """How many leading tokens of the prompt `node` holds, by the index."""
    bit = 1 << node.slot
    for mask, tokens in levels:
        if mask & bit:
            return tokens
    return 0
