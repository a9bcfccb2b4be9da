"""Nodes that compute what is hot before they get work."""

from collections.abc import Callable

import pytest

from pointsman.core.decision import Exclusion, Ineligible
from pointsman.core.errors import FailureKind
from pointsman.core.events import (
    CacheChanged,
    Effect,
    IndexTrust,
    IndexTrusted,
    ModelCard,
    NodeDraining,
    NodeLeft,
    NodeProbed,
    NodeWarmed,
    RulesChanged,
    WarmUp,
)
from pointsman.core.ids import ModelName, NodeId, NodeName
from pointsman.core.limits import PROBE_FAILURES_MAX, REQUEST_FAILURES_MAX
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Placed
from pointsman.core.rules import Rules, WarmUpRules
from tests.support.driver import MODEL, Driver, request

PREFIX = "You are a helpful assistant. " * 100
RULES = WarmUpRules(prefixes=2, within_s=5.0)


def busy(*names: str, rules: WarmUpRules = RULES) -> Driver:
    """Nodes that have served many requests with one prefix."""
    driver = Driver(SchedulerOptions(warm_up=rules, policy="round_robin"))
    driver.ready(*names)
    for i in range(30):
        driver.serve(f"r{i}", f"{PREFIX}{i}")
    return driver


def warm_ups(effects: list[Effect]) -> list[WarmUp]:
    return [effect for effect in effects if isinstance(effect, WarmUp)]


def join(driver: Driver, name: str = "new") -> list[WarmUp]:
    driver.join(name)
    return warm_ups(driver.describe(name))


def placed_on(driver: Driver, count: int = 12) -> set[str]:
    driver.now_s += 0.001
    effects = [driver.arrive(f"p{driver.now_s}.{i}", f"{PREFIX}?") for i in range(count)]
    return {e.node for each in effects for e in each if isinstance(e, Placed)}


def warmed(driver: Driver, node_id: NodeId, text: str | None) -> list[Effect]:
    prompt = None if text is None else request("sample", text).prompt
    return driver.step(NodeWarmed(node_id, prompt))


def test_a_newcomer_is_asked_for_what_is_hot_and_gets_nothing_meanwhile() -> None:
    driver = busy("a", "b")
    (warm_up,) = join(driver)
    assert (warm_up.name, warm_up.url, warm_up.within_s) == ("new", "http://new", 5.0)
    assert list(warm_up.blocks) == [hot.block for hot in driver.scheduler.hottest(2, 0.0)]
    assert placed_on(driver) == {"a", "b"}
    warmed(driver, warm_up.node_id, f"{PREFIX}5")
    assert placed_on(driver) == {"a", "b"}
    warmed(driver, warm_up.node_id, None)
    assert "new" in placed_on(driver)


def test_a_decision_says_why_a_node_that_warms_up_is_left_out() -> None:
    driver = busy("a", "b")
    assert join(driver)
    (placed,) = driver.arrive("x", f"{PREFIX}?")
    assert isinstance(placed, Placed)
    assert placed.decision.excluded == (Exclusion(NodeName("new"), Ineligible.WITHHELD),)


def test_what_it_computed_is_credited() -> None:
    driver = busy("a", "b")
    (warm_up,) = join(driver)
    warmed(driver, warm_up.node_id, f"{PREFIX}5")
    warmed(driver, warm_up.node_id, None)
    decision = driver.scheduler.explain(request("x", f"{PREFIX}new"), driver.now_s)
    hits = {str(row.node): row.hit_tokens for row in decision.candidates}
    assert hits["new"] == hits["a"] > 0


def test_what_an_exact_node_computed_it_tells_itself() -> None:
    driver = busy("a", "b")
    (warm_up,) = join(driver)
    driver.step(IndexTrusted(warm_up.node_id, IndexTrust.EXACT))
    driver.step(CacheChanged(warm_up.node_id, ()))
    driver.step(NodeWarmed(warm_up.node_id, request("s", tokens=range(640)).prompt))
    (new,) = [view for view in driver.scheduler.nodes(0.0) if view.name == "new"]
    assert new.index_blocks == 0


