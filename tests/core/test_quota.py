"""One key's limits: what comes in, what it holds, and that it holds nothing afterwards."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.admission.key_rules import KeyLimits, Standing
from pointsman.core.admission.quota import Quota
from pointsman.core.errors import Reason


def test_a_key_without_limits_lets_everything_in() -> None:
    quota = Quota(KeyLimits())
    assert all(quota.enter(10**9, 0.0) is None for _ in range(1_000))
    assert quota.inflight == 1_000
    assert (quota.requests(0.0), quota.tokens(0.0)) == (None, None)


def test_requests_at_once() -> None:
    quota = Quota(KeyLimits(concurrency_max=2))
    assert quota.enter(1, 0.0) is None
    assert quota.enter(1, 0.0) is None
    exceeded = quota.enter(1, 0.0)
    assert exceeded is not None
    assert (exceeded.reason, exceeded.wait_s) == (Reason.KEY_CONCURRENCY, 1.0)
    quota.leave(1, 1, 0.0)
    assert quota.enter(1, 0.0) is None


def test_requests_a_minute() -> None:
    quota = Quota(KeyLimits(requests_per_minute=60))
    assert [quota.enter(1, 5.0) for _ in range(60)] == [None] * 60
    exceeded = quota.enter(1, 5.0)
    assert exceeded is not None
    assert exceeded.reason is Reason.KEY_REQUESTS
    assert exceeded.wait_s == 1.0
    assert quota.enter(1, 6.0) is None
    assert quota.requests(6.0) == Standing(limit=60, remaining=0, full_in_s=60.0)


def test_tokens_are_reserved_and_then_corrected() -> None:
    quota = Quota(KeyLimits(tokens_per_minute=600))
    assert quota.enter(100, 0.0) is None
    assert quota.tokens(0.0) == Standing(limit=600, remaining=500, full_in_s=10.0)
    quota.leave(100, 350, 0.0)  # the answer was long
    assert quota.tokens(0.0) == Standing(limit=600, remaining=250, full_in_s=35.0)
    assert quota.enter(200, 0.0) is None
    quota.leave(200, 0, 0.0)  # no engine ever had it
    assert quota.tokens(0.0) == Standing(limit=600, remaining=250, full_in_s=35.0)


def test_a_debt_is_paid_off_before_the_next_request() -> None:
    quota = Quota(KeyLimits(tokens_per_minute=60))
    assert quota.enter(10, 0.0) is None
    quota.leave(10, 120, 0.0)
    exceeded = quota.enter(10, 0.0)
    assert exceeded is not None
    assert (exceeded.reason, exceeded.wait_s) == (Reason.KEY_TOKENS, 70.0)
    standing = quota.tokens(0.0)
    assert standing is not None
    assert standing.remaining == 0
    assert quota.enter(10, 69.0) is not None
    assert quota.enter(10, 70.0) is None


def test_a_request_that_never_fits_is_not_told_to_wait() -> None:
    exceeded = Quota(KeyLimits(tokens_per_minute=60)).enter(61, 0.0)
    assert exceeded is not None
    assert (exceeded.reason, exceeded.wait_s) == (Reason.KEY_REQUEST_TOO_LARGE, None)
    assert "61" in exceeded.detail


def test_what_is_refused_books_nothing() -> None:
    quota = Quota(KeyLimits(requests_per_minute=10, tokens_per_minute=100, concurrency_max=5))
    before = quota.state(0.0)
    assert quota.enter(101, 0.0) is not None
    assert quota.state(0.0) == before


def test_a_change_keeps_what_is_used_and_in_flight() -> None:
    quota = Quota(KeyLimits(requests_per_minute=10, concurrency_max=1))
    assert quota.enter(1, 0.0) is None
    quota.change(KeyLimits(requests_per_minute=4, tokens_per_minute=7), 0.0)
    assert quota.requests(0.0) == Standing(limit=4, remaining=3, full_in_s=15.0)
    assert quota.tokens(0.0) == Standing(limit=7, remaining=7, full_in_s=0.0)
    assert quota.enter(1, 0.0) is None  # the bound on concurrency is gone
    assert quota.inflight == 2
    quota.leave(1, 1, 0.0)
    quota.leave(1, 1, 0.0)
    assert quota.inflight == 0


@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 2), st.integers(1, 50), st.integers(0, 200)), max_size=80
    )
)
def test_all_that_is_let_in_fits_the_limits(arrivals: list[tuple[float, int, int]]) -> None:
    """Over any time t no more than a burst and t's share is let in, debts included."""
    limits = KeyLimits(requests_per_minute=30, tokens_per_minute=300, concurrency_max=3)
    quota, now_s, entered, tokens = Quota(limits), 0.0, 0, 0
    inside: list[tuple[int, int]] = []
    for pause_s, reserved, used in arrivals:
        now_s += pause_s
        if len(inside) == 3 or (inside and used % 2):
            was, came = inside.pop(0)
            quota.leave(was, came, now_s)
            tokens += came - was
        if quota.enter(reserved, now_s) is None:
            inside.append((reserved, used))
            entered += 1
            tokens += reserved
            assert entered <= 30 + now_s * 0.5 + 1e-3
            assert tokens <= 300 + now_s * 5 + 1e-3
        assert quota.inflight == len(inside) <= 3
