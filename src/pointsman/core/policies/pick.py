"""How all policies choose among equals."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from pointsman.core.placement import Choice, Hold
from pointsman.core.row import Row

NO_ROOM: Final = "room: no candidate has any"

TIE_BAND_RATIO: Final = 0.05
TIE_BAND_S: Final = 0.002
"""Scores in seconds that are this close are equal: learned speeds of two equal engines differ
by a few per cent of noise, and following the noise would leave one of them idle. No user can
tell 2 ms apart, and a machine that is busy otherwise adds as much to any answer."""


def pick(rows: Sequence[Row], *, why: str, band: float = 0.0) -> Choice | Hold:
    """The best row that fits; scores within `band` of it are equal. Holds when none does: every
    candidate's KV blocks are leased, or it runs as many requests as it can."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return Hold(NO_ROOM)
    return _least(fitting, why=why, band_ratio=0.0, band=band)


def pick_in_order(
    rows: Sequence[Row], key: Callable[[Row], tuple[float, ...]], *, why: str
) -> Choice | Hold:
    """The row that fits and whose `key` is least: for policies with tie rules of their own.
    What those leave equal goes to the node that was not chosen for longest."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return Hold(NO_ROOM)
    least = min(map(key, fitting))
    ties = [row for row in fitting if key(row) == least]
    return Choice(_waiting_longest(ties), len(ties), why)


def pick_cheapest(rows: Sequence[Row], *, why: str, weight: float = 1.0) -> Choice | Hold:
    """The best row in seconds, fitting or not: holds when waiting for room on a full node is
    cheaper than any node that has some. Scores must contain `room_wait_s`, a second of which counts
    `weight` at least."""
    choice = _least(rows, why=why, band_ratio=TIE_BAND_RATIO, band=weight * TIE_BAND_S)
    if choice.row.fits:
        return choice
    return Hold(f"room: waiting for {choice.row.node} is cheapest")


def _least(rows: Sequence[Row], *, why: str, band_ratio: float, band: float) -> Choice:
    least = inf
    for row in rows:
        least = row.score if row.score < least else least
    bound = least * (1 + band_ratio) + band
    ties = [row for row in rows if row.score <= bound]
    return Choice(_waiting_longest(ties), len(ties), why)


def _waiting_longest(ties: list[Row]) -> Row:
    """Of those that fit, or else of all, the one that was not chosen for longest."""
    best = ties[0]
    for row in ties:
        if row.fits != best.fits:
            best = row if row.fits else best
        elif row.placed_order < best.placed_order:
            best = row
    return best
