"""Hands on what one engine's KV events tell, in order, and lets the loop do other work in between.

One message may tell of half a million blocks, and ten thousand may wait for a replay to end: all at
once they would hold up requests for a third of a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from pointsman.core.cache_events import AllBlocksCleared, BlockRemoved, BlockStored, CacheChange
from pointsman.core.events import IndexTrust

SLICE_BLOCKS = 256
"""Blocks between two turns of the loop: about a millisecond's work. Decoding a message of the
largest kind holds it up for 80 ms all the same, in a thread as well: it keeps the interpreter's
lock."""

News = Sequence[CacheChange] | IndexTrust


class Passage:
    """To `changes` and `trust`: most of it before `hand_on` returns, large ones later, in slices.

    It is `idle` while nothing waits for the loop's turns. Whoever hands on only then bounds what
    waits here.
    """

    def __init__(
        self,
        changes: Callable[[Sequence[CacheChange]], None],
        trust: Callable[[IndexTrust], None],
    ) -> None:
        self._changes = changes
        self._trust = trust
        self.idle = asyncio.Event()
        self.idle.set()
        self._room = SLICE_BLOCKS
        self._waiting: deque[Iterator[News]] = deque()
        self._turn: asyncio.Handle | None = None

    def hand_on(self, news: News) -> None:
        """Hand it on behind all that came before it."""
        if self.idle.is_set():
            self._room -= _blocks(news)
            if self._room >= 0:
                self._deliver(news)
                return
            self.idle.clear()
            self._turn = asyncio.get_running_loop().call_soon(self._go_on)
        self._waiting.append(slices(news))

    def close(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()

    def _go_on(self) -> None:
        self._room = SLICE_BLOCKS
        try:
            while self._waiting and self._room > 0:
                self._hand_on_next()
        finally:
            if self._waiting:
                self._turn = asyncio.get_running_loop().call_soon(self._go_on)
            else:
                self.idle.set()

    def _hand_on_next(self) -> None:
        news = next(self._waiting[0], None)
        if news is None:
            self._waiting.popleft()
        else:
            self._room -= _blocks(news)
            self._deliver(news)

    def _deliver(self, news: News) -> None:
        if isinstance(news, IndexTrust):
            self._trust(news)
        else:
            self._changes(news)


def slices(news: News) -> Iterator[News]:
    """The same in the same order, each of `SLICE_BLOCKS` at most."""
    if isinstance(news, IndexTrust):
        yield news
        return
    gathered: list[CacheChange] = []
    room = SLICE_BLOCKS
    for change in news:
        for part in _parts(change):
            room -= len(part.block_hashes) or 1
            if room < 0 and gathered:
                yield gathered
                gathered, room = [], SLICE_BLOCKS - len(part.block_hashes)
            gathered.append(part)
    if gathered:
        yield gathered


def _blocks(news: News) -> int:
    return (
        0 if isinstance(news, IndexTrust) else sum([len(each.block_hashes) or 1 for each in news])
    )


def _parts(change: CacheChange) -> Iterator[CacheChange]:
    if len(change.block_hashes) <= SLICE_BLOCKS:
        yield change
        return
    match change:
        case BlockStored():
            yield from _parts_of_chain(change)
        case BlockRemoved(block_hashes=hashes):
            for at in range(0, len(hashes), SLICE_BLOCKS):
                yield replace(change, block_hashes=hashes[at : at + SLICE_BLOCKS])
        case AllBlocksCleared():
            raise AssertionError("it names no blocks")


def _parts_of_chain(change: BlockStored) -> Iterator[BlockStored]:
    """Each goes on from the last block of the one before it."""
    hashes, ids, size, keys = (
        change.block_hashes,
        change.token_ids,
        change.block_size,
        change.extra_keys,
    )
    if ids and len(ids) != len(hashes) * size:
        yield change  # its tokens are not its blocks': it is dropped as a whole
        return
    parent = change.parent_block_hash
    for at in range(0, len(hashes), SLICE_BLOCKS):
        end = at + SLICE_BLOCKS
        yield replace(
            change,
            block_hashes=hashes[at:end],
            parent_block_hash=parent,
            token_ids=ids[at * size : end * size],
            extra_keys=None if keys is None else keys[at:end],
        )
        parent = hashes[at:end][-1]
