"""Applies one key's limits: requests and tokens a minute, requests at once.

Tokens are reserved by the prompt's estimate when a request comes in, and corrected by what the
engine counted when it ends. So a burst of long answers overdraws, and the debt is paid off before
the key's next request.
"""

from pointsman.core.admission.key_rules import Exceeded, KeyLimits, QuotaState, Standing
from pointsman.core.admission.token_bucket import TokenBucket
from pointsman.core.errors import Reason

_CONCURRENCY_WAIT_S = 1.0
"""What a request beyond the key's concurrency is told to wait. Nobody knows when one of the key's
requests ends, and a second is the shortest wait that can be told."""


class Quota:
    """The quota of one key. Call `enter` and, if it answers None, `leave` exactly once. One thread
    owns it."""

    def __init__(self, limits: KeyLimits) -> None:
        self.inflight = 0
        self._concurrency_max = limits.concurrency_max
        self._requests = _bucket(limits.requests_per_minute)
        self._tokens = _bucket(limits.tokens_per_minute)

    def enter(self, tokens: int, now_s: float, *, replaces: bool = False) -> Exceeded | None:
        """Let a request of about `tokens` in and book it; or say what it exceeds, and book nothing.
        One that `replaces` another request of the key takes that one's place."""
        exceeded = self._exceeded(tokens, now_s, self.inflight - replaces)
        if exceeded is not None:
            return exceeded
        self.inflight += 1
        if self._requests is not None:
            self._requests.take(1, now_s)
        if self._tokens is not None:
            self._tokens.take(tokens, now_s)
        return None

    def leave(self, reserved: int, used: int, now_s: float) -> None:
        """End a request that reserved so many tokens and used so many."""
        assert self.inflight > 0, "left more often than entered"
        self.inflight -= 1
        if self._tokens is None:
            return
        if used > reserved:
            self._tokens.take(used - reserved, now_s)
        else:
            self._tokens.give_back(reserved - used, now_s)

    def change(self, limits: KeyLimits, now_s: float) -> None:
        """Take other limits from here on. What is used and in flight stays counted."""
        self._concurrency_max = limits.concurrency_max
        self._requests = _resized(self._requests, limits.requests_per_minute, now_s)
        self._tokens = _resized(self._tokens, limits.tokens_per_minute, now_s)

    def state(self, now_s: float) -> QuotaState:
        """What is in flight now, and what is left of each limit."""
        return QuotaState(
            self.inflight,
            self._concurrency_max,
            self.requests(now_s),
            self.tokens(now_s),
        )

    def requests(self, now_s: float) -> Standing | None:
        """What is left of the requests; None without such a limit."""
        return None if self._requests is None else _standing(self._requests, now_s)

    def tokens(self, now_s: float) -> Standing | None:
        """What is left of the tokens; None without such a limit."""
        return None if self._tokens is None else _standing(self._tokens, now_s)

    def _exceeded(self, tokens: int, now_s: float, inflight: int) -> Exceeded | None:
        at_once, requests, bucket = self._concurrency_max, self._requests, self._tokens
        if at_once is not None and inflight >= at_once:
            detail = f"The key has {at_once} requests in flight, its limit. Wait for one to end."
            return Exceeded(Reason.KEY_CONCURRENCY, _CONCURRENCY_WAIT_S, detail)
        if requests is not None and not requests.holds(1, now_s):
            wait_s = requests.wait_s(1, now_s)
            detail = f"The key's limit of {requests.per_minute} requests a minute is reached."
            return Exceeded(Reason.KEY_REQUESTS, wait_s, _again(detail, wait_s))
        if bucket is None or bucket.holds(tokens, now_s):
            return None
        if tokens > bucket.per_minute:
            detail = (
                f"The request has about {tokens} tokens, the key's limit is "
                f"{bucket.per_minute} a minute. Send a shorter prompt."
            )
            return Exceeded(Reason.KEY_REQUEST_TOO_LARGE, None, detail)
        wait_s = bucket.wait_s(tokens, now_s)
        detail = f"The key's limit of {bucket.per_minute} tokens a minute is reached."
        return Exceeded(Reason.KEY_TOKENS, wait_s, _again(detail, wait_s))


def _bucket(per_minute: int | None) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute)


def _resized(
    bucket: TokenBucket | None, per_minute: int | None, now_s: float
) -> TokenBucket | None:
    if bucket is None or per_minute is None:
        return _bucket(per_minute)
    bucket.resize(per_minute, now_s)
    return bucket


def _standing(bucket: TokenBucket, now_s: float) -> Standing:
    limit = bucket.per_minute
    level = bucket.level(now_s)
    return Standing(limit, int(level) if level > 0 else 0, (limit - level) * 60.0 / limit)


def _again(detail: str, wait_s: float) -> str:
    return f"{detail} Try again in {wait_s:.1f} s."
