"""The prefix index, claim by claim."""

import random

import pytest

from pointsman.core.ids import HASH_BITS, BlockHash, Slot
from pointsman.core.prefix import Added, PrefixIndex
from tests.core.prefix.slow_index import chain

A, B, C = Slot(0), Slot(1), Slot(2)


def path(length: int, *, first: int = 0) -> list[BlockHash]:
    return chain([first, *range(length - 1)])


def bits(*slots: Slot) -> int:
    return sum(1 << slot for slot in slots)


def test_nothing_is_held_at_first() -> None:
    index = PrefixIndex()
    assert index.match(path(5)) == index.match([]) == []
    assert (index.blocks(A), index.depth(A, path(5))) == (0, 0)
    index.check()


def test_match_gives_each_node_its_depth_deepest_first() -> None:
    index, hashes = PrefixIndex(), path(300)
    index.credit(A, hashes[:250])
    index.credit(B, hashes[:1])
    index.credit(C, hashes)
    assert index.match(hashes) == [(bits(C), 300), (bits(A), 250), (bits(B), 1)]
    assert index.match(hashes[:200]) == [(bits(A, C), 200), (bits(B), 1)]
    assert [index.depth(slot, hashes) for slot in (A, B, C)] == [250, 1, 300]


@pytest.mark.parametrize("nodes", [1, 7, 64, 1_000])
@pytest.mark.parametrize("length", [1, 2, 6, 7, 128, 1_000])
def test_match_is_right_whatever_the_depths(nodes: int, length: int) -> None:
    rng = random.Random(nodes * length)
    index, hashes = PrefixIndex(), path(length)
    depths = {Slot(n): rng.randint(0, length) for n in range(nodes)}
    for slot, depth in depths.items():
        index.credit(slot, hashes[:depth])
    claimed = {
        slot: depth for mask, depth in index.match(hashes) for slot in depths if mask >> slot & 1
    }
    assert claimed == {slot: depth for slot, depth in depths.items() if depth}


def test_match_changes_nothing() -> None:
    index, hashes = PrefixIndex(), path(40)
    index.set_capacity(A, 40)
    index.credit(A, hashes[:20])
    index.credit(A, path(20, first=9))
    before = (index.bytes(), index.blocks(A), repr(index))
    for _ in range(3):
        index.match(hashes)
        index.depth(A, hashes)
    assert (index.bytes(), index.blocks(A), repr(index)) == before
    index.credit(A, path(10, first=8))
    assert index.depth(A, hashes) == 10, "it was the least recently used, asked for or not"


def test_a_hole_is_never_claimed_where_it_is_seen() -> None:
    """An exact node may drop a block before those that follow it."""
    index, hashes = PrefixIndex(), path(8)
    index.insert(A, hashes)
    index.credit(B, hashes)
    index.remove(A, [hashes[0]])
    assert index.match(hashes) == [(bits(B), 8)]
    index.remove(A, [hashes[7]])
    index.insert(A, [hashes[0]])
    index.remove(A, [hashes[3]])
    assert index.match(hashes) == [(bits(B), 8), (bits(A), 3)]


def test_credit_returns_what_it_added() -> None:
    index, hashes = PrefixIndex(), path(10)
    assert index.credit(A, hashes[:4]) == hashes[:4]
    assert index.credit(A, hashes) == hashes[4:]
    assert index.credit(A, hashes[:6]) == []
    assert index.credit(B, hashes[:2]) == hashes[:2]
    assert index.credit(A, []) == []


def test_the_least_recently_used_chain_goes_first_and_its_tail_before_its_start() -> None:
    index = PrefixIndex()
    index.set_capacity(A, 12)
    old, used, new = path(5, first=1), path(5, first=2), path(7, first=3)
    index.credit(A, old)
    index.credit(A, used)
    index.credit(A, old[:2])  # so only its start is recent
    index.credit(A, new[:3])
    assert index.depth(A, old) == 4
    index.credit(A, new)
    assert [index.depth(A, hashes) for hashes in (old, used, new)] == [2, 3, 7]
    assert index.blocks(A) == 12


