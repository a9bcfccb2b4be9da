"""Non-negative least squares of three coefficients, online, robust, from a prior.

Samples enter normal equations that forget exponentially. They are divided by the predicted
value, so errors are relative: a short prefill counts as much as a long one. Coefficients are
in units of the prior's, so that all have the same scale.

The prior is a ridge whose weight fades. It pulls not to the prior itself but to the multiple
of it that fits best: an engine unlike the prior is most likely slower or faster throughout,
and where the samples do not tell the terms apart (all prompts of one length), that holds.

A residual beyond `_CLIP` times the running deviation is cut to it, so one stalled request
changes little. If residuals agree in sign (Trigg's tracking signal, 1964: |mean| / mean of
magnitudes, near 1), the engine itself has changed: the fit starts again, with what it knew
as its prior. That follows a threefold change within 30 samples.

A sample of weight w counts as that part of one in all of this, forgetting included.
"""

from itertools import combinations
from typing import Final

Triple = tuple[float, float, float]

_HALF_LIFE_SAMPLES: Final = 200.0
_KEPT: Final = 0.5 ** (1.0 / _HALF_LIFE_SAMPLES)
_PRIOR_WEIGHT: Final = 0.3  # samples; fades to the minimum, which keeps the equations solvable
_PRIOR_KEPT: Final = 0.5 ** (1.0 / 10.0)
_PRIOR_WEIGHT_MIN: Final = 0.01
_PRIOR_SHARE_MIN: Final = 1e-3  # of the first prior: a coefficient found to be 0 may rise again

_CLIP: Final = 4.0  # deviations
_DEVIATION_MIN: Final = 0.02
_SMOOTHING: Final = 0.1  # of deviation and bias: a memory of 10 samples
_CHANGED_SIGNAL: Final = 0.85  # tracking signal; under independent errors it is 0.3 ± 0.2
_CHANGED_BIAS: Final = 0.2  # relative: below this the slow forgetting is good enough
_SURPRISE: Final = 1.5  # a value this many times the expected is what its own error is relative to

_SOLVE_EVERY: Final = 4  # samples; at first every one
_SOLVE_ALWAYS_SAMPLES: Final = 16
_PREDICTION_MIN: Final = 1e-6
_RATIO_MAX: Final = 1e3  # a single sample is never taken for more than this multiple of expectation

_SUBSETS: Final = tuple(s for size in (3, 2, 1) for s in combinations(range(3), size))


