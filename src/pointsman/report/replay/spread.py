"""A mean over seeds and how far it can be trusted.

    half width = t(0.975, n - 1) * s / sqrt(n),   s^2 = sum (x - mean)^2 / (n - 1)

the two-sided 95 % confidence interval of a mean of n independent values of about normal
distribution, by Student's t. One value has no interval.
"""

from collections.abc import Iterable
from math import sqrt

import msgspec

# t(0.975, df) for df = 1 … 30, then at the degrees named; between them the next lower one's is
# taken, which makes an interval a little too wide and never too narrow.
_T_TO_30 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T_BEYOND = ((1000, 1.962), (120, 1.980), (60, 2.000), (40, 2.021), (30, 2.042))


class Estimate(msgspec.Struct, frozen=True):
    """A mean, and half the width of its 95 % confidence interval where there are two values."""

    mean: float
    half_width: float | None = None


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean)
    variance = sum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Estimate(mean, student_t(len(known) - 1) * sqrt(variance / len(known)))


def student_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, rounded to three digits and never downwards in `df`."""
    assert degrees >= 1, degrees
    if degrees <= len(_T_TO_30):
        return _T_TO_30[degrees - 1]
    return next(t for df, t in _T_BEYOND if degrees >= df)
