"""Inline SVG by matplotlib (the extra `report`), in the page's colours and fonts.

matplotlib draws with placeholder colours, which are replaced by CSS variables, so that one drawing
is legible in light and dark. Nothing is drawn through pyplot: no global figure, no display.
"""

import io
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pointsman.report.rows import seconds

SERIES_MAX = 8
"""Colours that can still be told apart; further nodes are drawn as one."""
POINTS_MAX = 1500
LOG_FROM = 12
"""Times the median from which the longest value needs a logarithmic axis to show the rest."""
DECADES_OF_1_2_5 = 1_000
"""Spans up to this get ticks at 1, 2 and 5; wider ones at powers of ten."""
INK, GRID = "#010101", "#020202"
SERIES = tuple(f"#0300{number:02x}" for number in range(SERIES_MAX))


def line_of(place: int) -> tuple[str, str]:
    """Colour and style of the line of a place; when the colours are used up they come dashed."""
    return SERIES[place % SERIES_MAX], "-" if place < SERIES_MAX else "--"


class Drawing:
    """A figure of the page's width with placeholder colours; `svg` gives it as inline SVG.

    `grid` holds the axes of a figure with `rows` and `columns`; `axes` is the first of them.
    """

    def __init__(
        self,
        name: str,
        *,
        width_in: float = 6.4,
        height_in: float = 2.5,
        rows: int = 1,
        columns: int = 1,
        shared_columns: bool = False,
    ) -> None:
        self._name = name
        self._size_in = (width_in, height_in)
        self._shape = (rows, columns)
        self._sharing = {"sharex": True, "sharey": "col"} if shared_columns else {}

    def __enter__(self) -> "Drawing":
        matplotlib: Any = import_module("matplotlib")
        figure: Any = import_module("matplotlib.figure")
        settings: dict[str, Any] = {
            "svg.fonttype": "none",  # text stays text, in the page's font
            "svg.hashsalt": self._name,  # ids differ between plots and not between runs
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "axes.edgecolor": GRID,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.7,
            "xtick.color": GRID,
            "ytick.color": GRID,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "ytick.major.size": 0,
            "xtick.minor.size": 0,
        }
        self._context = matplotlib.rc_context(settings)
        self._context.__enter__()
        self._figure = figure.Figure(figsize=self._size_in, layout="constrained")
        self.grid: Any = self._figure.subplots(*self._shape, squeeze=False, **self._sharing)
        self.axes: Any = self.grid[0][0]
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)

    def spaced(self, share: float) -> None:
        """Leave room between the rows, as a share of their height."""
        self._figure.get_layout_engine().set(hspace=share)

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
    svg = svg.replace(INK, "var(--ink-2)").replace(GRID, "var(--line)")
    for number, colour in enumerate(SERIES):
        svg = svg.replace(colour, f"var(--series-{number})")
    return svg


def steps(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """A cumulative distribution in at most POINTS_MAX / 3 points, its last one kept."""
    count = len(values)
    step = max(1, count * 3 // POINTS_MAX)
    places = sorted({*range(0, count, step), count - 1}) if count else []
    return [values[place] for place in places], [(place + 1) / count for place in places]


def logarithmic(axes: Any, which: str) -> None:
    """1, 2, 5, 10: a scale that spans one decade must not end up with a single number."""
    ticker: Any = import_module("matplotlib.ticker")
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_data_interval()
    if low > 0 and high / low < DECADES_OF_1_2_5:
        axis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5), numticks=16))


def seconds_axis(axis: Any) -> None:
    ticker: Any = import_module("matplotlib.ticker")
    axis.set_major_formatter(lambda value, _: "0" if value == 0 else _brief(value))
    axis.set_minor_formatter(ticker.NullFormatter())


def _brief(value: float) -> str:
    """12 s, 0.5 s, 30 ms: a tick needs no more digits than it has."""
    if abs(value) >= 0.1:
        return f"{value:g} s"
    return f"{value * 1e3:g} ms" if abs(value) >= 1e-3 else seconds(value)


def short_label(name: str) -> str:
    """A tick's label; `$` would start a formula."""
    return (name if len(name) <= 24 else f"…{name[-23:]}").replace("$", r"\$")
