"""Retries stay a share of first attempts."""

from pointsman.core.admission.retry_budget import RetryBudget
from pointsman.core.errors import FailureKind, Reason
from pointsman.core.limits import RETRY_BUDGET_MIN, RETRY_BUDGET_RATIO
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Held, Placed, Refused
from pointsman.core.rules import RetryRules
from tests.support.driver import Driver


def test_a_quiet_cluster_can_retry() -> None:
    budget = RetryBudget()
    assert [budget.take() for _ in range(RETRY_BUDGET_MIN + 1)] == [True] * RETRY_BUDGET_MIN + [
        False
    ]


def test_retries_of_a_cluster_where_everything_fails_are_bounded() -> None:
    budget = RetryBudget()
    retried = 0
    for _ in range(1_000):
        budget.attempted()
        retried += budget.take()
    assert retried <= 1_000 * RETRY_BUDGET_RATIO + RETRY_BUDGET_MIN
    assert retried >= 1_000 * RETRY_BUDGET_RATIO


def test_without_any_to_start_with_there_is_the_share_of_first_attempts() -> None:
    budget = RetryBudget(RetryRules(budget_min=0, budget_ratio=0.5))
    assert not budget.take()
    for _ in range(10):
        budget.attempted()
    assert [budget.take(), budget.take()] == [True, False], "and nothing is saved up"


def test_what_is_refused_pays_nothing_in() -> None:
    driver = Driver(SchedulerOptions(retries=RetryRules(budget_min=1, budget_ratio=0.2)))
    driver.ready("a", "b")
    driver.arrive("r1")
    assert isinstance(driver.fail("r1", FailureKind.UNREACHABLE)[0], Placed)
    for number in range(20):
        assert isinstance(driver.arrive(f"x{number}", model="no such model")[0], Refused)
    driver.arrive("r2")
    assert isinstance(driver.fail("r2", FailureKind.UNREACHABLE)[0], Refused)


def test_one_that_failed_and_cannot_wait_costs_no_retry() -> None:
    rules = RetryRules(budget_min=1, budget_ratio=0.0)
    driver = Driver(SchedulerOptions(queue_length_max=1, retries=rules))
    for name in ("a", "b"):
        driver.join(name, concurrency_max=1)
        driver.describe(name)
    driver.arrive("r1")
    driver.arrive("r2")
    driver.arrive("waits")
    refused, second = driver.fail("r1", FailureKind.CLOSED)
    assert isinstance(refused, Refused), refused
    assert refused.reason is Reason.QUEUE_FULL
    assert isinstance(second, Placed), second
    assert driver.scheduler.stats.retried == 0
    assert isinstance(driver.fail("waits", FailureKind.CLOSED)[0], Held), "the budget is untouched"


def test_a_long_calm_does_not_save_up_a_storm() -> None:
    budget = RetryBudget()
    for _ in range(100_000):
        budget.attempted()
    taken = sum(budget.take() for _ in range(10_000))
    assert taken <= 10 * RETRY_BUDGET_MIN
