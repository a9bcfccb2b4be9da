"""Summaries by hand, the file's schema, and a page that needs nothing from outside."""

import re
from importlib.util import find_spec
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from pointsman.report import plots
from pointsman.report.page import render_page
from pointsman.report.rows import count, metrics, percent, rate, ratio, seconds
from pointsman.report.run import (
    SCHEMA,
    Load,
    LoadMode,
    Run,
    RunFileError,
    Workload,
    decode_runs,
    differences,
    encode_runs,
)
from pointsman.report.summary import CAUSES_MAX, Quantiles, summarize_records
from pointsman.report.table import print_comparison, print_run
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.request import summarize
from pointsman.traffic.slo import Slo

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="no matplotlib")


def ok(index: int, *, ttft_s: float, node: str = "a", cached: int | None = 50) -> RequestRecord:
    return RequestRecord(
        index=index,
        due_s=float(index),
        sent_s=index + 0.001,
        outcome=Outcome.OK,
        e2e_s=ttft_s + 1,
        ttft_s=ttft_s,
        tpot_s=0.01,
        chunks=100,
        input_tokens=100,
        prompt_tokens=100,
        completion_tokens=100,
        cached_tokens=cached,
        node=node,
    )


def failure(index: int, cause: str, outcome: Outcome = Outcome.HTTP_ERROR) -> RequestRecord:
    return RequestRecord(
        index=index, due_s=0, sent_s=0, outcome=outcome, e2e_s=0.1, cause=cause, detail=f"m{index}"
    )


RECORDS = (
    ok(0, ttft_s=0.1),
    ok(1, ttft_s=0.2, node="b", cached=0),
    ok(2, ttft_s=3.0),
    ok(3, ttft_s=0.3, node="b", cached=None),
    failure(4, "503 <full>"),
    failure(5, "503 <full>"),
    failure(6, "cut", Outcome.TRUNCATED),
    failure(7, "", Outcome.INTERRUPTED),
)


def run(label: str = "one", records: tuple[RequestRecord, ...] = RECORDS, **fields: object) -> Run:
    made = Run(
        label=label,
        target="http://127.0.0.1:8080",
        model="m",
        policy=None,
        started_at="2025-01-01T00:00:00+00:00",
        duration_s=10.0,
        slo=Slo(),
        workload=Workload(name="w", seed=0, traffic=summarize([]), ideal_hit_ratio=0.5),
        load=Load(mode=LoadMode.CLOSED, concurrency=4),
        records=records,
    )
    return msgspec.structs.replace(made, **fields)


def test_numbers_by_hand() -> None:
    summary = run().summary()
    assert (summary.requests, summary.ok, summary.errors, summary.interrupted) == (8, 4, 3, 1)
    assert summary.throughput_rps == 0.4
    assert summary.goodput_rps == pytest.approx(0.3)
    assert summary.slo_attainment == pytest.approx(3 / 7)
    assert summary.ttft_s == Quantiles(mean=0.9, p50=0.3, p95=3.0, p99=3.0, max=3.0)
    assert summary.hit_ratio == pytest.approx(100 / 300)  # the request that reports none is out
    assert summary.hit_ratio_requests == 3
    assert summary.completion_tokens_per_s == 40
    assert [(n.node, n.requests, n.hit_ratio) for n in summary.nodes] == [
        ("a", 2, 0.5),
        ("b", 2, 0.0),
    ]
    assert [(g.cause, g.requests, g.example) for g in summary.error_groups] == [
        ("503 <full>", 2, "m4"),
        ("cut", 1, "m6"),
    ]


def test_words_of_others_move_no_cursor() -> None:
    target = StringIO()
    console = Console(file=target, width=200)
    print_run(console, run("\x1b[2J[red]one", records=(failure(0, "\x1b]0;title\x07 cut"),)))
    assert "\x1b" not in target.getvalue()
    assert "[red]one" in target.getvalue()


def test_a_long_prompt_may_take_longer_and_slow_tokens_are_not_good() -> None:
    long = msgspec.structs.replace(ok(0, ttft_s=3.9), input_tokens=4_000)
    slow = msgspec.structs.replace(ok(1, ttft_s=0.1), tpot_s=0.11)
    assert run(records=(long, ok(2, ttft_s=2.1), slow)).summary().goodput_rps == 0.1


def test_nothing_is_unknown_and_not_zero() -> None:
    summary = run(records=()).summary()
    assert (summary.ttft_s, summary.hit_ratio, summary.nodes) == (None, None, ())
    assert summarize_records([], duration_s=0, slo=Slo()).throughput_rps == 0


def test_causes_are_bounded() -> None:
    many = [failure(index, f"cause {index:02}") for index in range(CAUSES_MAX + 5)]
    groups = summarize_records(many, duration_s=1, slo=Slo()).error_groups
    assert len(groups) == CAUSES_MAX + 1
    assert (groups[-1].cause, groups[-1].requests) == ("other", 5)


