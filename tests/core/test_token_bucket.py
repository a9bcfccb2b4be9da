"""The bucket against a slow twin in exact fractions, and its edges."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.admission.token_bucket import TokenBucket

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "give_back", "resize"]),
        st.integers(1, 500),
        st.fractions(0, 90, max_denominator=1_000),
    ),
    max_size=40,
)


class SlowBucket:
    """The level as a fraction, minute by minute."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.level = Fraction(per_minute)

    def wait(self, seconds: Fraction) -> None:
        self.level = min(Fraction(self.per_minute), self.level + seconds * self.per_minute / 60)

    def do(self, step: str, amount: int) -> None:
        match step:
            case "take":
                self.level -= amount
            case "give_back":
                self.level = min(Fraction(self.per_minute), self.level + amount)
            case _:
                self.level += amount - self.per_minute
                self.per_minute = amount


@given(per_minute=st.integers(1, 1_000), steps=STEPS, start_s=st.floats(0, 1e6))
def test_it_is_its_slow_twin(
    per_minute: int, steps: list[tuple[str, int, Fraction]], start_s: float
) -> None:
    fast, slow, now = TokenBucket(per_minute), SlowBucket(per_minute), Fraction(start_s)
    fast.level(float(now))
    for step, amount, pause in steps:
        now += pause
        slow.wait(pause)
        slow.do(step, amount)
        getattr(fast, step)(amount, float(now))
        assert abs(fast.level(float(now)) - slow.level) < 1e-4
        assert fast.level(float(now)) <= fast.per_minute


@given(
    per_minute=st.integers(1, 10_000),
    taken=st.integers(0, 30_000),
    amount=st.integers(1, 10_000),
    start_s=st.floats(0, 1e6),
)
def test_who_waits_as_long_as_told_is_let_in_and_not_before(
    per_minute: int, taken: int, amount: int, start_s: float
) -> None:
    bucket = TokenBucket(per_minute)
    bucket.take(taken, start_s)
    wait_s = bucket.wait_s(amount, start_s)
    if amount > per_minute:
        assert wait_s == float("inf")
        return
    assert bucket.holds(amount, start_s) is (wait_s < 1e-6 * 60 / per_minute)
    assert wait_s < 0.01 or not bucket.holds(amount, start_s + 0.9 * wait_s)
    assert bucket.holds(amount, start_s + wait_s + 1e-6)


def test_a_burst_takes_exactly_a_minutes_worth_whatever_the_rate() -> None:
    for per_minute in (1, 7, 59, 60, 61, 1_000):
        bucket = TokenBucket(per_minute)
        let_in = 0
        for _ in range(2 * per_minute):
            if bucket.holds(1, 12_345.678):
                bucket.take(1, 12_345.678)
                let_in += 1
        assert let_in == per_minute


def test_over_an_hour_no_more_than_the_rate_and_one_burst() -> None:
    bucket = TokenBucket(7)
    let_in = 0
    for tick in range(36_000):
        if bucket.holds(1, tick / 10):
            bucket.take(1, tick / 10)
            let_in += 1
    assert let_in == 7 + 7 * 60 - 1  # the last one is there at the hour's end
