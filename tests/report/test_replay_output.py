"""What a study looks like: JSON of a stable shape, a table, a page that needs nothing outside."""

import json
import re
from importlib.util import find_spec
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from pointsman.report.drawing import SERIES_MAX
from pointsman.report.replay.document import SCHEMA, encode_study
from pointsman.report.replay.page import render_study
from pointsman.report.replay.plots import over_time
from pointsman.report.replay.study import ScenarioReport, Study, Sweep, SweepPoint
from pointsman.report.replay.table import columns, print_study
from pointsman.report.rows import TIMES
from tests.report.replay_studies import scenario, study

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="no matplotlib")
POINT = SweepPoint(speed=2.0, rate_rps=0.8, slo_attainment=0.95, goodput_rps=0.7)
SWEEPS = (
    Sweep(policy="ours", target=0.9, best=POINT, tried=(POINT,)),
    Sweep(policy="theirs", target=0.9, best=None, tried=(POINT,)),
)


def printed(found: Study, width: int = 200) -> str:
    out = StringIO()
    print_study(Console(file=out, width=width), found)
    return out.getvalue()


def many() -> ScenarioReport:
    """Twelve policies, the baseline last."""
    base = scenario()
    seed = base.seeds[0]
    runs = tuple(msgspec.structs.replace(seed.runs[0], policy=f"p{n}") for n in range(12))
    seeds = (msgspec.structs.replace(seed, runs=runs, oracle=None),)
    return msgspec.structs.replace(base, baseline="p11", seeds=seeds)


def test_the_contract_of_the_json() -> None:
    found = json.loads(encode_study(study()))
    assert found["schema"] == SCHEMA
    assert [each["seed"] for each in found["scenarios"]] == [0, 1]
    first = found["scenarios"][0]
    assert (first["trace"], first["nodes"], first["speed"]) == ("t.jsonl", 2, 1.5)
    assert list(first["policies"]) == ["ours", "theirs"]
    theirs = first["policies"]["theirs"]
    for key in ("ttft_s", "tpot_s", "e2e_s"):
        assert set(theirs[key]) == {"mean", "p50", "p95", "p99"}
    assert theirs["ttft_s"]["mean"] == pytest.approx(0.4)
    assert (theirs["hit_ratio"], theirs["requests"], theirs["errors"]) == (0.25, 3, 1)
    assert theirs["goodput"] == pytest.approx(0.2)
    assert theirs["ratio_to_oracle"]["ttft_s.mean"] == pytest.approx(4.0)
    assert first["oracle"]["ttft_s"]["mean"] == pytest.approx(0.1)
    across = found["across_seeds"][0]["policies"]["theirs"]["ttft_s.mean"]
    assert across["to_baseline"] == {"mean": pytest.approx(2.0), "ci95": pytest.approx(0.0)}
    assert across["to_best_peer"]["mean"] == pytest.approx(2.0)


def test_real_times_are_told_only_if_asked() -> None:
    assert b"wall_s" not in encode_study(study())
    timed = json.loads(encode_study(study(), timing=True))
    ours = timed["scenarios"][0]["policies"]["ours"]
    assert (ours["wall_s"], ours["realtime_factor"]) == (0.5, 20.0)
    assert ours["decision_s"]["mean"] == pytest.approx(2e-5)


def test_sweeps_in_the_json() -> None:
    found = Study(scenarios=(scenario(sweeps=SWEEPS),))
    [sweeps] = json.loads(encode_study(found))["sweeps"]
    assert sweeps["policies"]["ours"]["best"]["speed"] == 2.0
    assert sweeps["policies"]["theirs"]["best"] is None


def test_the_table_marks_the_best_and_shows_the_oracle() -> None:
    text = printed(study())
    assert "a <note>" in text
    assert re.search(r"ours .* 300 ms ±\d+%\* ", text)
    assert re.search(r"oracle .* 150 ms ±\d+%", text)
    assert "queue <full>" in text
    assert "against the best" not in text


