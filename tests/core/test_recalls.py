"""Which placements are taken back, for whom, and what becomes of them."""

import pytest

from pointsman.core.errors import FailureKind, Reason
from pointsman.core.events import Effect, ModelCard, NodeProbed, RulesChanged
from pointsman.core.health import Cause
from pointsman.core.ids import ModelName
from pointsman.core.limits import BUSY_MEMORY_S, PREEMPTED_MAX, PROBE_FAILURES_MAX
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Held, Placed, RecallCause, Recalled, Refused
from pointsman.core.rules import Preemption, RetryRules, Rules
from tests.support.driver import Driver, teach

LOW, HIGH = -10, 10


def crowded(limit: int = 4, **options: object) -> Driver:
    """One engine, full of requests of low priority that have not begun."""
    driver = Driver(SchedulerOptions(**options))  # type: ignore[arg-type]  # test keywords
    driver.join("a", concurrency_max=limit)
    driver.describe("a")
    for i in range(limit):
        driver.arrive(f"low{i}", priority=LOW)
    return driver


def short_of_memory() -> Driver:
    """One engine, two thirds of whose memory have requests of low priority that have not begun."""
    driver = Driver()
    driver.ready("a", kv_blocks=100)
    for i in range(3):
        driver.arrive(f"low{i}", f"{i}" * 1_000, priority=LOW, max_output_tokens=100)
    return driver


def recalls(effects: list[Effect]) -> list[str]:
    return [effect.request_id for effect in effects if isinstance(effect, Recalled)]


def down(driver: Driver, name: str) -> list[Effect]:
    event = NodeProbed(driver.ids[name], healthy=False)
    return [effect for _ in range(PROBE_FAILURES_MAX) for effect in driver.step(event)]


def test_the_newest_of_the_least_urgent_gives_way() -> None:
    driver = crowded()
    assert recalls(driver.arrive("high", priority=HIGH)) == ["low3"]


def test_the_room_that_was_given_up_goes_to_the_urgent_and_not_back() -> None:
    """Two must go before the large one fits: what the first frees is not for itself."""
    driver = short_of_memory()
    effects = driver.arrive("high", "y" * 4_500, priority=HIGH, max_output_tokens=100)
    assert isinstance(effects[0], Held)
    assert len(recalls(effects)) == 2
    first, second = recalls(effects)
    (held,) = driver.fail(first, FailureKind.RECALLED)
    assert isinstance(held, Held)
    told = driver.fail(second, FailureKind.RECALLED)
    assert [type(effect) for effect in told] == [Held, Placed]
    assert isinstance(told[1], Placed)
    assert told[1].request_id == "high"


def test_the_room_goes_to_the_urgent_where_the_queue_is_full_too() -> None:
    driver = crowded(limit=1, queue_length_max=1)
    effects = driver.arrive("high", priority=HIGH)
    assert recalls(effects) == ["low0"]
    told = driver.fail("low0", FailureKind.RECALLED)
    assert [type(effect) for effect in told] == [Held, Placed]
    assert told[1].request_id == "high"  # type: ignore[union-attr]  # it was placed


def test_a_full_queue_does_not_grow_by_those_who_are_recalled() -> None:
    driver = Driver(SchedulerOptions(queue_length_max=1))
    for name in "ab":
        driver.join(name, concurrency_max=1)
        driver.describe(name)
    for request_id in ("r0", "r1"):
        driver.arrive(request_id)
    driver.arrive("low", priority=LOW)
    driver.now_s += 5.0
    told = driver.obey(down(driver, "a"))
    refused = [(e.request_id, e.reason) for e in told if isinstance(e, Refused)]
    assert refused == [("low", Reason.QUEUE_FULL)]
    assert driver.scheduler.held == 1


def test_who_was_recalled_does_not_wait_for_the_urgent_of_another_model() -> None:
    driver = Driver()
    driver.join("a", concurrency_max=1)
    driver.describe("a")
    for name in "bc":
        driver.join(name, concurrency_max=1)
        driver.describe(name, models=(ModelCard(name=ModelName("other")),))
    driver.arrive("runs", priority=HIGH)
    driver.start("runs")
    assert isinstance(driver.arrive("urgent", priority=HIGH)[0], Held)
    (placed,) = driver.arrive("r", model="other")
    assert isinstance(placed, Placed)
    driver.now_s += 100.0
    told = driver.obey(down(driver, placed.node))
    again = [effect for effect in told if isinstance(effect, Placed)]
    assert [effect.request_id for effect in again] == ["r"]