def test_of_a_conversation_the_last_turn_goes_first() -> None:
    index, turns = PrefixIndex(), path(12)
    index.set_capacity(A, 14)
    for end in (4, 8, 12):
        index.credit(A, turns[:end])
    index.credit(A, path(5, first=9))
    assert index.depth(A, turns) == index.blocks(A) - 5 == 9


def test_a_chain_never_evicts_itself_and_beyond_the_capacity_has_no_tail() -> None:
    index, hashes = PrefixIndex(), path(10)
    index.set_capacity(A, 6)
    index.credit(A, hashes[:5])
    assert index.credit(A, hashes) == [hashes[5]]
    assert index.match(hashes) == [(bits(A), 6)]
    index.set_capacity(A, 0)
    assert index.blocks(A) == 0
    assert index.credit(A, hashes) == []
    index.set_capacity(A, None)
    assert len(index.credit(A, hashes)) == 10


def test_eviction_on_one_node_leaves_the_others_alone() -> None:
    index, hashes = PrefixIndex(), path(4)
    index.set_capacity(A, 4)
    index.credit(A, hashes)
    index.credit(B, hashes)
    index.credit(A, path(4, first=5))
    assert index.match(hashes) == [(bits(B), 4)]
    index.check()


def test_a_withdrawn_credit_leaves_nothing() -> None:
    index, hashes = PrefixIndex(), path(10)
    index.credit(A, hashes[:4])
    index.withdraw(A, index.credit(A, hashes))
    assert index.depth(A, hashes) == 4
    index.check()


def test_what_another_placement_uses_too_is_not_withdrawn() -> None:
    """Of a burst of siblings the first fails; the others still prefill their common start."""
    index, hashes, fork = PrefixIndex(), path(10), [*path(6), *path(3, first=7)]
    first = index.credit(A, hashes)
    index.credit(A, fork)
    index.withdraw(A, first)
    assert (index.depth(A, hashes), index.depth(A, fork)) == (6, 9)
    again = index.credit(B, hashes)
    index.credit(B, hashes)
    index.withdraw(B, again)
    assert index.depth(B, hashes) == 10
    index.check()


def test_withdrawing_twice_or_after_the_node_is_gone_is_harmless() -> None:
    index, hashes = PrefixIndex(), path(5)
    credit = index.credit(A, hashes)
    index.withdraw(A, credit)
    index.withdraw(A, credit)
    index.credit(A, hashes)
    index.withdraw(A, credit)
    assert index.blocks(A) == 5, "these are of a later placement"
    index.forget(A)
    index.withdraw(A, credit)
    assert index.match(hashes) == []


def test_part_of_a_credit_can_be_withdrawn() -> None:
    index, hashes = PrefixIndex(), path(6)
    credit = index.credit(A, hashes)
    assert isinstance(credit, Added)
    index.withdraw(A, credit[4:])
    assert index.depth(A, hashes) == 4
    index.check()


def test_an_exact_node_holds_what_it_tells() -> None:
    index, hashes = PrefixIndex(), path(300)
    index.set_capacity(A, 5)
    index.insert(A, hashes)
    index.insert(A, hashes)
    assert index.depth(A, hashes) == index.blocks(A) == 300, "no capacity bounds an exact node"
    index.remove(A, list(reversed(hashes[100:])))
    index.remove(A, hashes[100:])
    index.remove(B, hashes)
    assert index.match(hashes) == [(bits(A), 100)]
    index.check()


def test_a_block_that_left_and_came_again_outlives_its_neighbours() -> None:
    index, hashes = PrefixIndex(), path(8)
    index.insert(A, hashes)
    index.remove(A, hashes[1:3])
    index.insert(A, hashes[1:2])
    for gone in (hashes[4:6], hashes[3:4]):  # until most of what came together has left
        index.remove(A, gone)
        index.check()
    assert index.match(hashes[:4]) == [(bits(A), 2)]
    assert index.blocks(A) == 4
    index.remove(A, [hashes[1], hashes[0], *hashes[6:]])
    index.check()
    assert index.blocks(A) == 0


