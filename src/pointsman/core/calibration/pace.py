"""One node's speeds as a pace within its class.

Engines of one kind, model and size are fitted together: a class has many times the samples
of a node, and equal engines get equal speeds instead of each its own noise, which routing
would follow. What a node is faster or slower than its class is one factor for prefill and
one for decode: the running mean of log(observed / predicted). Within the dead band a factor
counts as 1, since a mean of `_MEMORY_SAMPLES` noisy ratios is hardly ever 0.
"""

from math import exp, log

from pointsman.core.calibration.speeds import Calibration, Speeds

_MEMORY_SAMPLES = 24.0
_DEAD_BAND = 0.25  # of the logarithm: 28 % slower, 22 % faster
_LOG_MAX = 3.0  # one sample counts as 20 times slower at most


class Pace:
    """A node's view of its class's calibration. Cheap to make; the class is shared."""

    __slots__ = ("_calibration", "_decode", "_of", "_prefill", "_speeds")

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._prefill = 0.0
        self._decode = 0.0
        self._of: Speeds | None = None
        self._speeds = calibration.speeds()

    def __repr__(self) -> str:
        return f"<Pace {self.prefill:.2f} {self.decode:.2f} of {self._calibration}>"

    def within(self, calibration: Calibration) -> "Pace":
        """The same machine in another class: it stays as fast."""
        pace = Pace(calibration)
        pace._prefill, pace._decode = self._prefill, self._decode
        return pace

    @property
    def prefill(self) -> float:
        """Prefill times as a multiple of the class's; above 1 is slower."""
        return _factor(self._prefill)

    @property
    def decode(self) -> float:
        """Step times as a multiple of the class's."""
        return _factor(self._decode)

    @property
    def calibrated(self) -> bool:
        return self._calibration.calibrated

    def speeds(self) -> Speeds:
        """The class's speeds at this node's pace."""
        known = self._calibration.known
        if known is None or known is not self._of:
            self._of = self._calibration.speeds()
            self._speeds = self._paced(self._of)
        return self._speeds

    def observe_prefill(
        self,
        *,
        tokens_ahead: float,
        tokens_own: float,
        attention_ahead: float,
        attention_own: float,
        ttft_s: float,
    ) -> None:
        """As `Calibration.observe_prefill`; the node's pace is taken out before the class
        learns."""
        known = self._calibration.speeds()
        predicted_s = (
            known.dispatch_s
            + (tokens_ahead + tokens_own) * known.prefill_s_per_token
            + (attention_ahead + attention_own) * known.attention_s_per_token2
        )
        self._calibration.observe_prefill(
            tokens_ahead=tokens_ahead,
            tokens_own=tokens_own,
            attention_ahead=attention_ahead,
            attention_own=attention_own,
            ttft_s=ttft_s / self.prefill,
        )
        self._prefill = _moved(self._prefill, ttft_s, predicted_s)
        self._of = None

    def observe_decode(self, *, batch_mean: float, kv_tokens_mean: float, step_s: float) -> None:
        """As `Calibration.observe_decode`, at the class's pace."""
        known = self._calibration.speeds()
        predicted_s = (
            known.step_s + known.sequence_s * batch_mean + known.kv_token_s * kv_tokens_mean
        )
        self._calibration.observe_decode(
            batch_mean=batch_mean, kv_tokens_mean=kv_tokens_mean, step_s=step_s / self.decode
        )
        self._decode = _moved(self._decode, step_s, predicted_s)
        self._of = None

    def _paced(self, known: Speeds) -> Speeds:
        prefill, decode = self.prefill, self.decode
        if prefill == decode == 1.0:
            return known
        return Speeds(
            known.dispatch_s,
            known.prefill_s_per_token * prefill,
            known.attention_s_per_token2 * prefill,
            known.step_s * decode,
            known.sequence_s * decode,
            known.kv_token_s * decode,
        )


def _factor(mean: float) -> float:
    return exp(mean) if abs(mean) > _DEAD_BAND else 1.0


def _moved(mean: float, observed_s: float, predicted_s: float) -> float:
    if observed_s <= 0 or predicted_s <= 0:
        return mean
    ratio = max(-_LOG_MAX, min(_LOG_MAX, log(observed_s / predicted_s)))
    return mean + (ratio - mean) / _MEMORY_SAMPLES
