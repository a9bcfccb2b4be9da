"""What an agent tells of its node's cache, and credits that wait for its word."""

from array import array

import pytest

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
    assert copy.digest == CHAIN[0] ^ CHAIN[1] ^ CHAIN[2] ^ CHAIN[3]


def test_a_bucket_is_replaced_as_a_whole() -> None:
    driver = node_a()
    mine, other = BlockHash(5 << 54 | 1), BlockHash(5 << 54 | 2)
    elsewhere = BlockHash(6 << 54)
    tell(driver, [mine, elsewhere])
    tell(driver, [other], bucket=5)
    copy = driver.scheduler.told(driver.ids["a"])
    assert copy is not None
    assert [mine in copy, other in copy, elsewhere in copy] == [False, True, True]
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
