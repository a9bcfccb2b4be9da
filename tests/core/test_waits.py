"""How long a request waits is foretold from mean times and from the rates of those before it."""

from math import inf

import pytest

from pointsman.core.admission.waits import MeanTimes, Rate, urgency
from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.ids import ModelName
from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_NORMAL
from pointsman.core.request_events import Held, Placed, Refused
from tests.support.driver import Driver

M = ModelName("m")


def test_a_rate_is_of_the_present_window_and_the_one_before_it() -> None:
    rate = Rate()
    for tenths in range(100):  # two a second, for ten seconds
        if tenths % 5 == 0:
            rate.add(tenths / 10)
    assert rate.per_s(9.5) == pytest.approx(20 / 9.5)
    assert rate.per_s(10.0) == pytest.approx(10 / 5)
    assert rate.per_s(12.5) == pytest.approx(10 / 7.5)
    assert rate.per_s(14.9) == pytest.approx(10 / 9.9)


def test_what_came_long_ago_is_no_rate() -> None:
    rate = Rate()
    assert rate.per_s(7.0) == 0.0
    rate.add(7.0)
    assert rate.per_s(7.0) == pytest.approx(1 / 5)
    assert rate.per_s(17.0) == 0.0


@pytest.mark.parametrize(
    ("priority", "expected"),
    [(100, 0), (PRIORITY_HIGH, 0), (9, 1), (PRIORITY_NORMAL, 1), (-9, 1), (PRIORITY_LOW, 2)],
)
def test_priorities_have_three_classes(priority: int, expected: int) -> None:
    assert urgency(priority) == expected


def test_a_mean_needs_a_few_samples_and_is_never_nothing() -> None:
    times = MeanTimes()
    for _ in range(7):
        times.took(M, 0.0)
    assert times.mean_s(M) is None
    times.took(M, 0.0)
    assert times.mean_s(M) == 1e-6
    assert times.mean_s(ModelName("n")) is None


def test_who_is_more_urgent_takes_the_room_that_becomes_free() -> None:
    driver = Driver(None, AdmissionRules(yellow_share=9.0, red_share=9.0, wait_factor=100.0))
    driver.join("a", concurrency_max=4)
    driver.describe("a")
    for i in range(8):
        (placed,) = driver.arrive(f"ran{i}", priority=PRIORITY_LOW)
        assert isinstance(placed, Placed)
        driver.start(f"ran{i}")
        driver.now_s += 4.0
        driver.settle(f"ran{i}", streamed=True)
    driver.now_s += 20.0
    for i in range(4):  # of 4 s each: one a second
        driver.arrive(f"runs{i}", priority=PRIORITY_LOW)
        driver.start(f"runs{i}")
    for i in range(2):  # 0.4 a second
        driver.arrive(f"normal{i}")
    assert wait_s(driver, "normal", PRIORITY_NORMAL) == pytest.approx(3 / 1.0)
    assert wait_s(driver, "low", PRIORITY_LOW) == pytest.approx(4 / (1.0 - 0.6))
    for i in range(3):
        driver.arrive(f"urgent{i}", priority=PRIORITY_HIGH)
    assert wait_s(driver, "lower", PRIORITY_LOW) == inf


def wait_s(driver: Driver, name: str, priority: int) -> float | None:
    effect = driver.arrive(name, priority=priority, hold_s=1e6)[0]
    assert isinstance(effect, Held | Refused)
    assert effect.decision.prospect is not None
    return effect.decision.prospect.wait_s
