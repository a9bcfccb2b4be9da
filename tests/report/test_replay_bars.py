"""Bars on runs: whom they are about, what is measured there, and when a bar is kept."""

import json
from io import StringIO
from typing import Any

import msgspec
import pytest
from rich.console import Console

from pointsman.report.replay.bars import KEPT, MISSED, class_rows, verdict_row
from pointsman.report.replay.classes import classes
from pointsman.report.replay.document import encode_study
from pointsman.report.replay.expectation import Expectation, judge, measures_of
from pointsman.report.replay.measure import METRICS, Measure, measured
from pointsman.report.replay.numbers import numbers
from pointsman.report.replay.page import render_study
from pointsman.report.replay.study import ScenarioReport, Study
from pointsman.report.replay.subset import Subset
from pointsman.report.replay.table import print_study
from pointsman.report.replay.timeline import timeline
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.slo import Slo
from tests.report import replay_studies

WINDOWS = {"early": (0.0, 5.0), "late": (5.0, float("inf"))}


def good(index: int, ttft_s: float = 0.5, **fields: Any) -> RequestRecord:
    return msgspec.structs.replace(replay_studies.record(index, ttft_s), **fields)


def bad(index: int, **fields: Any) -> RequestRecord:
    refused = RequestRecord(
        index=index, due_s=float(index), sent_s=float(index), outcome=Outcome.HTTP_ERROR,
        e2e_s=0.1, http_status=429, cause="queue_full", input_tokens=1_000,
    )  # fmt: skip
    return msgspec.structs.replace(refused, **fields)


RECORDS = (
    good(0, 0.2, priority=10, placements=1),
    good(1, 0.4, placements=2, node="node-1"),
    good(6, 9.0, priority=10, placements=1, input_tokens=40_000, part="flood"),
    bad(2, priority=-10),
    bad(3, priority=-10, cause="no reason of ours"),
    bad(7, outcome=Outcome.TRUNCATED, http_status=200, cause="node_closed", ttft_s=0.1),
    bad(8, http_status=502, cause="node_unreachable"),
    bad(9, outcome=Outcome.TIMEOUT, http_status=None, cause="client_gone", tries=3),
)
RUN = ReplayedRun(
    scenario="s", policy="ours", seed=0, duration_s=10.0, records=RECORDS,
    series=replay_studies.SERIES,
)  # fmt: skip


def value(metric: str, **of: object) -> float | None:
    measure = Measure(metric=metric, of=msgspec.convert(of, Subset))
    return measured(measure, RUN, slo=Slo(), windows=WINDOWS, ideal_hit_ratio=0.5)


@pytest.mark.parametrize(
    ("metric", "of", "expected"),
    [
        ("requests", {}, 8),
        ("requests", {"priority": "high"}, 2),
        ("requests", {"priority": -10}, 2),
        ("requests", {"part": "flood"}, 1),
        ("requests", {"length": "long"}, 1),
        ("requests", {"nodes": ["node-1"]}, 1),
        ("requests", {"window": "early"}, 4),
        ("requests", {"window": "early", "from_s": 2}, 2),
        ("requests", {"from_s": 6, "until_s": 8}, 2),
        ("ok", {}, 3),
        ("errors", {}, 5),
        ("refused", {}, 2),
        ("lost", {}, 3),
        ("lost_unbegun", {}, 2),  # what broke mid-stream had begun
        ("unexplained", {}, 1),
        ("refused_share", {"priority": "low"}, 1.0),
        ("ok_share", {"window": "early"}, 0.5),
        ("ttft_s.max", {}, 9.0),
        ("ttft_s.p50", {"priority": "high"}, 9.0),
        ("ttft_s.p50", {"tenant": "nobody"}, None),
        ("goodput", {"window": "early"}, 2 / 5),
        ("goodput", {"window": "late"}, 1 / 5),  # to the end of the run
        ("amplification", {}, 4 / 3),
        ("amplification", {"priority": "low"}, None),
        ("hit_of_ideal", {}, 0.5),
        ("waiting_max", {}, 1),
        ("waiting_max", {"until_s": 0.5}, 0),
        ("held_max", {}, 0),
        ("load_deviation", {"from_s": 2}, 0.0),
    ],
)
def test_measures(metric: str, of: dict[str, object], expected: float | None) -> None:
    assert value(metric, **of) == (None if expected is None else pytest.approx(expected))


def test_every_metric_stands_an_empty_run() -> None:
    nothing = ReplayedRun(scenario="s", policy="p", seed=0, duration_s=0.0, records=())
    for metric in METRICS:
        found = measured(
            Measure(metric=metric), nothing, slo=Slo(), windows={}, ideal_hit_ratio=None
        )
        assert found in (None, 0.0), metric


def report(name: str, **values: float) -> ScenarioReport:
    """One policy, `ours`, for which `values` were measured."""
    base = replay_studies.scenario(name)
    [first, *_] = base.seeds
    run = msgspec.structs.replace(first.runs[0], measured=values)
    return msgspec.structs.replace(base, seeds=(msgspec.structs.replace(first, runs=(run,)),))


def kept(expectation: object, **others: ScenarioReport) -> list[bool]:
    bar = msgspec.convert(expectation, Expectation)
    reports = [report("s", refused=3.0, goodput=8.0), *others.values()]
    return [verdict.kept for verdict in judge([("s", bar)], reports)]