class Fit:
    """`value ≈ coefficients · features`, coefficients never negative."""

    __slots__ = (
        "_bias",
        "_deviation",
        "_matrix",
        "_pending",
        "_prior",
        "_prior_first",
        "_prior_weight",
        "_ratios",
        "_vector",
        "coefficients",
        "count",
        "error",
    )

    def __init__(self, prior: Triple) -> None:
        assert min(prior) > 0, prior
        self._prior_first = prior
        self.coefficients = prior
        self.count = 0
        self.error: float | None = None  # mean of recent |value / prediction - 1|
        self._start(prior)

    def _start(self, prior: Triple) -> None:
        """Forget all samples, and lean on `prior` until there are new ones."""
        self._prior = prior
        self._prior_weight = _PRIOR_WEIGHT
        self._matrix = [[0.0] * 3 for _ in range(3)]
        self._vector = [0.0] * 3
        self._deviation = 1.0
        self._bias = 0.0
        self._pending = 0

    def __repr__(self) -> str:
        terms = ", ".join(f"{c:.3g}" for c in self.coefficients)
        error = "no data" if self.error is None else f"±{self.error:.0%}"
        return f"<Fit ({terms}) {error} of {self.count}>"

    def predict(self, features: Triple) -> float:
        """The value expected at `features`."""
        a, b, c = self.coefficients
        return a * features[0] + b * features[1] + c * features[2]

    def observe(self, features: Triple, value: float, weight: float = 1.0) -> None:
        """Learn from one sample, of a weight up to 1."""
        assert value > 0 and 0 < weight <= 1, (value, weight)  # noqa: PT018 - one fact
        expected = max(self.predict(features), _PREDICTION_MIN)
        residual = min(value / expected, _RATIO_MAX) - 1.0
        self.count += 1
        self._note_error(abs(residual))
        cut = self._cut(residual)
        self._track(cut, weight)
        if self._has_changed():
            shares = zip(self.coefficients, self._prior_first, strict=True)
            a, b, c = [max(known, _PRIOR_SHARE_MIN * first) for known, first in shares]
            self._start((a, b, c))
            cut = self._cut(residual)
        self._forget(weight)
        scale = expected * max(1.0, (1.0 + residual) / _SURPRISE)
        scaled = [f * p / scale for f, p in zip(features, self._prior, strict=True)]
        self._add(scaled, (1.0 + cut) * expected / scale, weight)
        self._pending += 1
        if self._pending >= _SOLVE_EVERY or self.count <= _SOLVE_ALWAYS_SAMPLES:
            self._solve()

    def _note_error(self, error: float) -> None:
        known = error if self.error is None else self.error
        self.error = known + max(_SMOOTHING, 1.0 / self.count) * (error - known)

    def _cut(self, residual: float) -> float:
        clip = _CLIP * self._deviation
        return max(-clip, min(clip, residual))

    def _track(self, residual: float, weight: float) -> None:
        share = _SMOOTHING * weight
        self._bias += share * (residual - self._bias)
        self._deviation += share * (abs(residual) - self._deviation)
        self._deviation = max(self._deviation, _DEVIATION_MIN)

    def _has_changed(self) -> bool:
        bias = abs(self._bias)
        return bias > _CHANGED_BIAS and bias > _CHANGED_SIGNAL * self._deviation

    def _forget(self, weight: float) -> None:
        kept = _KEPT**weight
        self._prior_weight = max(_PRIOR_WEIGHT_MIN, self._prior_weight * _PRIOR_KEPT**weight)
        self._vector = [kept * value for value in self._vector]
        self._matrix = [[kept * value for value in row] for row in self._matrix]

    def _add(self, scaled: list[float], value: float, weight: float) -> None:
        for i, row in enumerate(self._matrix):
            self._vector[i] += weight * scaled[i] * value
            for j in range(3):
                row[j] += weight * scaled[i] * scaled[j]

    def _solve(self) -> None:
        """Minimise the squared errors plus the ridge `prior_weight·|ratios - multiple|²`."""
        self._pending = 0
        ridge = self._prior_weight
        multiple = (sum(self._vector) + ridge) / (sum(map(sum, self._matrix)) + ridge)
        matrix = [row[:] for row in self._matrix]
        for i in range(3):
            matrix[i][i] += ridge
        ratios = nnls(matrix, [value + ridge * multiple for value in self._vector])
        a, b, c = [r * p for r, p in zip(ratios, self._prior, strict=True)]
        self.coefficients = (a, b, c)


def nnls(matrix: list[list[float]], vector: list[float]) -> Triple:
    """The x ≥ 0 that minimises ½ xᵀ·matrix·x - vectorᵀ·x, for a positive definite matrix.

    At the optimum some set of coordinates is zero and the others solve their own equations:
    of three coordinates there are seven such sets, so each is tried.
    """
    best: Triple = (0.0, 0.0, 0.0)
    best_value = 0.0
    for subset in _SUBSETS:
        solved = _solve_subset(matrix, vector, subset)
        if min(solved) < 0.0:
            continue
        value = -0.5 * sum(solved[n] * vector[i] for n, i in enumerate(subset))
        if value < best_value:
            best_value = value
            spread = [0.0, 0.0, 0.0]
            for n, i in enumerate(subset):
                spread[i] = solved[n]
            best = (spread[0], spread[1], spread[2])
        if len(subset) == 3:
            break  # the unconstrained optimum is feasible
    return best


def _solve_subset(
    matrix: list[list[float]], vector: list[float], subset: tuple[int, ...]
) -> list[float]:
    """The rows and columns of `subset` alone, by Gauss; (-1,) where they are singular."""
    rows = [[matrix[i][j] for j in subset] + [vector[i]] for i in subset]
    size = len(rows)
    for i in range(size):
        if rows[i][i] <= 1e-300:
            return [-1.0]
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [b - factor * a for a, b in zip(rows[i], rows[k], strict=True)]
    solved = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solved[j] for j in range(i + 1, size))
        solved[i] = (rows[i][size] - known) / rows[i][i]
    return solved
