"""The parts that every page is made of: one self-contained document, figures, tables."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from pointsman import __version__
from pointsman.report.drawing import SERIES_MAX

_TERMS = (
    "TTFT: time to the first token; TPOT: mean time of each token after it; e2e: time to the end "
    "of the answer; SLO: what a good answer keeps to; goodput: good answers a second."
)


def document(title: str, body: str, footer: str) -> str:
    """A whole page: no script, no external resource."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Pointsman</title><style>{_style()}</style></head>\n"
        f"<body><main>{body}\n<footer>Pointsman {__version__}. {escape(_TERMS)} {escape(footer)}"
        "</footer></main></body></html>\n"
    )


def theme_colours() -> tuple[str, str]:
    """The page's CSS variables in light and in dark, as `--name:#colour;--name:…`."""
    light, dark = re.findall(r":root \{(.*?)\}", _style(), re.DOTALL)
    return _variables(light), _variables(dark)


def _variables(block: str) -> str:
    return ";".join(f"{name}:{colour}" for name, colour in re.findall(r"(--[\w-]+): (#\w+)", block))


def _style() -> str:
    return files("pointsman.report").joinpath("page.css").read_text("utf-8")


def figure(
    title: str, caption: str, svg: str, series: Sequence[str] = (), *, wide: bool = False
) -> str:
    """A plot with its title and, for several `series`, a legend in the order of their colours; when
    those are used up they come again, dashed."""
    legend = "".join(_key(place, name) for place, name in enumerate(series) if name)
    mark = ' class="wide"' if wide else ""
    return (
        f"<figure{mark}><figcaption><h3>{escape(title)}</h3><p>{escape(caption)}</p>"
        f'<div class="legend">{legend}</div></figcaption>{svg}</figure>'
    )


def _key(place: int, name: str) -> str:
    dashed = ' class="dashed"' if place >= SERIES_MAX else ""
    colour = f"color: var(--series-{place % SERIES_MAX})"
    return f'<span><i{dashed} style="{colour}"></i>{escape(name)}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain text in cells."""
    return sheet(map(escape, head), (map(_cell, row) for row in rows))


def sheet(head: Iterable[str], rows: Iterable[Iterable[str]], *, dense: bool = False) -> str:
    """`head` as HTML of its cells' content, rows as HTML of whole cells."""
    mark = " dense" if dense else ""
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<div class="sheet{mark}"><table><tr>{heads}</tr>{lines}</table></div>'


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"
