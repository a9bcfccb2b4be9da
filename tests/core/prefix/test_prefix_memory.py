"""`bytes()` against what the interpreter has really allocated, and the bytes a block takes."""

import gc
import random
import tracemalloc
from collections.abc import Callable

import pytest

from pointsman.core.ids import HASH_BITS, BlockHash, Slot
from pointsman.core.prefix import PrefixIndex

Fill = Callable[[PrefixIndex, random.Random], None]


def hashes(rng: random.Random, count: int) -> list[BlockHash]:
    return [BlockHash(rng.getrandbits(HASH_BITS)) for _ in range(count)]


def long_tail(index: PrefixIndex, rng: random.Random) -> None:
    for step in range(700):
        index.credit(Slot(step % 16), hashes(rng, 100))


def long_tail_under_eviction(index: PrefixIndex, rng: random.Random) -> None:
    for slot in range(16):
        index.set_capacity(Slot(slot), 4_000)
    for step in range(1_500):
        index.credit(Slot(step % 16), hashes(rng, 100))


def short_prompts(index: PrefixIndex, rng: random.Random) -> None:
    for step in range(15_000):
        index.credit(Slot(step % 16), hashes(rng, 3))


def conversations(index: PrefixIndex, rng: random.Random) -> None:
    for slot in range(16):
        index.set_capacity(Slot(slot), 5_000)
    system = hashes(rng, 40)
    turns = [[*system, *hashes(rng, 30)] for _ in range(500)]
    for _ in range(4_000):
        number = rng.randrange(len(turns))
        turns[number] = [*turns[number][:300], *hashes(rng, 15)]
        index.credit(Slot(number % 16), turns[number])


def prompts_that_many_nodes_hold(index: PrefixIndex, rng: random.Random) -> None:
    for _ in range(25):
        prompt = hashes(rng, 100)
        for slot in range(64):
            index.credit(Slot(slot), prompt[: rng.randrange(20, 100)])


def events(index: PrefixIndex, rng: random.Random) -> None:
    stored: list[list[BlockHash]] = []
    for step in range(15_000):
        stored.append(hashes(rng, 8))
        index.insert(Slot(step % 16), stored[-1])
        if len(stored) > 6_000:
            number = rng.randrange(len(stored))
            for slot in range(16):
                index.remove(Slot(slot), stored[number][::-1])
            del stored[number]


@pytest.mark.parametrize(
    ("fill", "bytes_max_a_block"),
    [
        (long_tail, 100),
        (long_tail_under_eviction, 125),
        (short_prompts, 185),
        (conversations, 130),
        (prompts_that_many_nodes_hold, 80),
        (events, 130),
    ],
)
def test_bytes_are_the_truth_within_a_fifth(fill: Fill, bytes_max_a_block: int) -> None:
    rng = random.Random(1)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = PrefixIndex()
        index.credit(Slot(0), hashes(rng, 1))  # the dicts come with the first block
        empty = tracemalloc.get_traced_memory()[0] - before
        fill(index, rng)
        gc.collect()
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert index.bytes() == pytest.approx(real, rel=0.2)
    held = sum(index.blocks(Slot(slot)) for slot in range(64))
    assert (real - empty) / held < bytes_max_a_block
    index.check()
