"""What an agent tells of its node's cache, and credits that wait for its word."""

from array import array
from functools import reduce
from operator import xor
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core import told
from pointsman.core.blocks import Prompt
from pointsman.core.cache_events import BlockStored
from pointsman.core.errors import EndCause
from pointsman.core.events import (
    CacheChanged,
    CacheTold,
    IndexTrust,
    IndexTrusted,
)
from pointsman.core.ids import BlockHash
from pointsman.core.scheme import Namespace, Scheme, Unit
from pointsman.core.told import Told
from tests.support.driver import MODEL, Driver, request

TOKENS = range(64)
CHAIN = Prompt(Namespace(MODEL), tokens=TOKENS).chain(Scheme(Unit.TOKENS, 16))


def node_a(*, tells: bool = True) -> Driver:
    driver = Driver()
    driver.ready("a")
    if tells:
        tell(driver)
        driver.step(IndexTrusted(driver.ids["a"], IndexTrust.EXACT))
    return driver


def tell(
    driver: Driver,
    stored: list[BlockHash] | None = None,
    removed: list[BlockHash] | None = None,
    bucket: int | None = None,
) -> None:
    driver.step(CacheTold(driver.ids["a"], stored or [], removed or [], bucket))


def hit_tokens(driver: Driver, tokens: range = TOKENS) -> int:
    asked = request("asked", "", tokens=array("q", tokens))
    (row,) = driver.scheduler.explain(asked, driver.now_s).candidates
    return row.index_hit_tokens


def index_blocks(driver: Driver) -> int:
    (node,) = driver.scheduler.nodes(driver.now_s)
    return node.index_blocks


def test_what_came_is_found_and_what_left_is_not() -> None:
    driver = node_a()
    tell(driver, CHAIN)
    assert hit_tokens(driver) == 64
    tell(driver, removed=CHAIN[2:])
    assert hit_tokens(driver) == 32
    driver.scheduler.check()


def test_both_sides_have_one_digest() -> None:
    driver = node_a()
    tell(driver, CHAIN)
    copy = driver.scheduler.told(driver.ids["a"])
    assert copy is not None
    assert copy.agrees(CHAIN[0] ^ CHAIN[1] ^ CHAIN[2] ^ CHAIN[3], 4)


def test_a_bucket_is_replaced_as_a_whole() -> None:
    driver = node_a()
    mine, other = BlockHash(5 << 54 | 1), BlockHash(5 << 54 | 2)
    elsewhere = BlockHash(6 << 54)
    tell(driver, [mine, elsewhere])
    tell(driver, [other], bucket=5)
    copy = driver.scheduler.told(driver.ids["a"])
    assert copy is not None
    assert sorted(copy.blocks.blocks()) == [other, elsewhere]
    assert index_blocks(driver) == 2


def test_a_credit_stands_until_the_beat_after_next() -> None:
    """The beat that comes first may have been under way when the request ended."""
    driver = node_a()
    driver.serve("r-1", "", tokens=array("q", TOKENS))
    assert hit_tokens(driver) == 64
    tell(driver)
    assert hit_tokens(driver) == 64
    tell(driver, CHAIN[:2])
    assert hit_tokens(driver) == 32
    tell(driver)
    assert (hit_tokens(driver), index_blocks(driver)) == (32, 2)
    driver.scheduler.check()


def test_who_speaks_last_is_believed() -> None:
    """An agent comes and goes; the engine's own events replace what it said, and it theirs."""
    driver = node_a()
    tell(driver, CHAIN)
    event = BlockStored((1,), None, tuple(TOKENS[:16]), 16)
    driver.step(CacheChanged(driver.ids["a"], [event]))
    assert driver.scheduler.told(driver.ids["a"]) is None
    assert hit_tokens(driver) == 16
    tell(driver, CHAIN[:3])
    assert hit_tokens(driver) == 48
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.HISTORY))
    assert (hit_tokens(driver), driver.scheduler.told(driver.ids["a"])) == (0, None)
    driver.scheduler.check()


def test_an_agent_whose_index_misleads_is_not_believed() -> None:
    driver = node_a()
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.DISTRUSTED))
    tell(driver, CHAIN)
    assert (hit_tokens(driver), driver.scheduler.told(driver.ids["a"])) == (0, None)


def test_a_new_incarnation_has_been_told_nothing() -> None:
    driver = node_a()
    tell(driver, CHAIN)
    driver.ready("a")
    assert driver.scheduler.told(driver.ids["a"]) is None
    assert hit_tokens(driver) == 0


def test_credits_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that says nothing more does not make the scheduler remember all that it places."""
    monkeypatch.setattr(told, "WAITING_MAX", 1)
    driver = node_a()
    driver.serve("r-1", "", tokens=array("q", TOKENS))
    driver.serve("r-2", "", tokens=array("q", range(500, 564)))
    assert hit_tokens(driver) == 64
    assert hit_tokens(driver, range(500, 564)) == 0, "it is settled at once"


def test_a_credit_that_never_began_is_taken_back_but_for_what_was_told() -> None:
    driver = node_a()
    driver.arrive("r-1", "", tokens=array("q", TOKENS))
    tell(driver, CHAIN[:1])
    driver.settle("r-1", EndCause.CLIENT_GONE)
    assert hit_tokens(driver) == 16


def test_what_is_told_of_a_former_incarnation_is_ignored() -> None:
    driver = node_a()
    old = driver.ids["a"]
    driver.ready("a")
    driver.step(CacheTold(old, CHAIN))
    assert (hit_tokens(driver), driver.scheduler.told(old)) == (0, None)


FEW = st.lists(st.integers(1, 6).map(BlockHash), max_size=5)


@given(st.lists(st.tuples(FEW, FEW, st.booleans()), max_size=12), st.integers(1, 8))
def test_when_the_blocks_are_entered_makes_no_difference(
    beats: list[tuple[list[BlockHash], list[BlockHash], bool]], unentered_max: int
) -> None:
    """Whatever an agent tells, a block twice or one that was not there included."""
    twin = set[BlockHash]()
    with mock.patch.object(told, "_UNENTERED_MAX", unentered_max):
        copy = Told(100)
        for stored, removed, is_asked in beats:
            copy.change(stored, removed)
            copy.check()
            twin = twin.difference(removed).union(stored)
            if is_asked:
                assert copy.agrees(reduce(xor, twin, 0), len(twin))
        assert sorted(copy.blocks.blocks()) == sorted(twin)
        copy.check()


def test_an_honest_agents_beats_are_not_entered_to_be_compared() -> None:
    copy = Told(100)
    copy.change([BlockHash(n) for n in range(1, 6)], [])
    copy.change([BlockHash(9)], [BlockHash(1)])
    assert copy.agrees(2 ^ 3 ^ 4 ^ 5 ^ 9, 5)
    assert "BlockSet 0 of" in repr(copy)


def test_more_than_there_is_room_for_is_left_out() -> None:
    copy = Told(3)
    copy.change([BlockHash(1), BlockHash(2)], [])
    came, left = copy.change([BlockHash(3), BlockHash(4), BlockHash(5)], [BlockHash(1)])
    assert (came, left, copy.is_full) == ([3, 4], [1], True)
    assert copy.agrees(2 ^ 3 ^ 4, 3)
    copy.check()
