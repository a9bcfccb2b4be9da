"""A run's numbers by hand, confidence intervals by published values, comparisons of policies."""

from math import inf, sqrt

import pytest

from pointsman.report.replay.metrics import E2E_MEAN, ERRORS, HITS, TTFT_MEAN, shown
from pointsman.report.replay.numbers import CURVE_POINTS_MAX, SERIES_POINTS_MAX, numbers
from pointsman.report.replay.spread import Estimate, estimate, student_t
from pointsman.report.replay.study import ORACLE
from pointsman.report.rows import seconds
from pointsman.traffic.replayed import NodeSeries, ReplayedRun, Series
from pointsman.traffic.slo import Slo
from tests.report.replay_studies import record, replayed, run_numbers, scenario


def test_numbers_of_a_run() -> None:
    found = run_numbers("p", 3, [0.1, 2.4, 2.6], failures=1)
    assert (found.requests, found.ok, found.errors) == (4, 3, 1)
    assert found.goodput_rps == pytest.approx(0.2)  # 2.6 s is beyond 2 s + 0.5 ms x 1000
    assert found.slo_attainment == 0.5
    assert found.hit_ratio == 0.25
    assert found.ttft_s is not None
    assert found.ttft_s.mean == pytest.approx(1.7)
    assert found.ttft_s.p50 == 2.4
    assert found.realtime_factor == 20.0
    assert found.error_groups[0].cause == "queue <full>"


def test_a_slow_stream_is_not_good() -> None:
    slow = record(0, 0.1, tpot_s=0.11)
    run = ReplayedRun(scenario="s", policy="p", seed=0, duration_s=1.0, records=(slow,))
    assert numbers(run, Slo()).goodput_rps == 0.0


def test_deviations_leave_out_idle_samples() -> None:
    found = run_numbers("p", 0, [0.1])
    assert found.load_deviation == pytest.approx((1 / 2 + 0) / 2)  # 3 and 1: mu 2, sigma 1
    assert found.remaining_deviation == pytest.approx((2 / 4 + 0) / 2)  # 6 and 2
    assert found.remaining_deviation_s == pytest.approx((2 + 0) / 2)


def test_one_busy_node_of_n_deviates_by_the_root_of_n_minus_1() -> None:
    nodes = tuple(
        NodeSeries(
            node=str(n), running=(5 * (n == 0),), waiting=(0,), kv_usage=(0.0,), remaining_s=(0.0,)
        )
        for n in range(5)
    )
    run = ReplayedRun(
        scenario="s", policy="p", seed=0, duration_s=1.0, records=(),
        series=Series(times_s=(0.0,), held=(0,), nodes=nodes),
    )  # fmt: skip
    assert numbers(run, Slo()).load_deviation == pytest.approx(sqrt(4))
    assert numbers(run, Slo()).remaining_deviation is None


def test_an_empty_run_has_no_numbers_and_no_faults() -> None:
    run = ReplayedRun(scenario="s", policy="p", seed=0, duration_s=0.0, records=())
    found = numbers(run, Slo())
    assert (found.ttft_s, found.hit_ratio, found.load_deviation, found.realtime_factor) == (
        None,
    ) * 4
    assert (found.goodput_rps, found.slo_attainment, found.ttft_curve_s) == (0.0, 0.0, ())


def test_curves_and_series_are_thinned_and_keep_their_ends() -> None:
    run = replayed("p", 0, [0.001 * n for n in range(1, 5001)])
    found = numbers(run, Slo())
    assert len(found.ttft_curve_s) == CURVE_POINTS_MAX
    assert (found.ttft_curve_s[0], found.ttft_curve_s[-1]) == (0.001, 5.0)
    many = tuple(float(n) for n in range(1000))
    node = NodeSeries(
        node="n", running=(2,) * 1000, waiting=(0,) * 1000, kv_usage=many, remaining_s=many
    )
    long = ReplayedRun(
        scenario="s", policy="p", seed=0, duration_s=1.0, records=(),
        series=Series(times_s=many, held=(0,) * 1000, nodes=(node,)),
    )  # fmt: skip
    thinned = numbers(long, Slo()).series
    assert len(thinned.times_s) == len(thinned.nodes[0].remaining_s) <= SERIES_POINTS_MAX
    assert thinned.times_s[0] == pytest.approx(3.0)  # the mean of 0 to 6
    assert thinned.nodes[0].running[0] == 2
    assert numbers(long, Slo(), keep_series=False).series == Series()


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (4, 2.776), (9, 2.262), (30, 2.042), (35, 2.042), (40, 2.021), (5000, 1.962)],
)
def test_students_t_is_the_published_table(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == quantile


def test_students_t_never_rises() -> None:
    quantiles = [inf, *(student_t(degrees) for degrees in range(1, 1200))]
    assert quantiles == sorted(quantiles, reverse=True)


def test_the_interval_of_five_values() -> None:
    """Values 1 … 5: s = sqrt(2.5), half width 2.776 * sqrt(2.5 / 5) = 1.963."""
    found = estimate([1, 2, 3, 4, 5])
    assert found is not None
    assert (found.mean, round(found.half_width or 0, 3)) == (3.0, 1.963)
    assert estimate([7.0, 7.0]) == Estimate(7.0, 0.0)
    assert estimate([7.0]) == Estimate(7.0)
    assert estimate([None, 7.0]) == Estimate(7.0)
    assert estimate([None]) is None


def test_shown_with_its_interval() -> None:
    assert shown(Estimate(2.0, 0.1), seconds) == "2.00 s ±5%"
    assert shown(Estimate(2.0), seconds) == "2.00 s"
    assert shown(Estimate(0.0, 0.0), seconds) == "0.00 µs"


def test_ratios_pair_the_seeds() -> None:
    """Absolute values double from seed to seed; the ratio does not move at all."""
    found = scenario()
    over = found.over_seeds("ours", TTFT_MEAN.value)
    assert over is not None
    assert over.mean == pytest.approx(0.3)
    assert (over.half_width or 0) > 1
    for policy, other in (("theirs", "ours"), ("ours", ORACLE)):
        ratio = found.ratio(policy, other, TTFT_MEAN.value)
        assert ratio is not None
        assert ratio.mean == pytest.approx(2.0)
        assert ratio.half_width == pytest.approx(0.0)


def test_best_peers_and_leaders() -> None:
    found = scenario()
    assert found.policies == ("ours", "theirs")
    ours = found.against_best_peer("ours", TTFT_MEAN.value, -1)
    assert ours is not None
    assert ours.mean == pytest.approx(0.5)
    assert found.leaders(TTFT_MEAN.value, -1) == ("ours",)
    assert found.leaders(E2E_MEAN.value, -1) == ()  # all are equal: nobody leads
    assert found.leaders(HITS.value, 1) == ()
    assert found.leaders(ERRORS.value, -1) == ("ours",)
    assert found.ratio("theirs", "ours", ERRORS.value) is None  # nothing to divide by
