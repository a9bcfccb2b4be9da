"""Engines that say how many requests they run at once: what is beyond waits here, not there."""

from typing import Any

import pytest

from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.errors import FailureKind
from pointsman.core.events import NodeReported, NodeSignals
from pointsman.core.limits import CANDIDATES_MAX
from pointsman.core.node import Node
from pointsman.core.options import SchedulerOptions
from pointsman.core.policies import catalog
from pointsman.core.policies.pick import NO_ROOM
from pointsman.core.request_events import Held, Placed, Recalled
from pointsman.core.row import Row
from tests.support.driver import Driver, request, teach

LOW, HIGH = -10, 10
WORDS: dict[str, Any] = {"max_output_tokens": 100}


def fleet(policy: str = "marginal_cost", /, **running_max: int | None) -> Driver:
    """Engines whose speeds are known, and equal."""
    driver = Driver(SchedulerOptions(policy=policy))
    for name, most in running_max.items():
        driver.ready(name, running_max=most)
    for node in driver.nodes:
        teach(node.calibration)
    return driver


def node(driver: Driver, name: str = "a") -> Node:
    return next(each for each in driver.nodes if each.name == name)


def seen(driver: Driver, name: str = "a") -> Row:
    asked = request("x", "hello", **WORDS)
    rows = driver.scheduler.explain(asked, driver.now_s).candidates
    return next(row for row in rows if row.node == name)


def others_run(driver: Driver, count: int, name: str = "a") -> None:
    """Requests that came another way, as two reports in a row tell."""
    running = count + node(driver, name).inflight
    for _ in range(2):
        signals = NodeSignals(running=running, waiting=0)
        driver.step(NodeReported(driver.ids[name], driver.now_s, signals))


def where(driver: Driver, name: str, **fields: object) -> str:
    (effect,) = driver.arrive(name, f"prompt {name}", **{**WORDS, **fields})
    return effect.node if isinstance(effect, Placed) else effect.decision.why  # type: ignore[union-attr]  # held or refused


@pytest.mark.parametrize("policy", catalog.names())
def test_under_no_policy_more_wait_inside_an_engine(policy: str) -> None:
    driver = fleet(policy, a=2)
    assert [where(driver, f"r{n}") for n in range(2)] == ["a", "a"]
    (held,) = driver.arrive("r2", **WORDS)
    assert isinstance(held, Held)
    assert held.decision.why.startswith("room: ")
    (placed,) = driver.settle("r0")
    assert isinstance(placed, Placed)
    assert (placed.request_id, node(driver).inflight) == ("r2", 2)


def test_who_would_wait_longer_than_it_is_worth_goes_elsewhere() -> None:
    driver = fleet(a=2, b=None)
    assert [where(driver, f"r{n}") for n in range(8)].count("a") == 2
    assert node(driver, "b").inflight == 6


def test_who_waits_for_the_cheapest_is_held() -> None:
    driver = fleet(a=1, b=None)
    node(driver, "b").calibration.slowed(20.0, 0.0)
    where(driver, "r0")
    assert where(driver, "r1") == "room: waiting for a is cheapest"


def test_a_wait_is_as_long_as_it_takes_until_one_has_ended() -> None:
    driver = fleet(a=4)
    for n in range(3):
        where(driver, f"r{n}")
    assert seen(driver).room_wait_s == 0.0
    where(driver, "r3")
    row = seen(driver)
    assert not row.fits
    assert row.room_wait_s == pytest.approx(2 * row.running_s / 4)
    assert row.room_wait_s == pytest.approx(row.decode_s / 4, rel=0.01)


def test_a_short_answer_waits_as_long_as_the_long_ones_that_run_there() -> None:
    driver = fleet(a=2)
    for n in range(2):
        where(driver, f"r{n}", max_output_tokens=1_000)
    row = seen(driver)
    assert row.room_wait_s > 2 * row.decode_s / 2


def test_a_batch_is_no_longer_than_what_runs() -> None:
    """Not even where others send more there."""
    driver = fleet(a=4, b=None)
    others_run(driver, 30, "a")
    others_run(driver, 3, "b")
    full, three = seen(driver, "a"), seen(driver, "b")
    assert (full.inflight, three.inflight) == (30, 3)
    for term in ("decode_s", "stall_s", "slowdown_s"):
        assert getattr(full, term) == getattr(three, term), term
    assert full.room_wait_s == pytest.approx(full.decode_s * 27 / 4)


