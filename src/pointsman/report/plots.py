"""Plots as inline SVG, by matplotlib (the extra `report`).

Colours and fonts are the page's: matplotlib draws with placeholder colours, which are replaced by
CSS variables, so that one drawing is legible in light and dark. Nothing is drawn through pyplot:
no global figure, no display.
"""

import io
import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pointsman.report.rows import percent, seconds
from pointsman.report.run import Run
from pointsman.report.summary import Summary
from pointsman.traffic.outcome import Outcome

SERIES_MAX = 8
"""Colours that can still be told apart; further nodes are drawn as one."""
POINTS_MAX = 1500
BINS_MAX = 48
REQUESTS_PER_BIN = 4
"""A bar of fewer says more about chance than about the rate."""
LOG_FROM = 12
"""Times the median from which the longest value needs a logarithmic axis to show the rest."""
DECADES_OF_1_2_5 = 1_000
"""Spans up to this get ticks at 1, 2 and 5; wider ones at powers of ten."""
_INK, _GRID = "#010101", "#020202"
_SERIES = tuple(f"#0300{number:02x}" for number in range(SERIES_MAX))


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
    with _Drawing(name) as drawing:
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
            xs, ys = _steps(values)
            axes.plot(xs, ys, color=_SERIES[place % SERIES_MAX], linewidth=1.8)
        everything.sort()
        axes.set_ylim(0, 1.01)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if everything and everything[-1] > LOG_FROM * everything[len(everything) // 2]:
            _logarithmic(axes, "x")
        _seconds_axis(axes.xaxis)
        return drawing.svg()


def ttft_over_time(run: Run, *, name: str) -> str:
    """One dot a request, at the time it was due; errors as crosses on the axis."""
    with _Drawing(name, width_in=13.2) as drawing:
        axes = drawing.axes
        ok = [record for record in run.records if record.ttft_s is not None and not record.failed]
        ok = ok[:: max(1, -(-len(ok) // POINTS_MAX))]
        size = 2.6 if len(ok) > POINTS_MAX // 4 else 4.5
        dots = {"linestyle": "none", "marker": "o", "markersize": size, "markeredgewidth": 0}
        axes.plot(
            [record.due_s for record in ok],
            [record.ttft_s for record in ok],
            color=_SERIES[0],
            alpha=0.55,
            **dots,
        )
        failed = [record.due_s for record in run.records if record.failed][:POINTS_MAX]
        if failed:
            floor = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(failed, [0.0] * len(failed), "x", color=_SERIES[3], markersize=5, **floor)
        waits = sorted(record.ttft_s for record in ok if record.ttft_s)
        if waits and waits[-1] > LOG_FROM * waits[len(waits) // 2]:
            _logarithmic(axes, "y")
        else:
            axes.set_ylim(bottom=0)
        axes.axhline(run.slo_ttft_s, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.5)
        _seconds_axis(axes.yaxis)
        _seconds_axis(axes.xaxis)
        return drawing.svg()


def requests_per_node(run: Run, summary: Summary, *, name: str) -> str:
    """Requests sent to each node, stacked, per second."""
    with _Drawing(name) as drawing:
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
        colours = _SERIES[: len(rows)]
        axes.stackplot(middles, *rows.values(), colors=colours, alpha=0.85, linewidth=0)
        axes.set_xlim(0, end_s)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} /s")
        _seconds_axis(axes.xaxis)
        return drawing.svg()


def node_series(summary: Summary) -> list[str]:
    """Names of the stacked series, in the order of their colours."""
    names = [node.node for node in summary.nodes]
    return names if len(names) <= SERIES_MAX else [*names[: SERIES_MAX - 1], "other nodes"]


def hit_ratio_per_node(summary: Summary, *, name: str) -> str:
    """One bar a node; the dashed line is the run's hit ratio, the solid one the trace's ideal."""
    nodes = [node for node in summary.nodes if node.hit_ratio is not None][:64]
    with _Drawing(name, height_in=max(1.5, 0.26 * len(nodes) + 0.5)) as drawing:
        axes = drawing.axes
        places = range(len(nodes))
        axes.barh(places, [node.hit_ratio for node in nodes], height=0.62, color=_SERIES[0])
        axes.set_yticks(places, [_short(node.node) for node in nodes])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        if summary.hit_ratio is not None:
            axes.axvline(summary.hit_ratio, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        if summary.ideal_hit_ratio is not None:
            axes.axvline(summary.ideal_hit_ratio, color=_SERIES[1], linewidth=1.6)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: percent(value).replace(".0", ""))
        return drawing.svg()


class _Drawing:
    """A figure of the page's width with placeholder colours; `svg` gives it as inline SVG."""

    def __init__(self, name: str, *, width_in: float = 6.4, height_in: float = 2.5) -> None:
        self._name = name
        self._size_in = (width_in, height_in)

    def __enter__(self) -> "_Drawing":
        matplotlib: Any = import_module("matplotlib")
        figure: Any = import_module("matplotlib.figure")
        settings: dict[str, Any] = {
            "svg.fonttype": "none",  # text stays text, in the page's font
            "svg.hashsalt": self._name,  # ids differ between plots and not between runs
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "axes.edgecolor": _GRID,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": _GRID,
            "grid.linewidth": 0.7,
            "xtick.color": _GRID,
            "ytick.color": _GRID,
            "xtick.labelcolor": _INK,
            "ytick.labelcolor": _INK,
            "ytick.major.size": 0,
            "xtick.minor.size": 0,
        }
        self._context = matplotlib.rc_context(settings)
        self._context.__enter__()
        self._figure = figure.Figure(figsize=self._size_in, layout="constrained")
        self.axes: Any = self._figure.add_subplot()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)

    def svg(self) -> str:
        target = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        self._figure.savefig(target, format="svg", transparent=True, metadata=metadata)
        return _inline(target.getvalue(), self._name)


def _inline(drawn: str, name: str) -> str:
    """Make a stand-alone SVG part of a page: no prolog, own ids, the page's colours, any width."""
    svg = drawn[drawn.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = (
        re.sub(r' (xmlns(:xlink)?|version|width|height)="[^"]*"', "", svg[: svg.index(">")])
        + (svg[svg.index(">") :])
    )
    svg = re.sub(r' id="', f' id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(_INK, "var(--ink-2)").replace(_GRID, "var(--line)")
    for number, colour in enumerate(_SERIES):
        svg = svg.replace(colour, f"var(--series-{number})")
    return svg


def _steps(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """A cumulative distribution in at most POINTS_MAX / 3 points, its last one kept."""
    count = len(values)
    step = max(1, count * 3 // POINTS_MAX)
    places = sorted({*range(0, count, step), count - 1}) if count else []
    return [values[place] for place in places], [(place + 1) / count for place in places]


def _logarithmic(axes: Any, which: str) -> None:
    """1, 2, 5, 10: a scale that spans one decade must not end up with a single number."""
    ticker: Any = import_module("matplotlib.ticker")
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_data_interval()
    if low > 0 and high / low < DECADES_OF_1_2_5:
        axis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5), numticks=16))


def _seconds_axis(axis: Any) -> None:
    ticker: Any = import_module("matplotlib.ticker")
    axis.set_major_formatter(lambda value, _: "0" if value == 0 else _brief(value))
    axis.set_minor_formatter(ticker.NullFormatter())


def _brief(value: float) -> str:
    """12 s, 0.5 s, 30 ms: a tick needs no more digits than it has."""
    if abs(value) >= 0.1:
        return f"{value:g} s"
    return f"{value * 1e3:g} ms" if abs(value) >= 1e-3 else seconds(value)


def _short(name: str) -> str:
    """A tick's label; `$` would start a formula."""
    return (name if len(name) <= 24 else f"…{name[-23:]}").replace("$", r"\$")