def test_absolute_bars() -> None:
    assert kept({"metric": "refused", "at_most": 3}) == [True]
    assert kept({"metric": "refused", "at_most": 2}) == [False]
    assert kept({"metric": "refused", "at_least": 2, "at_most": 4}) == [True]
    assert kept({"metric": "ttft_s.p99", "at_most": 9}) == [False]  # nobody knows it


def test_bars_against_another_scenario() -> None:
    calm = report("calm", goodput=10.0)
    bar = {"metric": "goodput", "at_least": 0.8, "times": {"scenario": "calm"}}
    assert kept(bar, calm=calm) == [True]
    assert kept(bar | {"at_least": 0.81}, calm=calm) == [False]
    assert kept(bar, calm=report("calm")) == [False]


def test_a_bar_against_another_measure() -> None:
    bar = {"metric": "refused", "at_most": 0.5, "times": {"metric": "goodput"}}
    assert kept(bar) == [True]


def test_no_verdict_on_a_policy_that_was_not_run() -> None:
    assert kept({"metric": "refused", "at_most": 3, "policy": "theirs"}) == []
    bar = {"metric": "refused", "at_most": 1, "times": {"policy": "theirs"}}
    assert kept(bar) == []


def test_what_is_measured_is_what_bars_need_here_and_elsewhere() -> None:
    bar = msgspec.convert(
        {
            "metric": "ttft_s.p99",
            "of": {"priority": "high"},
            "at_most": 1.2,
            "times": {"scenario": "calm", "of": {}},
        },
        Expectation,
    )
    assert [m.key for m in measures_of([("s", bar)], "s")] == ["ttft_s.p99 (priority high)"]
    assert [m.key for m in measures_of([("s", bar)], "calm")] == ["ttft_s.p99"]
    assert measures_of([("s", bar)], "other") == ()


def test_classes_by_priority_and_window() -> None:
    found = {(c.window, c.name): c for c in classes(RECORDS, Slo(), WINDOWS)}
    low = found["", "low"]
    assert (low.requests, low.ok, low.refused, low.lost) == (2, 0, 2, 0)
    assert found["late", "normal"].lost == 3
    assert found["early", ""].requests == 4
    assert [name for window, name in found if not window][:3] == ["high", "normal", "low"]


def test_classes_by_length_say_which_lengths() -> None:
    rows = class_rows(judged().scenarios[0].seeds[0].runs)
    shown = [cell for row in rows for cell in row if "tokens" in cell]
    assert shown == ["short, < 4,096 tokens", "long, ≥ 32,768 tokens"]


def test_traffic_of_one_kind_has_no_classes() -> None:
    assert classes([good(0), good(1)], Slo(), {}) == ()


def test_a_timeline_has_every_failure_once() -> None:
    drawn = timeline(RECORDS, bins=3)
    assert drawn.kind == "priority"
    assert [line.name for line in drawn.waits] == ["high", "normal", "low"]
    width_s = drawn.edges_s[1]
    failures = sum(rate for line in drawn.errors for rate in line.rate_rps) * width_s
    assert failures == pytest.approx(5)


def judged() -> Study:
    bars = [
        ("s", msgspec.convert({"metric": "refused", "at_most": most}, Expectation))
        for most in (9, 1)
    ]
    run = numbers(
        RUN, Slo(), windows=WINDOWS, measures=measures_of(bars, "s"), ideal_hit_ratio=None
    )
    base = replay_studies.scenario("s")
    seed = msgspec.structs.replace(base.seeds[0], runs=(run,))
    whole = msgspec.structs.replace(base, seeds=(seed,), windows=WINDOWS, troubled_s=(4.0, 6.0))
    return Study(scenarios=(whole,), verdicts=judge(bars, [whole]))


def test_verdicts_are_shown_everywhere() -> None:
    study = judged()
    assert [verdict_row(verdict)[0] for verdict in study.verdicts] == [KEPT, MISSED]
    assert any("low" in row for row in class_rows(study.scenarios[0].seeds[0].runs))
    target = StringIO()
    print_study(Console(file=target, width=200), study)
    assert "1 of 2 bars are kept" in target.getvalue()
    assert "1 of 2 bars are kept" in render_study(study)
    document = json.loads(encode_study(study))
    assert [each["kept"] for each in document["expectations"]] == [True, False]
    [scenario] = document["scenarios"]
    assert scenario["windows"]["late"] == [5.0, None]
    assert scenario["policies"]["ours"]["measured"] == {"refused": 2.0}


def test_a_page_shows_the_course_with_the_trouble_shaded() -> None:
    page = render_study(judged())
    assert "Waits · refusals and errors" in page
    assert "shaded from 4 s to 6 s" in page
    assert "queue_full" in page


@pytest.mark.parametrize(
    ("subset", "words"),
    [
        (Subset(), ""),
        (Subset(priority="high", until_s=9.0), "priority high, until 9 s"),
        (Subset(part="chat", tenant="a", length="long", window="busy"), "chat, a, long, busy"),
        (Subset(nodes=("node-1",), from_s=0.0), "node-1, from 0 s"),
        (Subset(nodes=("node-1", "node-2", "node-4"), from_s=2.5), "node-1 to node-4, from 2.5 s"),
    ],
)
def test_a_subset_is_told_in_words(subset: Subset, words: str) -> None:
    assert str(subset) == words
