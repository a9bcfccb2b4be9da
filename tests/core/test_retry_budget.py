"""Retries stay a share of first attempts."""

from pointsman.core.admission.retry_budget import RetryBudget
from pointsman.core.limits import RETRY_BUDGET_MIN, RETRY_BUDGET_RATIO


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


def test_a_long_calm_does_not_save_up_a_storm() -> None:
    budget = RetryBudget()
    for _ in range(100_000):
        budget.attempted()
    taken = sum(budget.take() for _ in range(10_000))
    assert taken <= 10 * RETRY_BUDGET_MIN