def test_others_take_room_and_never_all_of_it() -> None:
    """One of ours may wait inside: two gateways would else keep each other out by turns."""
    driver = fleet("round_robin", a=4)
    others_run(driver, 4)
    assert where(driver, "r0") == "a"
    assert where(driver, "r1") == NO_ROOM
    others_run(driver, 2)
    assert len(driver.advance(0.1)) == 1
    assert where(driver, "r2") == NO_ROOM


def test_others_alone_close_no_gate() -> None:
    driver = Driver(SchedulerOptions(policy="round_robin"), AdmissionRules())
    driver.ready("a", running_max=4)
    others_run(driver, 4)
    assert where(driver, "r0") == "a"
    assert where(driver, "r1").startswith("red: ")


def test_a_part_is_as_full_as_its_engines_are() -> None:
    driver = Driver(admission=AdmissionRules(backlog_s=1e9))
    driver.ready("a", "b", running_max=5)
    for n in range(8):
        where(driver, f"r{n}", priority=LOW)
    assert where(driver, "low", priority=LOW).startswith("low_priority: 80%")
    assert where(driver, "normal") in ("a", "b")


def test_an_engine_that_runs_all_it_can_has_no_room_soon() -> None:
    driver = fleet(a=1)
    asked = request("x", "hello")
    router = driver.scheduler._router
    demand = router.demand(asked)
    assert not router.is_contended(asked, demand, 0.0, within_s=9.0)
    where(driver, "r0")
    assert router.is_contended(asked, demand, 0.0, within_s=9.0)


def test_the_urgent_have_one_give_way_that_has_not_begun() -> None:
    driver = fleet(a=2)
    for n in range(2):
        where(driver, f"low{n}", priority=LOW)
    effects = driver.arrive("high", priority=HIGH)
    assert [e.request_id for e in effects if isinstance(e, Recalled)] == ["low1"]
    told = driver.fail("low1", FailureKind.RECALLED)
    assert [e.request_id for e in told if isinstance(e, Placed)] == ["high"]


def test_a_step_is_learned_of_what_ran_and_not_of_what_waited() -> None:
    driver = fleet(a=4)
    speeds = node(driver).speeds
    step_s = speeds.step_s + 4 * speeds.sequence_s
    for n in range(40):
        driver.describe("a", running_max=None)  # and so eight come to be there
        while node(driver).inflight < 8:
            where(driver, f"r{n + node(driver).inflight}")
        driver.describe("a", running_max=4)
        driver.start(f"r{n}")
        outcome: dict[str, Any] = {"ttft_s": 0.1, "decode_s": 99 * step_s, "output_tokens": 100}
        driver.settle(f"r{n}", streamed=True, **outcome)
        driver.advance(1.0)
    learned = node(driver).speeds
    assert learned.step_s + 4 * learned.sequence_s == pytest.approx(step_s, rel=0.05)


def test_the_shortlist_sees_those_first_that_have_room() -> None:
    """Some requests on an engine are less than many on another, and all the same it is full."""
    few: dict[str, int | None] = {f"few{n}": 1 for n in range(2 * CANDIDATES_MAX)}
    driver = fleet(**few, many=None)
    for n in range(len(few) + 1):
        where(driver, f"r{n}")
    for n in range(8):
        assert where(driver, f"s{n}") == "many"


def test_who_is_held_waits_for_those_without_room_alone() -> None:
    driver = fleet(a=2, b=None)
    node(driver, "b").calibration.slowed(50.0, 0.0)
    for n in range(2):
        where(driver, f"r{n}")
    alone_s = seen(driver).room_wait_s
    for n in range(2):
        assert where(driver, f"s{n}") == "room: waiting for a is cheapest"
    row = seen(driver)
    assert row.room_wait_s == pytest.approx(alone_s + 2 * row.running_s * 2 / 2)
    assert seen(driver, "b").room_wait_s == 0.0


def test_who_failed_elsewhere_waits_inside_an_engine_before_it_is_refused() -> None:
    driver = fleet(a=2, b=2)
    nodes = [where(driver, f"r{n}") for n in range(4)]
    assert sorted(nodes) == ["a", "a", "b", "b"]
    (placed,) = driver.fail("r0", FailureKind.CLOSED)
    assert isinstance(placed, Placed)
    assert placed.node != nodes[0]
    assert node(driver, placed.node).inflight == 3
