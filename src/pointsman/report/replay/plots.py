"""Plots of a study as inline SVG, by matplotlib (the extra `report`).

A policy has the colour of its place among the page's policies, in every plot.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pointsman.report.drawing import (
    INK,
    LOG_FROM,
    SERIES,
    SERIES_MAX,
    Drawing,
    line_of,
    logarithmic,
    seconds_axis,
    short_label,
)
from pointsman.report.replay.deviation import load
from pointsman.report.replay.metrics import (
    E2E_MEAN,
    E2E_P99,
    GOODPUT,
    HITS,
    TTFT_MEAN,
    TTFT_P99,
    ReplayMetric,
)
from pointsman.report.replay.numbers import RunNumbers
from pointsman.report.replay.study import ORACLE, ScenarioReport
from pointsman.traffic.replayed import NodeSeries, Series

DASHED = (0, (4, 3))
LINES_MAX = 16
"""Nodes drawn one by one."""
_PANELS = (TTFT_MEAN, E2E_MEAN, GOODPUT, TTFT_P99, E2E_P99, HITS)


def colour(policies: Sequence[str], policy: str) -> str:
    """By place; those beyond the colours that can be told apart share the last one."""
    return SERIES[min(policies.index(policy), SERIES_MAX - 1)]


def cdf(
    scenario: ScenarioReport,
    policies: Sequence[str],
    drawn: Sequence[str],
    *,
    field: str,
    name: str,
) -> str:
    """Share of the first seed's requests that took at most so long; the oracle is dashed."""
    with Drawing(name) as drawing:
        axes = drawing.axes
        everything: list[float] = []
        runs = {run.policy: run for run in scenario.seeds[0].runs}
        for policy in drawn:
            values: Sequence[float] = getattr(runs[policy], field)
            everything += values
            _step(axes, values, color=colour(policies, policy), linewidth=1.8)
        oracle = scenario.seeds[0].oracle
        if oracle is not None:
            _step(axes, getattr(oracle, field), color=INK, linewidth=1.1, linestyle=DASHED)
        everything.sort()
        axes.set_ylim(0, 1.01)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if everything and everything[-1] > LOG_FROM * everything[len(everything) // 2] > 0:
            logarithmic(axes, "x")
        seconds_axis(axes.xaxis)
        return drawing.svg()


def bars(scenario: ScenarioReport, policies: Sequence[str], *, name: str) -> str:
    """Six metrics side by side, a bar a policy, whiskers over seeds, the oracle dashed."""
    rows = len(scenario.policies)
    height_in = 2 * (0.24 * rows + 0.62)
    with Drawing(name, width_in=13.2, height_in=height_in, rows=2, columns=3) as drawing:
        for place, metric in enumerate(_PANELS):
            axes = drawing.grid[place // 3][place % 3]
            _bar_panel(axes, scenario, policies, metric)
            if place % 3:
                axes.tick_params(labelleft=False)
        drawing.spaced(0.07)
        return drawing.svg()


def over_time(scenario: ScenarioReport, policies: Sequence[str], *, name: str) -> str:
    """A row a policy: requests on each node, and the time that each needs for what it has."""
    runs = [run for run in scenario.seeds[0].runs if run.series.times_s]
    with Drawing(
        name,
        width_in=13.2,
        height_in=1.25 * len(runs) + 0.5,
        rows=len(runs),
        columns=2,
        shared_columns=True,
    ) as drawing:
        for (left, right), run in zip(drawing.grid, runs, strict=True):
            ink = colour(policies, run.policy)
            for axes, of in ((left, load), (right, lambda node: node.remaining_s)):
                draw_nodes(axes, run.series, of, ink)
                axes.set_xlim(0, run.series.times_s[-1])
            left.set_title(short_label(run.policy), loc="left", fontsize=9, color=INK, pad=3)
            seconds_axis(right.yaxis)
        for axes in drawing.grid[0]:
            axes.set_ylim(bottom=0)  # of the whole column, once everything is drawn
        for axes in drawing.grid[-1]:
            seconds_axis(axes.xaxis)
        return drawing.svg()


def attainment(scenario: ScenarioReport, policies: Sequence[str], *, name: str) -> str:
    """What was within the objective at each rate that a sweep tried; dashed: the target."""
    with Drawing(name, width_in=13.2) as drawing:
        axes = drawing.axes
        for sweep in scenario.sweeps:
            ink, style = line_of(policies.index(sweep.policy))
            axes.plot(
                [point.rate_rps for point in sweep.tried],
                [point.slo_attainment for point in sweep.tried],
                style,
                color=ink,
                marker="o",
                markersize=3.5,
                linewidth=1.4,
            )
        axes.axhline(scenario.sweeps[0].target, color=INK, linewidth=0.9, linestyle=DASHED)
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        logarithmic(axes, "x")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} /s")
        axes.xaxis.set_minor_formatter(lambda *_: "")
        return drawing.svg()


def _step(axes: Any, values: Sequence[float], **style: Any) -> None:
    shares = [(place + 1) / len(values) for place in range(len(values))]
    axes.plot([max(value, 1e-6) for value in values], shares, **style)


def _bar_panel(
    axes: Any, scenario: ScenarioReport, policies: Sequence[str], metric: ReplayMetric
) -> None:
    names = scenario.policies
    found = [scenario.over_seeds(name, metric.value) for name in names]
    half_widths = [each.half_width if each else None for each in found]
    axes.barh(
        range(len(names)),
        [0.0 if each is None else each.mean for each in found],
        height=0.66,
        color=[colour(policies, name) for name in names],
        xerr=[half or 0.0 for half in half_widths] if any(half_widths) else None,
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2.5},
    )
    axes.set_yticks(range(len(names)), [short_label(name) for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title(metric.name, loc="left", fontsize=9, color=INK, pad=3)
    oracle = scenario.over_seeds(ORACLE, metric.value)
    if oracle is not None:
        axes.axvline(oracle.mean, color=INK, linewidth=1.1, linestyle=DASHED)
    ideal = scenario.seeds[0].ideal_hit_ratio
    if metric is HITS:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if ideal is not None:
            axes.axvline(ideal, color=INK, linewidth=1.4)
    elif metric is GOODPUT:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} /s")
    else:
        seconds_axis(axes.xaxis)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)


def draw_nodes(
    axes: Any, series: Series, of: Callable[[NodeSeries], Sequence[float]], ink: str
) -> None:
    """A line a node; of many a band from the least to the most, and their mean."""
    times_s, values = series.times_s, [of(node) for node in series.nodes]
    if len(values) <= LINES_MAX:
        for line in values:
            axes.plot(times_s, line, color=ink, linewidth=0.9, alpha=0.6)
    else:
        samples = list(zip(*values, strict=True))
        lows, highs = [min(each) for each in samples], [max(each) for each in samples]
        axes.fill_between(times_s, lows, highs, color=ink, alpha=0.3, linewidth=0)
        axes.plot(times_s, [sum(each) / len(each) for each in samples], color=ink, linewidth=1.2)


def has_series(runs: Sequence[RunNumbers]) -> bool:
    """Whether there is anything to draw over time."""
    return any(run.series.times_s for run in runs)