def test_nobody_gives_way_where_that_does_not_help() -> None:
    driver = Driver()
    driver.ready("a", kv_blocks=100)
    driver.arrive("normal", "x" * 2_500)
    driver.arrive("low", "x" * 300, priority=LOW)
    effects = driver.arrive("other", "y" * 5_000, priority=HIGH - 1, max_output_tokens=100)
    assert isinstance(effects[0], Held)
    assert recalls(effects) == []


def test_nobody_gives_way_where_there_is_room() -> None:
    """It waits for its turn, behind one that is larger, and not for memory."""
    driver = short_of_memory()
    large = driver.arrive("large", "y" * 4_500, priority=HIGH, max_output_tokens=100)
    assert len(recalls(large)) == 2
    effects = driver.arrive("small", priority=HIGH, max_output_tokens=1)
    assert [type(effect) for effect in effects] == [Held]


def test_a_request_gives_way_once() -> None:
    driver = crowded(limit=1)
    driver.obey(driver.arrive("high", priority=HIGH))
    driver.settle("high")  # low0 is placed again
    assert recalls(driver.arrive("higher", priority=HIGH)) == []


def test_a_recall_is_asked_for_once() -> None:
    driver = crowded(limit=2)
    assert recalls(driver.arrive("h0", priority=HIGH)) == ["low1"]
    assert recalls(driver.arrive("h1", priority=HIGH)) == ["low0"]
    assert recalls(driver.arrive("h2", priority=HIGH)) == []


def test_a_first_byte_makes_a_recall_void() -> None:
    driver = crowded(limit=1)
    assert recalls(driver.arrive("high", priority=HIGH)) == ["low0"]
    driver.start("low0")
    assert driver.scheduler.in_flight == 1
    driver.settle("low0")
    assert driver.scheduler.held == 0


def test_recalls_are_within_the_retry_budget() -> None:
    driver = crowded(limit=20, retries=RetryRules(budget_ratio=0.0, budget_min=3))
    told = [recalls(driver.arrive(f"h{i}", priority=HIGH)) for i in range(5)]
    assert [len(names) for names in told] == [1, 1, 1, 0, 0]


def test_preemption_can_be_off_and_changed_while_running() -> None:
    driver = crowded(preemption=Preemption.OFF)
    assert recalls(driver.arrive("h0", priority=HIGH)) == []
    driver.step(RulesChanged(Rules(preemption=Preemption.QUEUED)))
    assert recalls(driver.arrive("h1", priority=HIGH)) == ["low3"]
    driver.step(RulesChanged(Rules(retries=RetryRules(recalls_max=0))))
    assert recalls(driver.arrive("h2", priority=HIGH)) == []


def test_streams_break_off_only_where_configured() -> None:
    driver = crowded(limit=2)
    driver.start("low0")
    driver.start("low1")
    assert recalls(driver.arrive("h0", priority=HIGH)) == []
    driver.step(RulesChanged(Rules(preemption=Preemption.STREAMING)))
    effects = driver.arrive("h1", priority=HIGH)
    assert [e.breaks for e in effects if isinstance(e, Recalled)] == [True]


def test_whoever_would_miss_its_first_token_is_let_past() -> None:
    driver = Driver()
    driver.ready("a")
    teach(driver.nodes.__iter__().__next__().calibration)
    for i in range(12):
        driver.arrive(f"low{i}", f"{i} " * 20_000, priority=LOW)
    patient = driver.arrive("patient", priority=HIGH, slo_ttft_s=1_000.0)
    assert [type(effect) for effect in patient] == [Placed]
    hasty = driver.arrive("hasty", priority=HIGH, slo_ttft_s=0.2)
    assert recalls(hasty) == []  # more than so many would have to give way
    for i in range(12 - PREEMPTED_MAX):
        driver.settle(f"low{i}")
    effects = driver.arrive("other", priority=HIGH, slo_ttft_s=0.2)
    assert isinstance(effects[0], Placed)
    assert recalls(effects)
    assert all(name.startswith("low") for name in recalls(effects))


def test_what_waits_on_a_node_that_goes_down_goes_elsewhere() -> None:
    driver = Driver()
    driver.ready("a")
    for name in ("begun", "next", "waits"):
        driver.arrive(name)
    driver.start("begun")
    driver.ready("b")
    effects = down(driver, "a")
    assert [e.cause for e in effects if isinstance(e, Recalled)] == [RecallCause.NODE_DOWN]
    assert recalls(effects) == ["waits"]
    back = driver.obey(effects)
    assert [e.node for e in back if isinstance(e, Placed)] == ["b"]
    assert recalls(driver.advance(0.5)) == [], "it may be computing this one"
    assert recalls(driver.advance(5.0)) == ["next"], "it is not"


