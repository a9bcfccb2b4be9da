"""What a policy is, and how all of them choose among equals."""

from collections.abc import Sequence
from operator import attrgetter
from random import Random
from typing import Protocol

from pointsman.core.decision import Candidate
from pointsman.core.placement import Choice, Hold
from pointsman.core.request import Request

TIE_BAND_RATIO = 0.05
TIE_BAND_S = 0.001
"""Scores in seconds that are this close are equal: learned speeds of two equal engines differ
by a few per cent of noise, and following the noise would leave one of them idle."""


class Policy(Protocol):
    """A way to choose among candidates. Rows are never empty."""

    @property
    def name(self) -> str: ...

    @property
    def prunes(self) -> bool:
        """Whether the holders of the longest prefixes and the least loaded nodes may stand
        for a large field; else every candidate is in `rows`."""
        ...

    def choose(self, request: Request, rows: Sequence[Candidate], rng: Random) -> Choice | Hold: ...

    def placed(self, request: Request, row: Candidate) -> None:
        """`row` was chosen and is booked: remember what the next choice needs."""
        ...


class Stateless:
    """A policy that remembers nothing."""

    prunes = False

    def placed(self, request: Request, row: Candidate) -> None: ...


def pick(
    rows: Sequence[Candidate], *, why: str, band_ratio: float = 0.0, band_s: float = 0.0
) -> Choice | Hold:
    """The best row that fits. Holds when none does: every candidate's KV blocks are leased."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return Hold("kv_blocks: no candidate has room")
    return _least(fitting, why=why, band_ratio=band_ratio, band_s=band_s)


def pick_cheapest(rows: Sequence[Candidate], *, why: str) -> Choice | Hold:
    """The best row in seconds, fitting or not: holds when waiting for a full node's memory is
    cheaper than any node with room. Scores must contain `kv_wait_s`."""
    choice = _least(rows, why=why, band_ratio=TIE_BAND_RATIO, band_s=TIE_BAND_S)
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
