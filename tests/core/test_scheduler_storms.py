"""The retry guard in the scheduler: what it is told of a request's life, and when it speaks."""

from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.events import ModelCard, RulesChanged
from pointsman.core.ids import ModelName
from pointsman.core.limits import PRIORITY_HIGH
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Held, Placed, Refused
from pointsman.core.rules import GuardRules, Rules
from tests.support.driver import Driver


def full(**options: object) -> Driver:
    """One node with room for one request, which it has, and no queue."""
    driver = Driver(SchedulerOptions(queue_length_max=0, **options))  # type: ignore[arg-type]  # any option
    driver.join("a", concurrency_max=1)
    driver.describe("a")
    driver.arrive("first", "first", client="other")
    return driver


def refusal(driver: Driver, request_id: str, text: str = "x", **fields: object) -> Refused:
    (effect,) = driver.arrive(request_id, text, **{"client": "hasty", **fields})
    assert isinstance(effect, Refused), effect
    return effect


def test_an_early_repeat_is_refused_before_it_is_routed_and_waits_longer() -> None:
    driver = full()
    first, again = refusal(driver, "r1"), refusal(driver, "r2")
    assert (first.reason, again.reason) == (Reason.QUEUE_FULL, Reason.RETRY_EARLY)
    assert not again.decision.candidates
    assert again.retry_after_s is not None
    assert first.retry_after_s is not None
    assert again.retry_after_s > first.retry_after_s


def test_it_is_placed_once_there_has_been_room_for_a_moment() -> None:
    driver = full()
    refusal(driver, "r1")
    refusal(driver, "r2")
    driver.start("first")
    driver.settle("first")
    assert refusal(driver, "r3").reason is Reason.RETRY_EARLY, "the gap is somebody else's"
    driver.now_s += GuardRules().room_s + 0.1
    (effect,) = driver.arrive("r4", "x", client="hasty")
    assert isinstance(effect, Placed)


def test_where_another_model_has_no_room_is_no_reason() -> None:
    driver = full()
    driver.ready("b", models=(ModelCard(name=ModelName("other")),))
    refusal(driver, "r1")
    refusal(driver, "r2")
    for number in range(3):
        (effect,) = driver.arrive(f"other {number}", "x", client="hasty", model="other")
        assert isinstance(effect, Placed)
        driver.settle(f"other {number}", EndCause.CLIENT_GONE)


def test_where_no_node_is_up_it_is_503_however_early() -> None:
    driver = Driver()
    driver.join("a")
    for number in range(3):
        assert refusal(driver, f"r{number}").reason is Reason.NO_NODE


def test_who_left_the_queue_and_comes_at_once_does_not_get_a_new_place() -> None:
    driver = full()
    driver.step(RulesChanged(Rules(queue_length_max=8)))
    (held,) = driver.arrive("r1", "x", client="hasty")
    assert isinstance(held, Held)
    driver.settle("r1", EndCause.CLIENT_GONE)
    assert refusal(driver, "r2").reason is Reason.RETRY_EARLY
    (held,) = driver.arrive("r3", "y", client="hasty")
    assert isinstance(held, Held)


def test_who_left_an_engine_and_comes_at_once_does_not_get_another() -> None:
    driver = full()
    driver.join("b", concurrency_max=1)
    driver.describe("b")
    (placed,) = driver.arrive("r1", "x", client="hasty")
    assert isinstance(placed, Placed)
    driver.settle("r1", EndCause.CLIENT_GONE)
    driver.arrive("other", "z", client="other")
    assert refusal(driver, "r2").reason is Reason.RETRY_EARLY
    assert driver.scheduler.guard.repeats_after_giving_up == 1


def test_our_own_second_attempt_is_no_repeat_of_the_clients() -> None:
    driver = Driver()
    driver.ready("a", "b")
    driver.arrive("r1", "x", client="c")
    (again,) = driver.fail("r1", FailureKind.CLOSED)
    assert isinstance(again, Placed)
    guard = driver.scheduler.guard
    assert guard.amplification.at_gateway == 1.0
    assert guard.amplification.at_engines == 2.0
    assert guard.repeats_after_refusal == guard.repeats_after_giving_up == 0


def test_the_guard_goes_by_the_rules_in_force() -> None:
    driver = full(retry_guard=GuardRules(enabled=False))
    for number in range(3):
        assert refusal(driver, f"off{number}").reason is Reason.QUEUE_FULL
    driver.step(RulesChanged(Rules(queue_length_max=0)))
    assert refusal(driver, "on").reason is Reason.RETRY_EARLY
    driver.step(RulesChanged(Rules(queue_length_max=0, retry_guard=GuardRules(enabled=False))))
    assert refusal(driver, "off").reason is Reason.QUEUE_FULL


def test_jitter_changes_no_choice() -> None:
    """Lots of the policy and lots of the waits are drawn apart."""
    nodes = []
    for refusals in (0, 7):
        driver = Driver(SchedulerOptions(policy="random", seed=3))
        driver.ready("a", "b", "c")
        for number in range(refusals):
            driver.arrive(f"no{number}", "x", client="c", pool="none")
        nodes.append([driver.serve(f"r{number}", f"p{number}") for number in range(20)])
    assert nodes[0] == nodes[1]


def test_while_others_wait_even_the_most_urgent_do_not_come_early() -> None:
    """They would overtake all that wait, again and again."""
    driver = full()
    driver.step(RulesChanged(Rules(queue_length_max=8)))
    (held,) = driver.arrive("waits", "y", client="other")
    assert isinstance(held, Held)
    driver.arrive("r1", "x", client="hasty", priority=PRIORITY_HIGH)
    driver.settle("r1", EndCause.CLIENT_GONE)
    assert refusal(driver, "r2", priority=PRIORITY_HIGH).reason is Reason.RETRY_EARLY