def test_a_warm_up_has_its_time() -> None:
    driver = busy("a", "b")
    assert join(driver)
    driver.advance(4.9)
    assert "new" not in placed_on(driver)
    driver.advance(0.2)
    assert "new" in placed_on(driver)
    assert warmed(driver, driver.ids["new"], None) == []  # late: nothing is to be changed


def test_rather_a_cold_node_than_none() -> None:
    driver = busy("a")
    for _ in range(PROBE_FAILURES_MAX):
        driver.step(NodeProbed(driver.ids["a"], healthy=False))
    assert join(driver) == []
    assert placed_on(driver) == {"new"}


def leave(driver: Driver) -> None:
    driver.step(NodeLeft(driver.ids["a"]))


def drain(driver: Driver) -> None:
    driver.step(NodeDraining(driver.ids["a"], draining=True))


def go_down(driver: Driver) -> None:
    for _ in range(PROBE_FAILURES_MAX):
        driver.step(NodeProbed(driver.ids["a"], healthy=False))


def find_nobody(driver: Driver) -> None:
    for _ in range(REQUEST_FAILURES_MAX):
        driver.arrive(f"f{driver.now_s}")
        driver.fail(f"f{driver.now_s}", FailureKind.UNREACHABLE)
        driver.now_s += 0.01


@pytest.mark.parametrize("happen", [leave, drain, go_down, find_nobody])
def test_a_warm_up_ends_when_nobody_else_serves_any_more(
    happen: Callable[[Driver], None],
) -> None:
    driver = busy("a")
    assert join(driver)
    assert placed_on(driver) == {"a"}
    happen(driver)
    assert placed_on(driver) == {"new"}


def test_whoever_finds_the_last_one_gone_is_placed_on_a_node_that_warms_up() -> None:
    driver = busy("a")
    assert join(driver)
    for i in range(REQUEST_FAILURES_MAX):
        driver.arrive(f"f{i}")
        effects = driver.fail(f"f{i}", FailureKind.UNREACHABLE)
    assert [e.node for e in effects if isinstance(e, Placed)] == ["new"]


def test_who_alone_serves_a_model_or_a_pool_is_not_withheld() -> None:
    driver = busy("a", "b")
    driver.join("other")
    cards = (ModelCard(name=MODEL), ModelCard(name=ModelName("other")))
    assert warm_ups(driver.describe("other", models=cards)) == []
    driver.join("pooled", pool="long")
    assert warm_ups(driver.describe("pooled")) == []


def test_nothing_hot_or_switched_off_means_no_warm_up() -> None:
    driver = Driver(SchedulerOptions(warm_up=RULES))
    driver.ready("a", "b")
    assert join(driver) == []
    off = busy("a", "b", rules=WarmUpRules())
    assert join(off) == []
    off.step(RulesChanged(Rules(warm_up=RULES)))
    assert join(off, "later")


def test_a_node_that_returns_with_its_cache_is_not_asked() -> None:
    driver = busy("a", "b", "c")
    for _ in range(PROBE_FAILURES_MAX):
        driver.step(NodeProbed(driver.ids["a"], healthy=False))
    effects = [driver.step(NodeProbed(driver.ids["a"], healthy=True)) for _ in range(5)]
    assert warm_ups([effect for each in effects for effect in each]) == []


def test_a_restart_while_it_warms_up_begins_anew() -> None:
    driver = busy("a", "b")
    (first,) = join(driver)
    (second,) = join(driver)
    assert first.node_id != second.node_id
    warmed(driver, first.node_id, None)
    assert "new" not in placed_on(driver)
    warmed(driver, second.node_id, None)
    assert "new" in placed_on(driver)
    driver.step(NodeLeft(second.node_id))
    driver.advance(10.0)