def test_runs_survive_their_file() -> None:
    runs = (run("one"), run("two", policy="lmetric"))
    encoded = encode_runs(runs)
    assert decode_runs(encoded) == runs
    document = msgspec.json.decode(encoded)
    assert document["schema"] == SCHEMA == "pointsman.bench/2"
    assert document["runs"][0]["summary"]["ttft_s"]["p50"] == 0.3
    assert document["runs"][0]["records"][0]["outcome"] == "ok"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"schema":"pointsman.bench/1","runs":[]}',
        b'{"schema":"pointsman.bench/9","runs":[]}',
        b'{"schema":"pointsman.bench/2","runs":[]}',
        b'{"schema":"pointsman.bench/2","runs":[{}]}',
        b'{"a":' * 9_999,
    ],
)
def test_other_files_are_refused_with_a_remedy(data: bytes) -> None:
    with pytest.raises(RunFileError, match="Remedy: "):
        decode_runs(data)


def test_formats() -> None:
    assert [seconds(value) for value in (0, 0.00084, 0.0123, 0.9999, 1.534, 123.4)] == [
        "0.00 µs",
        "840 µs",
        "12.3 ms",
        "1.00 s",
        "1.53 s",
        "123 s",
    ]
    assert (percent(0.3235), count(12345), rate(2.345), rate(1234)) == (
        "32.4 %",
        "12,345",
        "2.35 /s",
        "1,234 /s",
    )
    assert ratio(1, 2).startswith("0.50")
    assert ratio(1, 0) == ratio(None, 1) != ""


def test_runs_that_differ_are_called_out() -> None:
    other = run("two", load=Load(mode=LoadMode.OPEN, rate_rps=1.0))
    assert differences([run(), run("same")]) == []
    assert differences([run(), other]) == ["two and one differ in arrivals: ratios mislead"]
    assert differences([run(), run("two", slo=Slo(ttft_s=1.0))]) == [
        "two and one differ in SLO: ratios mislead"
    ]


def test_tables_say_what_there_is() -> None:
    target = StringIO()
    console = Console(file=target, width=100)
    print_run(console, run("[bold]er", interrupted=True))
    print_comparison(console, [run("base"), run("new", records=RECORDS[:2])])
    text = target.getvalue()
    for said in (
        "[bold]er",
        "3 errors",
        "1 interrupted · stopped early",
        "503 <full>",
        "TTFT",
        "hit ratio",
    ):
        assert said in text
    assert all(metric.name in text for metric in metrics())


@needs_matplotlib
@pytest.mark.parametrize("records", [RECORDS, RECORDS[4:], ()], ids=["mixed", "failed", "none"])
@pytest.mark.parametrize("runs", [1, 3])
def test_page_is_self_contained(records: tuple[RequestRecord, ...], runs: int) -> None:
    page = render_page([run(f"<run {place}>", records) for place in range(runs)])
    outside = page.replace("http://127.0.0.1:8080", "")
    assert "://" not in outside
    assert not re.search(r"<(script|link|img|iframe)|@import|url\((?!#)", outside)
    assert "<run" not in page
    assert "<full>" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)
    assert "#0300" not in page, "a placeholder colour is left"


@needs_matplotlib
@needs_matplotlib
def test_more_runs_than_colours_are_told_apart_by_their_dashes() -> None:
    page = render_page([run(f"run {number}") for number in range(10)])
    assert "<h1>9 others against run 0</h1>" in page
    assert '<i style="color: var(--series-1)"></i>run 1' in page
    assert '<i class="dashed" style="color: var(--series-1)"></i>run 9' in page
    assert page.count("stroke-dasharray") >= 2 * 2  # of two runs in two plots


@needs_matplotlib
def test_few_runs_are_named_in_the_heading() -> None:
    page = render_page([run("base"), run("new"), run("newer")])
    assert "<h1>new, newer against base</h1>" in page


def test_many_nodes_share_the_last_colour() -> None:
    records = tuple(ok(place, ttft_s=0.1, node=f"${place:02}$") for place in range(20))
    page = render_page([run(records=records)])
    assert "other nodes" in page
    assert "$19$" in page


@needs_matplotlib
def test_every_request_is_a_dot_and_every_failure_a_cross() -> None:
    def marks(*records: RequestRecord) -> int:
        return plots.ttft_over_time(run(records=records), name="x").count("<use")

    good = [ok(index, ttft_s=0.1) for index in range(6)]
    assert marks(*good) - marks(*good[::5]) == 4
    assert marks(*good, failure(6, "cut"), failure(7, "cut")) - marks(*good) == 2


@needs_matplotlib
def test_requests_of_a_node_are_told_per_second() -> None:
    steady = run(records=tuple(ok(index, ttft_s=0.1) for index in range(400)))
    drawn = plots.requests_per_node(steady, steady.summary(), name="x")
    heights = [float(label) for label in re.findall(r">([\d.]+) /s</text>", drawn)]
    assert max(heights) == 1


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(plots.PlotsUnavailableError, match=r"pip install 'pointsman\[report\]'"):
        render_page([run()])
