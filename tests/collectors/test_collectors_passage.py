"""What much is told at once reaches the core in order, and the loop has its turns meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pointsman.collectors.passage import SLICE_BLOCKS, News, Passage, slices
from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
)
from pointsman.core.engine_blocks import EngineBlocks
from pointsman.core.events import IndexTrust

SIZE = 2
"""Token ids of a block."""


def chain(blocks: int, first: int = 1, parent: int | None = None, **more: Any) -> BlockStored:
    ids = tuple(range(first, first + blocks * SIZE))
    return BlockStored(tuple(range(first, first + blocks)), parent, ids, SIZE, **more)


def removed(blocks: int) -> BlockRemoved:
    return BlockRemoved(tuple(range(1, 1 + blocks)))


class Core:
    """What was told, and in which turn of the loop."""

    def __init__(self) -> None:
        self.turn = 0
        self.told: list[tuple[int, News]] = []
        self.passage = Passage(self._take, self._take)

    def _take(self, told: News) -> None:
        self.told.append((self.turn, told))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the loop's turns, as its other work would have them."""
        loop = asyncio.get_running_loop()
        counted = True

        def count() -> None:
            self.turn += 1
            if counted:
                loop.call_soon(count)

        loop.call_soon(count)
        yield
        counted = False

    def hashes(self) -> list[EngineHash]:
        news = [each for _, each in self.told if not isinstance(each, IndexTrust)]
        return [block for changes in news for each in changes for block in each.block_hashes]


async def test_what_is_little_is_handed_on_at_once() -> None:
    core = Core()
    few = (chain(3), removed(2), AllBlocksCleared())
    core.passage.hand_on(few)
    core.passage.hand_on(IndexTrust.EXACT)
    assert core.told == [(0, few), (0, IndexTrust.EXACT)]
    assert core.passage.idle.is_set()


async def test_a_huge_message_leaves_the_loop_its_turns() -> None:
    core = Core()
    with core.counting():
        core.passage.hand_on((chain(10 * SLICE_BLOCKS), removed(3 * SLICE_BLOCKS)))
        await core.passage.idle.wait()
    turns = [turn for turn, _ in core.told]
    assert turns == list(range(turns[0], turns[0] + 13))
    assert core.hashes() == [*range(1, 10 * SLICE_BLOCKS + 1), *range(1, 3 * SLICE_BLOCKS + 1)]


async def test_so_do_ten_thousand_small_ones() -> None:
    core = Core()
    with core.counting():
        for first in range(1, 10_001):
            core.passage.hand_on((chain(1, first),))
        await core.passage.idle.wait()
    turns = [turn for turn, _ in core.told]
    assert max(map(turns.count, dict.fromkeys(turns))) <= SLICE_BLOCKS
    assert core.hashes() == list(range(1, 10_001))


async def test_what_comes_meanwhile_comes_after() -> None:
    """An index is not called exact before it is."""
    core = Core()
    core.passage.hand_on((chain(2 * SLICE_BLOCKS),))
    core.passage.hand_on((AllBlocksCleared(),))
    core.passage.hand_on(IndexTrust.EXACT)
    assert core.told == []
    await core.passage.idle.wait()
    assert [told for _, told in core.told[-2:]] == [[AllBlocksCleared()], IndexTrust.EXACT]
    assert core.hashes() == list(range(1, 2 * SLICE_BLOCKS + 1))


async def test_the_end_of_an_incarnation_is_the_end_of_what_waits() -> None:
    core = Core()
    core.passage.hand_on((chain(5 * SLICE_BLOCKS),))
    core.passage.close()
    await asyncio.sleep(0)
    assert core.told == []


KEYS = st.sampled_from([None, (), ("salt",), ("image", "lora")])


@given(
    blocks=st.integers(SLICE_BLOCKS + 1, 3 * SLICE_BLOCKS),
    parent=st.sampled_from([None, 7]),
    keys=st.none() | st.lists(KEYS, max_size=3 * SLICE_BLOCKS),
)
def test_slices_of_a_chain_are_the_chain(
    blocks: int, parent: int | None, keys: list[object] | None
) -> None:
    extra_keys = None if keys is None else tuple(keys)
    whole = chain(blocks, 100, parent=parent, lora_name="lora", extra_keys=extra_keys)
    at_once, in_slices = EngineBlocks("m", 10_000), EngineBlocks("m", 10_000)
    for engine in (at_once, in_slices):
        engine.stored(chain(1, 7))
    expected = at_once.stored(whole)
    found = [block for part in _stored(slices((whole,))) for block in in_slices.stored(part)]
    assert found == expected
    assert len(found) == blocks


def test_what_is_dropped_is_dropped_as_a_whole() -> None:
    """Tokens that are not the blocks'."""
    wrong = BlockStored(tuple(range(SLICE_BLOCKS * 2)), None, (1, 2, 3), SIZE)
    assert list(slices((wrong,))) == [[wrong]]


def _stored(told: Iterator[News]) -> Iterator[BlockStored]:
    for part in told:
        assert not isinstance(part, IndexTrust)
        for change in part:
            assert isinstance(change, BlockStored)
            yield change
