"""Virtual time: calls come when they are due, in the order in which they were made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.sim.clock import Clock


@given(st.lists(st.integers(min_value=0, max_value=5), max_size=30))
def test_calls_come_by_time_and_then_by_order(delays: list[int]) -> None:
    clock = Clock()
    seen: list[tuple[tuple[int, int], float]] = []
    for number, delay in enumerate(delays):
        clock.at(float(delay), lambda due=(delay, number): seen.append((due, clock.now_s)))
    clock.run()
    assert [due for due, _ in seen] == sorted((delay, n) for n, delay in enumerate(delays))
    assert all(now_s == due[0] for due, now_s in seen)


def test_what_is_due_in_the_past_comes_at_once_but_after_what_is_due() -> None:
    clock = Clock()
    seen: list[str] = []

    def first() -> None:
        clock.at(0.0, seen.append, "late")
        clock.after(0.0, seen.append, "later")

    clock.at(2.0, first)
    clock.at(2.0, seen.append, "second")
    clock.run()
    assert seen == ["second", "late", "later"]
    assert clock.now_s == 2.0


def test_cancelled_calls_do_not_come_and_may_be_cancelled_again() -> None:
    clock = Clock()
    seen: list[str] = []
    timer = clock.after(1.0, seen.append, "no")
    clock.after(1.0, seen.append, "yes")
    timer.cancel()
    clock.run()
    timer.cancel()
    assert seen == ["yes"]


def test_a_call_can_be_put_off() -> None:
    clock = Clock()
    seen: list[str] = []
    timer = clock.at(1.0, seen.append, "moved").later(2.0)
    clock.at(2.0, seen.append, "between")
    assert timer.due_s == 3.0
    clock.run()
    assert (seen, clock.now_s) == (["between", "moved"], 3.0)
    timer.cancel()
    with pytest.raises(AssertionError, match="cancelled"):
        timer.later(1.0)


def test_time_stops_where_it_is_told() -> None:
    clock = Clock()
    seen: list[str] = []
    clock.at(1.0, clock.stop)
    clock.at(1.0, seen.append, "after")
    clock.run()
    assert (seen, clock.now_s) == ([], 1.0)
    clock.run()
    assert seen == ["after"]