def test_several_scenarios_end_in_a_matrix() -> None:
    text = printed(study("first", "second"))
    assert "TTFT mean against the best peer" in text
    assert re.search(rf"second .* 0\.50{TIMES} ±0%\* .* 2\.00{TIMES} ±0%", text)


def test_sweeps_in_the_table() -> None:
    text = printed(Study(scenarios=(scenario(sweeps=SWEEPS),)))
    assert "highest speed with 90.0 %" in text
    assert f"≥ 2{TIMES}" in text


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    names = [
        [metric.key for metric in columns(scenario(), width=width)] for width in (80, 160, 999)
    ]
    assert "ttft_s.mean" in names[0]
    assert "ttft_s.p50" not in names[0]
    assert len(names[0]) <= len(names[1]) < len(names[2])
    assert "errors" in names[0]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_numbers_are_whole_in_every_terminal(width: int) -> None:
    table = printed(study(), width=width).split("by class")[0].split("first message")[0]
    lines = [line for line in table.splitlines() if line.startswith(("│", "┃"))]
    rows = [line for line in lines if line.strip("│┃ ").startswith(("ours", "theirs", "oracle"))]
    assert len(rows) >= 3
    assert "…" not in table
    for row in rows:
        cells = [cell.strip() for cell in row.strip("│┃").split("│")]
        assert all(cells), row


def test_the_deviations_are_explained_where_they_are_shown() -> None:
    assert "rem. dev.: of the time" in re.sub(r"\s+", " ", printed(study(), width=400))
    assert "rem. dev." not in printed(study(), width=80)


@needs_matplotlib
def test_the_page_needs_nothing_from_outside() -> None:
    found = Study(scenarios=(scenario("first <one>", sweeps=SWEEPS), scenario("second")))
    page = render_study(found)
    assert page.startswith("<!doctype html>")
    assert "first &lt;one&gt;" in page
    assert "<note>" not in page
    assert "<full>" not in page
    assert not re.search(r"<script|<link|@import|src=|https?://(?!www\.w3\.org)", page)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "Node by node over time" in page
    assert "#0300" not in page  # every placeholder colour is the page's


@needs_matplotlib
def test_equal_studies_give_equal_pages() -> None:
    assert render_study(study("a", "b")) == render_study(study("a", "b"))


@needs_matplotlib
def test_a_page_of_many_policies_and_of_one_without_oracle() -> None:
    base = scenario()
    seed = base.seeds[0]
    alone = msgspec.structs.replace(
        base, seeds=(msgspec.structs.replace(seed, runs=seed.runs[:1], oracle=None),)
    )
    for each in (many(), alone):
        found = Study(scenarios=(each,))
        assert "oracle" not in render_study(found).split("<footer>")[0]
        assert "ours" in printed(found) or "p11" in printed(found)


@needs_matplotlib
def test_of_many_policies_those_drawn_as_lines_have_colours_of_their_own() -> None:
    page = render_study(Study(scenarios=(many(),)))
    legend = page.split("<h3>Time to first token</h3>")[1].split("</figure>")[0]
    drawn = re.findall(r"var\(--series-(\d)\)\"></i>(p\d+)", legend)
    assert drawn[0] == ("0", "p11")  # the baseline
    assert [colour for colour, _ in drawn] == [str(place) for place in range(SERIES_MAX)]


@needs_matplotlib
def test_no_node_is_cut_off_over_time() -> None:
    """Rows share their axis: it has room for the most of all of them, not of the first."""
    base = scenario()
    calm, busy = base.seeds[0].runs
    node = msgspec.structs.replace(busy.series.nodes[0], remaining_s=(0.0, 61.0, 2.0))
    busy = msgspec.structs.replace(busy, series=msgspec.structs.replace(busy.series, nodes=(node,)))
    seed = msgspec.structs.replace(base.seeds[0], runs=(calm, busy))
    found = msgspec.structs.replace(base, seeds=(seed,))
    assert ">60 s<" in over_time(found, found.policies, name="x")
