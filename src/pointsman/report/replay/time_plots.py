"""How runs went over time, as inline SVG by matplotlib: waits by class, what failed and why, and
the load of the nodes. The time in which something befalls the cluster is shaded."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pointsman.report.drawing import (
    INK,
    LOG_FROM,
    SERIES,
    SERIES_MAX,
    Drawing,
    logarithmic,
    seconds_axis,
    short_label,
)
from pointsman.report.replay.deviation import load
from pointsman.report.replay.numbers import RunNumbers
from pointsman.report.replay.plots import draw_nodes
from pointsman.report.replay.study import ScenarioReport
from pointsman.report.replay.timeline import Timeline
from pointsman.traffic.replayed import Series

ROW_IN = 1.55
CAUSES_MIN = 3
"""Colours kept for causes however many classes there are."""


def course(scenario: ScenarioReport, *, name: str, keyed: bool = False) -> str:
    """A row a policy of the first seed: waits, failures, loads. `keyed` puts the legend into it,
    for where there is no page around."""
    runs = drawn(scenario)
    waits, causes = wait_names(runs), cause_names(runs)
    with Drawing(
        name,
        width_in=13.2,
        height_in=ROW_IN * len(runs) + 0.5,
        rows=len(runs),
        columns=3,
        shared_columns=True,
    ) as drawing:
        for (left, middle, right), run in zip(drawing.grid, runs, strict=True):
            for axes in (left, middle, right):
                _shade(axes, scenario)
            _waits(left, run.timeline, waits)
            _failures(middle, run.timeline, causes)
            _loads(right, run.series)
            left.set_title(short_label(run.policy), loc="left", fontsize=9, color=INK, pad=3)
            for axes in (left, middle, right):
                axes.set_xlim(0, run.timeline.edges_s[-1])
        for axes in drawing.grid[0][1:]:
            axes.set_ylim(bottom=0)  # of the whole column, once everything is drawn
        _wait_axis(drawing.grid, runs)
        if keyed:
            _key(drawing.grid, runs, waits, causes)
        for axes in drawing.grid[-1]:
            seconds_axis(axes.xaxis)
        drawing.spaced(0.05)
        return drawing.svg()


def drawn(scenario: ScenarioReport) -> list[RunNumbers]:
    """Those of which the course was kept."""
    return [run for run in scenario.seeds[0].runs if run.timeline.edges_s and run.series.times_s]


def wait_names(runs: Sequence[RunNumbers]) -> list[str]:
    """The classes of the left column, in the order of their colours."""
    names = dict.fromkeys(line.name for run in runs for line in run.timeline.waits)
    return list(names)[: SERIES_MAX - CAUSES_MIN]


def cause_names(runs: Sequence[RunNumbers]) -> list[str]:
    """The causes of the middle column, as many as there are colours left."""
    names = dict.fromkeys(line.cause for run in runs for line in run.timeline.errors)
    return list(names)[: SERIES_MAX - len(wait_names(runs))]


def legend(scenario: ScenarioReport) -> list[str]:
    """Classes and causes, each in the place of its colour: classes from the first one on, causes
    from the last one back."""
    runs = drawn(scenario)
    waits, causes = wait_names(runs), cause_names(runs)
    names = [name or "all" for name in waits]
    gap = SERIES_MAX - len(names) - len(causes)
    return [*names, *[""] * gap, *reversed(causes)]


def shaded(scenario: ScenarioReport) -> tuple[float, float] | None:
    """When something befalls it; else the second of the windows that are told apart: the first
    is what was before."""
    if scenario.troubled_s is not None:
        return scenario.troubled_s
    spans = list(scenario.windows.values())
    return spans[1] if len(spans) > 1 else None


def _key(
    grid: Any, runs: Sequence[RunNumbers], waits: Sequence[str], causes: Sequence[str]
) -> None:
    """In each column of the row that has most to say there, and what columns are."""
    style = {"frameon": False, "fontsize": 7.5, "labelcolor": INK, "handlelength": 1.2}
    if any(waits):
        grid[0][0].legend(loc="best", **style)
    for row, run in zip(grid, runs, strict=True):
        if any(line.cause in causes for line in run.timeline.errors):
            row[1].legend(loc="best", **style)
    titles = ("TTFT p95", "refused or failed", "requests on each node; red: held")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, loc="right", fontsize=8, color=INK, pad=3)


def _shade(axes: Any, scenario: ScenarioReport) -> None:
    span_s = shaded(scenario)
    if span_s is not None:
        axes.axvspan(*span_s, color=INK, alpha=0.08, linewidth=0)


def _waits(axes: Any, timeline: Timeline, names: Sequence[str]) -> None:
    middles = [(begin_s + end_s) / 2 for begin_s, end_s in pairwise(timeline.edges_s)]
    for line in timeline.waits:
        if line.name not in names:
            continue
        known = [(at_s, s) for at_s, s in zip(middles, line.ttft_s, strict=True) if s]
        axes.plot(
            [at_s for at_s, _ in known],
            [s for _, s in known],
            color=SERIES[names.index(line.name)],
            linewidth=1.5 if len(known) > len(middles) / 2 else 0,
            marker="" if len(known) > len(middles) / 2 else "o",
            markersize=3,
            label=line.name or "all",
        )


def _wait_axis(grid: Any, runs: Sequence[RunNumbers]) -> None:
    waits = sorted(
        s for run in runs for line in run.timeline.waits for s in line.ttft_s if s is not None
    )
    axes = grid[0][0]  # the others of the column share its scale
    if waits and waits[-1] > LOG_FROM * waits[len(waits) // 2] > 0:
        for row in grid:
            logarithmic(row[0], "y")
    else:
        axes.set_ylim(bottom=0)
    for row in grid:
        seconds_axis(row[0].yaxis)


def _failures(axes: Any, timeline: Timeline, names: Sequence[str]) -> None:
    lines = [line for line in timeline.errors if line.cause in names]
    begins = timeline.edges_s[:-1]
    width_s = timeline.edges_s[1] - timeline.edges_s[0]
    below = [0.0] * len(begins)
    for line in lines:
        colour = SERIES[SERIES_MAX - 1 - names.index(line.cause)]
        axes.bar(
            begins,
            line.rate_rps,
            width_s,
            bottom=below,
            align="edge",
            color=colour,
            label=line.cause,
        )
        below = [low + rate for low, rate in zip(below, line.rate_rps, strict=True)]
    if not lines:
        middle = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, "none", color=INK, fontsize=8, **middle)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} /s")


def _loads(axes: Any, series: Series) -> None:
    draw_nodes(axes, series, load, SERIES[0])
    if any(series.held):
        axes.plot(series.times_s, series.held, color=SERIES[3], linewidth=1.3)
