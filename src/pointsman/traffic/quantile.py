"""The rule for every quantile here: the value that stands at that share of all, from below."""

from collections.abc import Sequence
from typing import TypeVar

Number = TypeVar("Number", int, float)


def quantile(ordered: Sequence[Number], share: float) -> Number:
    """`ordered[int(share * n)]`, and the last one for 1. There is one value at least."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