def test_a_credit_is_an_advance_on_what_an_exact_node_will_tell() -> None:
    index, hashes = PrefixIndex(), path(6)
    index.insert(A, hashes[:2])
    credit = index.credit(A, hashes)
    assert credit == hashes[2:]
    index.insert(A, hashes[:4])
    index.withdraw(A, credit[2:])
    assert index.match(hashes) == [(bits(A), 4)]
    index.check()


def test_a_cleared_slot_is_empty_and_keeps_its_capacity() -> None:
    index, hashes = PrefixIndex(), path(10)
    index.set_capacity(A, 6)
    for fill in (index.credit, index.insert):
        fill(A, hashes)
        index.credit(B, hashes[:3])
        index.clear(A)
        assert index.blocks(A) == 0
        assert index.match(hashes) == [(bits(B), 3)]
        index.check()
    index.credit(A, hashes)
    assert index.blocks(A) == 6


def test_a_slot_that_was_forgotten_starts_afresh() -> None:
    index = PrefixIndex()
    index.set_capacity(A, 2)
    index.credit(A, path(5))
    index.forget(A)
    index.credit(A, path(5))
    assert index.blocks(A) == 5


# --- the cap ---


def random_chain(rng: random.Random, length: int) -> list[BlockHash]:
    return [BlockHash(rng.getrandbits(HASH_BITS)) for _ in range(length)]


@pytest.mark.parametrize("exact", [False, True])
def test_the_cap_holds_at_every_step(exact: bool) -> None:
    rng = random.Random(7)
    index = PrefixIndex(bytes_max=2_000_000)
    for step in range(400):
        slot, hashes = Slot(step % 5), random_chain(rng, rng.choice([1, 30, 500]))
        if exact:
            index.insert(slot, hashes)
        else:
            index.credit(slot, hashes)
        assert index.bytes() <= index.bytes_max
        assert index.depth(slot, hashes) == len(hashes), "the newest is what stays"
    index.check()
    assert index.bytes() > 0.9 * index.bytes_max


def test_at_the_cap_the_node_with_most_blocks_gives() -> None:
    rng = random.Random(8)
    index = PrefixIndex(bytes_max=1_500_000)
    small = random_chain(rng, 100)
    index.credit(A, small)
    for _ in range(200):
        index.credit(B, random_chain(rng, 100))
    assert index.depth(A, small) == 100
    assert index.blocks(B) > 5_000


def test_of_an_exact_node_the_starts_of_chains_stay() -> None:
    rng = random.Random(9)
    index = PrefixIndex(bytes_max=1_500_000)
    first = random_chain(rng, 100)
    index.insert(A, first)
    for _ in range(200):
        index.insert(A, random_chain(rng, 100))
    assert index.depth(A, first) == 100
    index.check()


@pytest.mark.parametrize("bytes_max", [1, 600_000, 610_000])
def test_what_has_no_room_at_all_is_left_out(bytes_max: int) -> None:
    rng = random.Random(10)
    index = PrefixIndex(bytes_max=bytes_max)
    hashes = random_chain(rng, 5_000)
    index.credit(A, hashes)
    index.insert(B, hashes)
    index.credit(B, hashes)
    assert index.blocks(A) + index.blocks(B) < 200
    assert index.depth(A, hashes) == index.blocks(A), "what did fit is the start"
    index.check()


def test_a_prompt_evicts_its_own_past_only_where_nothing_else_is_left() -> None:
    rng = random.Random(11)
    index = PrefixIndex(bytes_max=1_000_000)
    hashes = random_chain(rng, 30_000)
    for length in range(1_000, 30_001, 1_000):
        index.credit(A, hashes[:length])
        assert index.bytes() <= index.bytes_max
    assert index.depth(A, hashes) == index.blocks(A) > 2_000
    index.check()


def test_it_says_what_it_is() -> None:
    index = PrefixIndex()
    index.credit(A, path(5))
    assert repr(index) == "<PrefixIndex 5 blocks on 1 slots, 0.6 of 512.0 MiB>"
