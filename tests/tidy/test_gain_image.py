"""The picture of what is gained shows measured numbers, and bars as long as they are large."""

import re

import pytest

from tests.tidy.source_tree import ROOT

BARS_A_GROUP = 3  # on one scale
BAR = re.compile(
    r'<text class="name"[^>]*>([^<]+)</text><rect [^>]*width="([\d.]+)"[^>]*/>'
    r'<text class="value"[^>]*>([\d.]+) s</text>'
)
ROWS = {  # the picture's name, and the row in docs/PERFORMANCE.md
    "round robin": "| round_robin | 1.52 ",
    "least requests": "| least_request | 1.66 ",
    "vllm-router, kv_aware": "| vllm-router 0.1.17 kv_aware | 0.65 | **2.23** ",
    "smg, cache_aware": "| smg 1.13.0 cache_aware | 1.43 ",
}
OURS = ("| **marginal_cost** | **0.89 s**", "| **pointsman** marginal_cost | **0.62 s**")


def bars(together: int) -> list[list[tuple[str, float, str]]]:
    """Name, width and number of each bar, so many together."""
    found = BAR.findall((ROOT / "docs/images/gain.svg").read_text())
    drawn = [(name, float(width), value) for name, width, value in found]
    return [drawn[start : start + together] for start in range(0, len(drawn), together)]


def test_every_number_is_measured() -> None:
    lines = (ROOT / "docs/PERFORMANCE.md").read_text().splitlines()
    for ours, panel in zip(OURS, bars(2 * BARS_A_GROUP), strict=True):
        for name, _, value in panel:
            (row,) = [line for line in lines if line.startswith(ROWS.get(name, ours))]
            assert value in re.findall(r"\d+\.\d+", row), f"{name}: {value} is not in {row}"


def test_bars_are_as_long_as_their_numbers() -> None:
    for group in bars(BARS_A_GROUP):
        scales = [width / float(value) for _, width, value in group]
        assert scales == pytest.approx([scales[0]] * BARS_A_GROUP, rel=0.01)
