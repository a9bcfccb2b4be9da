"""Colours of series can be told apart by everybody, on paper and in the dark."""

import re
from itertools import combinations
from math import dist

import pytest

from pointsman.report.drawing import SERIES_MAX
from pointsman.report.markup import theme_colours

Triple = tuple[float, float, float]

EYES: dict[str, tuple[Triple, Triple, Triple]] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
"""Linear RGB as it is seen: Machado, Oliveira and Fernandes 2009, table 1, severity 1."""
APART_MIN = 12.0
"""In CIE L*a*b*; 2.3 is just noticeable where colours touch, lines do not."""


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_series_looks_different(theme: int, eyes: str) -> None:
    colours = re.findall(r"--series-\d:#(\w{6})", theme_colours()[theme])
    assert len(colours) == SERIES_MAX
    seen = {colour: _seen(colour, EYES[eyes]) for colour in colours}
    close = {(a, b): dist(seen[a], seen[b]) for a, b in combinations(colours, 2)}
    assert min(close.values()) > APART_MIN, min(close, key=close.__getitem__)


def _seen(colour: str, eyes: tuple[Triple, Triple, Triple]) -> Triple:
    """In CIE L*a*b*, under daylight."""
    linear = [_linear(int(colour[place : place + 2], 16) / 255) for place in (0, 2, 4)]
    red, green, blue = (
        min(1.0, max(0.0, sum(weight * value for weight, value in zip(row, linear, strict=True))))
        for row in eyes
    )
    x = _root((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505)
    y = _root(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    z = _root((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def _root(value: float) -> float:
    return float(value ** (1 / 3)) if value > 0.008856 else 7.787 * value + 16 / 116
