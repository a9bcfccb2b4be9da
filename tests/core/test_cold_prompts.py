"""Prompts that nobody has cached go where the least work is, not where the least is cached."""

from collections import Counter

import pytest

from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Placed
from tests.support.driver import Driver, teach

COST_POLICIES = ("marginal_cost", "lmetric", "equal_cost", "cache_aware_equal_cost")


def cold_prompt(number: int) -> str:
    return f"prompt number {number} shares nothing. ".rjust(64, "#") * 400


def place(driver: Driver, request_id: str, text: str) -> str:
    (effect,) = driver.arrive(request_id, text, max_output_tokens=64)
    assert isinstance(effect, Placed), effect
    return effect.node


@pytest.mark.parametrize("policy", COST_POLICIES)
@pytest.mark.parametrize("calibrated", [False, True])
def test_cold_prompts_at_once_are_shared_out_whatever_the_caches_hold(
    policy: str, calibrated: bool
) -> None:
    """sglang#14532: a miss went to the worker with the smallest tree, however busy it was. Here
    "a" has the empty cache."""
    driver = Driver(SchedulerOptions(policy=policy))
    driver.ready("b", "c", "d", kv_blocks=100_000)
    for number in range(30):
        driver.serve(f"warm-{number}", cold_prompt(1_000 + number))
    driver.ready("a", kv_blocks=100_000)
    if calibrated:
        for node in driver.nodes:
            teach(node.calibration)
    counts = Counter(place(driver, f"r-{n}", cold_prompt(n)) for n in range(64))
    assert all(12 <= counts[name] <= 20 for name in "abcd"), counts
