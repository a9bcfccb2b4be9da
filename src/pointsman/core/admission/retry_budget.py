"""How many second attempts the cluster can bear.

A bucket: each first attempt puts `RETRY_BUDGET_RATIO` of a token in, each retry takes one
out. So retries stay below that share of the traffic however many nodes fail, and a quiet
cluster has `RETRY_BUDGET_MIN` to start with.
"""

from pointsman.core.limits import RETRY_BUDGET_MIN, RETRY_BUDGET_RATIO

_TOKENS_MAX = 10 * RETRY_BUDGET_MIN


class RetryBudget:
    """Deposits by first attempts, withdrawals by retries."""

    def __init__(self) -> None:
        self._tokens = float(RETRY_BUDGET_MIN)

    def attempted(self) -> None:
        """A request arrived and is about to make its first attempt."""
        if self._tokens < _TOKENS_MAX:
            self._tokens += RETRY_BUDGET_RATIO

    def take(self) -> bool:
        """Whether a retry may be made; if so it is booked."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def __repr__(self) -> str:
        return f"<RetryBudget {self._tokens:.1f} tokens>"