def test_an_answer_that_is_not_streamed_may_be_decoding() -> None:
    driver = Driver()
    driver.ready("a")
    driver.arrive("whole", stream=False, max_output_tokens=100)
    driver.ready("b")
    assert recalls(down(driver, "a")) == []
    assert recalls(driver.advance(0.5)) == []
    assert recalls(driver.advance(60.0)) == ["whole"]


def test_without_another_node_it_is_left_where_it_is() -> None:
    driver = Driver()
    driver.ready("a")
    driver.arrive("r0")
    driver.arrive("r1")
    assert recalls(down(driver, "a")) == []
    driver.join("b")
    assert recalls(driver.describe("b")) == ["r1"]
    assert recalls(driver.advance(10.0)) == ["r0"]


def test_a_recall_does_not_speak_against_the_node_nor_against_the_request() -> None:
    driver = Driver()
    driver.ready("a", "b")
    driver.arrive("r")
    for _ in range(20):
        driver.fail("r", FailureKind.RECALLED)
    assert driver.scheduler.in_flight == 1
    assert [view.health for view in driver.scheduler.nodes(0.0)] == ["ready", "ready"]
    assert driver.scheduler.stats.recalled == 20
    (again,) = driver.fail("r", FailureKind.ERROR)
    assert isinstance(again, Placed), "its attempts are all there"


# --- engines that are busy ------------------------------------------------------------------


def test_each_engine_that_is_busy_is_asked_once_and_then_the_client_is_told() -> None:
    driver = Driver()
    driver.ready("a", "b")
    driver.arrive("r")
    (elsewhere,) = driver.fail("r", FailureKind.BUSY)
    assert isinstance(elsewhere, Placed)
    (refused,) = driver.fail("r", FailureKind.BUSY)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.NODE_BUSY


def test_a_busy_engine_is_sent_a_little_more_each_second() -> None:
    driver = Driver()
    driver.ready("a")
    for i in range(20):
        driver.arrive(f"r{i}")
    driver.fail("r19", FailureKind.BUSY)
    (held,) = driver.arrive("next", hold_s=600.0)
    assert isinstance(held, Held)
    driver.advance(BUSY_MEMORY_S / 2)
    assert driver.scheduler.held == 1
    driver.advance(BUSY_MEMORY_S / 2)
    assert driver.scheduler.held == 0


def test_busy_engines_are_asked_no_more_often_than_allowed() -> None:
    driver = Driver()
    driver.ready("a", "b", "c", "d", "e")
    driver.arrive("r")
    asked = 1
    while isinstance(driver.fail("r", FailureKind.BUSY)[0], Placed):
        asked += 1
    assert asked == RetryRules().busy_attempts_max


@pytest.mark.parametrize(
    "kinds",
    [
        [FailureKind.BUSY, FailureKind.ERROR, FailureKind.ERROR],
        [FailureKind.ERROR, FailureKind.BUSY, FailureKind.ERROR],
        [FailureKind.BUSY, FailureKind.BUSY, FailureKind.ERROR, FailureKind.ERROR],
        [FailureKind.ERROR, FailureKind.BUSY, FailureKind.BUSY, FailureKind.BUSY],
    ],
)
def test_busy_engines_and_failures_are_bounded_each_by_themselves(kinds: list[FailureKind]) -> None:
    driver = Driver()
    driver.ready("a", "b", "c", "d", "e")
    driver.arrive("r")
    answers = [type(driver.fail("r", kind)[0]) for kind in kinds]
    assert answers == [*[Placed] * (len(kinds) - 1), Refused]


@pytest.mark.parametrize("kind", [FailureKind.ERROR, FailureKind.CLOSED])
def test_other_failures_never_wait(kind: FailureKind) -> None:
    driver = Driver()
    driver.ready("a")
    driver.arrive("r")
    (refused,) = driver.fail("r", kind)
    assert isinstance(refused, Refused)


def test_what_waits_on_a_doubted_node_goes_to_another_though_it_serves() -> None:
    driver = Driver(SchedulerOptions(policy="round_robin"))
    driver.ready("a", "b")
    for i in range(8):
        driver.arrive(f"r{i}")
    node = driver.node("a")
    node.condition.suspect(Cause.OVERDUE, "nothing comes", driver.now_s)
    assert node.serving
    back = driver.obey(driver.advance(0.5))
    assert len(recalls(back)) == 3, "one may have begun"
    assert {e.node for e in back if isinstance(e, Placed)} == {"b"}
