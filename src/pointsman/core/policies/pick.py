"""How all policies choose among equals."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from pointsman.core.decision import Candidate
from pointsman.core.placement import Choice, Hold

NO_ROOM = "kv_blocks: no candidate has room"

TIE_BAND_RATIO = 0.05
TIE_BAND_S = 0.002
"""Scores in seconds that are this close are equal: learned speeds of two equal engines differ
by a few per cent of noise, and following the noise would leave one of them idle. No user can
tell 2 ms apart, and a machine that is busy otherwise adds as much to any answer."""


def pick(
    rows: Sequence[Candidate], *, why: str, band_ratio: float = 0.0, band_s: float = 0.0
) -> Choice | Hold:
    """The best row that fits. Holds when none does: every candidate's KV blocks are leased."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return Hold(NO_ROOM)
    return _least(fitting, why=why, band_ratio=band_ratio, band_s=band_s)


def pick_in_order(
    rows: Sequence[Candidate], key: Callable[[Candidate], tuple[float, ...]], *, why: str
) -> Choice | Hold:
    """The row that fits and whose `key` is least: for policies with tie rules of their own.
    What those leave equal goes to the node that was not chosen for longest."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return Hold(NO_ROOM)
    least = min(map(key, fitting))
    ties = [row for row in fitting if key(row) == least]
    return Choice(min(ties, key=_waiting_longest), len(ties), why)


def pick_cheapest(rows: Sequence[Candidate], *, why: str, weight: float = 1.0) -> Choice | Hold:
    """The best row in seconds, fitting or not: holds when waiting for a full node's memory is
    cheaper than any node with room. Scores must contain `kv_wait_s`, a second of which counts
    `weight` at least."""
    choice = _least(rows, why=why, band_ratio=TIE_BAND_RATIO, band_s=weight * TIE_BAND_S)
    if choice.row.fits:
        return choice
    return Hold(f"kv_blocks: waiting for {choice.row.node} is cheapest")


def _least(rows: Sequence[Candidate], *, why: str, band_ratio: float, band_s: float) -> Choice:
    bound = min(map(_score, rows)) * (1 + band_ratio) + band_s
    ties = [row for row in rows if row.score <= bound]
    row = ties[0] if len(ties) == 1 else min(ties, key=_waiting_longest)
    return Choice(row, len(ties), why)


_score = attrgetter("score")


def _waiting_longest(row: Candidate) -> tuple[bool, int]:
    return (not row.fits, row.placed_order)
