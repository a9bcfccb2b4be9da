"""Which prefixes are hot, how many nodes they are worth, and what that does to placements."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.hot_prefixes import (
    HOT_PREFIXES_MAX,
    HOT_REQUESTS_MIN,
    MODELS_MAX,
    HotPrefixes,
)
from pointsman.core.ids import BlockHash, ModelName
from pointsman.core.limits import HOT_HOLDERS_SLACK, HOT_MEMORY_S
from pointsman.core.request_events import Placed
from pointsman.core.rules import HotPrefixRules
from tests.support.driver import MODEL, Driver, request, teach

HOT, COLD = BlockHash(7), BlockHash(8)


def counted(*blocks: BlockHash | None, now_s: float = 0.0) -> HotPrefixes:
    hot = HotPrefixes()
    for block in blocks:
        hot.placed(block, MODEL, 4_096, now_s, hits=True)
    return hot


def holders_wanted(hot: HotPrefixes, nodes: int, now_s: float = 0.0) -> int:
    """How many come to hold it, if each time one more computes it."""
    holders = 1
    while hot.invested(HOT, nodes, holders, now_s):
        holders += 1
    return holders


def test_a_prefix_gets_nodes_by_its_share_of_the_requests() -> None:
    hot = counted(*[HOT, None] * 200)
    assert holders_wanted(hot, 8) == 8 * 0.5 * HOT_HOLDERS_SLACK
    assert holders_wanted(counted(*[HOT, *[None] * 31] * 40), 8) == 1


def test_the_slack_is_configured_and_without_any_there_is_no_further_copy() -> None:
    hot = counted(*[HOT, None] * 200)
    for slack, holders in ((1.0, 4), (2.0, 8), (0.0, 1)):
        hot.apply(HotPrefixRules(holders_slack=slack))
        assert holders_wanted(hot, 8) == holders


def test_never_more_than_there_are() -> None:
    assert holders_wanted(counted(*[HOT] * 200), 8) == 8


def test_each_holder_must_be_asked_often_enough() -> None:
    hot = counted(*[HOT] * int(3 * HOT_REQUESTS_MIN))
    assert holders_wanted(hot, 8) == 3


def test_most_of_the_work_is_for_later_requests_where_many_come() -> None:
    hot = counted(*[HOT] * 100)
    assert hot.invested(HOT, 8, 1, 0.0) == 1 - 2 / 100
    assert hot.invested(COLD, 8, 1, 0.0) == 0.0


def test_what_was_hot_cools() -> None:
    hot = counted(*[HOT, None] * 20)
    assert hot.invested(HOT, 8, 1, 0.0) > 0
    assert hot.invested(HOT, 8, 1, 3 * HOT_MEMORY_S) == 0.0
    assert hot.hottest(3, 3 * HOT_MEMORY_S) == []


def test_a_sudden_one_has_its_full_share_at_once() -> None:
    """Of all requests of the last seconds it has few, of those since it came it has most."""
    hot = counted(*[None] * 1_000)
    for _ in range(40):
        hot.placed(HOT, MODEL, 4_096, 0.0, hits=True)
    assert holders_wanted(hot, 8) > 6


def test_the_hottest_are_told_with_their_hits() -> None:
    hot = counted(*[HOT] * 20, *[COLD] * 10, None)
    for _ in range(4):
        hot.placed(COLD, MODEL, 4_096, 0.0, hits=False)
    first, second = hot.hottest(5, 0.0)
    assert (first.block, second.block) == (HOT, COLD)
    assert first.share == 20 / 35
    assert (first.hit_share, second.hit_share) == (1.0, (31 / 32) ** 4)


def test_counts_are_bounded_and_the_hottest_stay() -> None:
    hot = counted(*[HOT] * 50)
    for block in range(100, 100 + 3 * HOT_PREFIXES_MAX):
        hot.placed(BlockHash(block), MODEL, 16, 0.0, hits=False)
        assert len(hot) <= HOT_PREFIXES_MAX
    assert hot.hottest(1, 0.0)[0].block == HOT


def test_models_that_come_and_go_are_bounded_and_the_hot_stay() -> None:
    hot = counted(*[BlockHash(1)] * 20)
    for number in range(2 * MODELS_MAX):
        hot.placed(None, ModelName(f"adapter-{number}"), 0, 0.0, hits=True)
        assert hot.models <= MODELS_MAX
    assert [prefix.block for prefix in hot.hottest(1, 0.0)] == [1]


@given(
    st.lists(
        st.tuples(st.sampled_from(["m", "n"]), st.integers(0, 5), st.integers(0, 40)), max_size=80
    ),
    st.integers(1, 16),
)
def test_investments_are_shares_and_stop_at_the_nodes(
    placements: list[tuple[str, int, int]], nodes: int
) -> None:
    hot, now_s = HotPrefixes(), 0.0
    for model, block, pause in placements:
        now_s += pause / 10
        name = BlockHash(block + (100 if model == "n" else 0))
        hot.placed(name if block else None, ModelName(model), 64, now_s, hits=bool(pause))
        for holders in range(nodes + 1):
            share = hot.invested(name, nodes, holders, now_s)
            assert 0.0 <= share < 1.0
            assert holders < nodes or not share
    shares: dict[str, float] = {}
    for prefix in hot.hottest(100, now_s):
        shares[prefix.model] = shares.get(prefix.model, 0.0) + prefix.share
    assert all(share <= 1.0 + 1e-9 for share in shares.values())


# --- in placements ------------------------------------------------------------------------

PREFIX = "You are a helpful assistant. " * 600  # about 4,000 tokens


def learned(*names: str) -> Driver:
    driver = Driver()
    driver.ready(*names)
    for node in driver.nodes:
        teach(node.calibration)
    return driver


def place(driver: Driver, name: str, text: str, *, every_s: float = 0.05) -> str:
    driver.now_s += every_s
    (placed,) = driver.arrive(name, text, max_output_tokens=100)
    assert isinstance(placed, Placed)
    driver.start(name)
    return placed.node


def test_a_hot_prefix_comes_to_be_held_by_several_and_others_do_not() -> None:
    driver = learned("a", "b", "c", "d")
    hot, cold = set(), set()
    for i in range(120):
        hot.add(place(driver, f"h{i}", f"{PREFIX}{i}"))
        if i % 10 == 0:
            cold.add(place(driver, f"c{i}", f"{PREFIX[::-1]}{i}"))
        if i >= 20:
            driver.settle(f"h{i - 20}", streamed=True)
    assert len(hot) == 4
    assert len(cold) == 1
    (first, *_) = driver.scheduler.hot_prefixes(8, driver.now_s)
    assert sorted(first.holders) == ["a", "b", "c", "d"]
    assert first.share > 0.8
    assert first.hit_share > 0.8


def test_conversations_are_not_hot_however_busy() -> None:
    driver = learned("a", "b", "c", "d")
    homes: dict[int, set[str]] = {}
    for turn in range(12):
        for session in range(6):
            text = f"session {session} " * 400 + "turn " * turn * 50
            homes.setdefault(session, set()).add(place(driver, f"s{session}.{turn}", text))
            driver.settle(f"s{session}.{turn}", streamed=True)
    assert all(len(nodes) == 1 for nodes in homes.values())


def test_asking_does_not_count() -> None:
    driver = learned("a", "b")
    place(driver, "r", PREFIX)
    for i in range(50):
        driver.scheduler.explain(request(f"x{i}", PREFIX), driver.now_s)
    assert driver.scheduler.hot_prefixes(8, driver.now_s) == []
