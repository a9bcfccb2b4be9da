"""Plots of live runs as inline SVG, by matplotlib (the extra `report`)."""

from collections.abc import Sequence
from importlib.util import find_spec

from pointsman.report.drawing import (
    INK,
    LOG_FROM,
    POINTS_MAX,
    SERIES,
    SERIES_MAX,
    Drawing,
    line_of,
    logarithmic,
    seconds_axis,
    short_label,
    steps,
)
from pointsman.report.rows import percent
from pointsman.report.run import Run
from pointsman.report.summary import Summary
from pointsman.traffic.outcome import Outcome

BINS_MAX = 48
REQUESTS_PER_BIN = 4
"""A bar of fewer says more about chance than about the rate."""


class PlotsUnavailableError(Exception):
    """matplotlib is not installed."""


def require_matplotlib() -> None:
    """Raise PlotsUnavailableError, with the remedy, before an hour's run and not after it."""
    if find_spec("matplotlib") is None:
        raise PlotsUnavailableError(
            "plots need matplotlib. Remedy: pip install 'pointsman[report]'"
        )


def cdf(runs: Sequence[Run], *, field: str, name: str) -> str:
    """Share of the requests of each run that took at most so long; one line a run."""
    with Drawing(name) as drawing:
        axes = drawing.axes
        everything: list[float] = []
        for place, run in enumerate(runs):
            values = sorted(
                value
                for record in run.records
                if record.outcome is Outcome.OK
                and (value := getattr(record, field)) is not None
                and value > 0
            )
            everything += values
            xs, ys = steps(values)
            ink, style = line_of(place)
            axes.plot(xs, ys, style, color=ink, linewidth=1.8)
        everything.sort()
        axes.set_ylim(0, 1.01)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if everything and everything[-1] > LOG_FROM * everything[len(everything) // 2]:
            logarithmic(axes, "x")
        seconds_axis(axes.xaxis)
        return drawing.svg()


def ttft_over_time(run: Run, *, name: str) -> str:
    """One dot a request, at the time it was due; errors as crosses on the axis."""
    with Drawing(name, width_in=13.2) as drawing:
        axes = drawing.axes
        ok = [record for record in run.records if record.ttft_s is not None and not record.failed]
        ok = ok[:: max(1, -(-len(ok) // POINTS_MAX))]
        size = 2.6 if len(ok) > POINTS_MAX // 4 else 4.5
        dots = {"linestyle": "none", "marker": "o", "markersize": size, "markeredgewidth": 0}
        axes.plot(
            [record.due_s for record in ok],
            [record.ttft_s for record in ok],
            color=SERIES[0],
            alpha=0.55,
            **dots,
        )
        failed = [record.due_s for record in run.records if record.failed][:POINTS_MAX]
        if failed:
            floor = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(failed, [0.0] * len(failed), "x", color=SERIES[3], markersize=5, **floor)
        waits = sorted(record.ttft_s for record in ok if record.ttft_s)
        if waits and waits[-1] > LOG_FROM * waits[len(waits) // 2]:
            logarithmic(axes, "y")
        else:
            axes.set_ylim(bottom=0)
        due_s = run.slo.ttft_due_s(round(run.workload.traffic.input_tokens_mean))
        axes.axhline(due_s, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.5)
        seconds_axis(axes.yaxis)
        seconds_axis(axes.xaxis)
        return drawing.svg()


def requests_per_node(run: Run, summary: Summary, *, name: str) -> str:
    """Requests sent to each node, stacked, per second."""
    with Drawing(name) as drawing:
        axes = drawing.axes
        names = node_series(summary)
        end_s = max(record.sent_s for record in run.records) or 1.0
        bins = min(BINS_MAX, max(8, len(run.records) // REQUESTS_PER_BIN))
        width_s = end_s / bins
        rows = {series: [0.0] * bins for series in names}
        for record in run.records:
            if record.node:
                series = record.node if record.node in rows else names[-1]
                rows[series][min(int(record.sent_s / width_s), bins - 1)] += 1 / width_s
        middles = [(place + 0.5) * width_s for place in range(bins)]
        colours = SERIES[: len(rows)]
        axes.stackplot(middles, *rows.values(), colors=colours, alpha=0.85, linewidth=0)
        axes.set_xlim(0, end_s)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} /s")
        seconds_axis(axes.xaxis)
        return drawing.svg()


def node_series(summary: Summary) -> list[str]:
    """Names of the stacked series, in the order of their colours."""
    names = [node.node for node in summary.nodes]
    return names if len(names) <= SERIES_MAX else [*names[: SERIES_MAX - 1], "other nodes"]


def hit_ratio_per_node(summary: Summary, *, name: str) -> str:
    """One bar a node; the dashed line is the run's hit ratio, the solid one the trace's ideal."""
    nodes = [node for node in summary.nodes if node.hit_ratio is not None][:64]
    with Drawing(name, height_in=max(1.5, 0.26 * len(nodes) + 0.5)) as drawing:
        axes = drawing.axes
        places = range(len(nodes))
        axes.barh(places, [node.hit_ratio for node in nodes], height=0.62, color=SERIES[0])
        axes.set_yticks(places, [short_label(node.node) for node in nodes])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        if summary.hit_ratio is not None:
            axes.axvline(summary.hit_ratio, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        if summary.ideal_hit_ratio is not None:
            axes.axvline(summary.ideal_hit_ratio, color=SERIES[1], linewidth=1.6)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: percent(value).replace(".0", ""))
        return drawing.svg()
