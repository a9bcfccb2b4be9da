"""What fades: against the sum of all that came, each by its own age."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.faded import Faded, left, memory_s

amounts = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e3)), max_size=30)


@given(amounts, st.floats(0, 100), st.floats(0.1, 100))
def test_what_is_left_is_of_each_by_its_age(
    came: list[tuple[float, float]], after_s: float, memory: float
) -> None:
    faded, now_s = Faded(), 0.0
    times: list[tuple[float, float]] = []
    for pause_s, amount in came:
        now_s += pause_s
        faded.add(amount, now_s, memory)
        times.append((now_s, amount))
    then_s = now_s + after_s
    expected = sum(amount * exp((at_s - then_s) / memory) for at_s, amount in times)
    assert faded.at(then_s, memory) == pytest.approx(expected, abs=1e-9)


def test_asking_changes_nothing() -> None:
    faded = Faded()
    faded.add(3.0, 10.0, 5.0)
    assert faded.at(1e6, 5.0) == 0.0
    assert faded.at(10.0, 5.0) == 3.0


def test_a_steady_stream_settles_at_its_rate_times_the_memory() -> None:
    faded = Faded()
    for n in range(10_000):
        faded.add(1.0, n / 20, 10.0)
    assert faded.at(500.0, 10.0) / 10.0 == pytest.approx(20.0, rel=0.01)


def test_of_a_half_life_half_is_left() -> None:
    assert left(30.0, memory_s(30.0)) == pytest.approx(0.5)
    assert left(90.0, memory_s(30.0)) == pytest.approx(0.125)
    assert left(0.0, memory_s(30.0)) == 1.0
