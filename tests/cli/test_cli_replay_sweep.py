"""The search for the highest speed, against attainments that are known."""

import pytest

from pointsman.cli.replay_sweep import DOUBLINGS_MAX, RESOLUTION, search
from pointsman.report.replay.study import SweepPoint


def until(limit: float) -> tuple[SweepPoint | None, tuple[SweepPoint, ...]]:
    def evaluate(factor: float) -> SweepPoint:
        met = 1.0 if factor <= limit else 0.5
        return SweepPoint(speed=factor, rate_rps=factor, slo_attainment=met, goodput_rps=0.0)

    return search(evaluate, target=0.9)


@pytest.mark.parametrize("limit", [0.011, 0.5, 0.999, 1.0, 1.7, 100.0])
def test_it_ends_just_below_the_limit(limit: float) -> None:
    best, tried = until(limit)
    assert best is not None
    assert limit / RESOLUTION <= best.speed <= limit
    assert [point.speed for point in tried] == sorted({point.speed for point in tried})


def test_it_gives_up_at_either_end() -> None:
    best, tried = until(1e9)
    assert best is not None
    assert best.speed == tried[-1].speed == 2**DOUBLINGS_MAX
    assert until(1e-9)[0] is None
