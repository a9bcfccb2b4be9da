"""Bounds how many second attempts the cluster makes.

It is a bucket: each first attempt puts `budget_ratio` of a token in, and each retry takes one out.
So retries stay below that share of the traffic however many nodes fail. A quiet cluster has
`budget_min` to start with.
"""

from typing import Final

from pointsman.core.rules import RetryRules

_SAVED_MAX: Final = 10
"""What a long calm may save up, as a multiple of `budget_min`."""


_DEFAULTS = RetryRules()


class RetryBudget:
    """The bucket: first attempts pay in, retries take out."""

    def __init__(self, rules: RetryRules = _DEFAULTS) -> None:
        self._tokens = float(rules.budget_min)
        self.apply(rules)

    def apply(self, rules: RetryRules) -> None:
        """Save and spend by these from here on."""
        self.rules = rules
        self._ratio = rules.budget_ratio
        saved_max = float(_SAVED_MAX * rules.budget_min)
        self._tokens = min(self._tokens, saved_max)
        self._tokens_max = max(1.0, saved_max)  # what is paid in adds up to one at least

    def attempted(self) -> None:
        """A request makes its first attempt."""
        if self._tokens < self._tokens_max:
            self._tokens += self._ratio

    @property
    def is_spent(self) -> bool:
        """Whether no retry may be made."""
        return self._tokens < 1.0

    def take(self) -> bool:
        """Whether a retry may be made. If so, it is booked."""
        if self.is_spent:
            return False
        self._tokens -= 1.0
        return True

    def __repr__(self) -> str:
        return f"<RetryBudget {self._tokens:.1f} tokens>"


def may_go_on(rules: RetryRules, *, failed: int, busy: int) -> bool:
    """Whether a request may go to a further node that has failed on so many, and found so many
    others busy."""
    return failed < rules.attempts_max and busy < rules.busy_attempts_max
