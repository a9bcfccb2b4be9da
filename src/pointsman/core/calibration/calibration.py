"""The speeds of engines of one kind, learned from the times that their requests took."""

from math import isfinite
from typing import Final

from msgspec.structs import astuple

from pointsman.core.calibration.fit import Fit, Triple
from pointsman.core.calibration.speeds import PRIOR, Speeds

_SAMPLES_MIN: Final = 8  # prefills, before the fit is believed over a policy without speeds
_ERROR_SANE: Final = 1.0  # off by as much as the value itself: no fit at all
_QUEUED_WEIGHT_MIN: Final = 0.1
_USUAL_TOKENS: Final = 2_000.0
_RATIO_MIN: Final = 1e-3
_KNOWN_SHARE_MIN: Final = 1e-3  # of the usual: a time that was found to be 0 may be learned again


class Calibration:
    """Learns `Speeds` online; before data they are the prior, scaled or not. They are the
    coefficients of two fits: of `prefill`, a first token's, and of `decode`, a step's.

    `calibrated` says whether there were enough prefills, and the speeds described them. It stays
    so: a fit follows its engine, and to change policy in the middle of an overload helps nobody.
    Answers end later than they begin: until the first has, decoding is taken to be as much slower
    or faster than its prior as prefills are.
    """

    __slots__ = ("calibrated", "decode", "prefill", "prior", "strangers")

    def __init__(self, prior: Speeds = PRIOR) -> None:
        self.prior = prior
        self.prefill = Fit(
            (prior.dispatch_s, prior.prefill_s_per_token, prior.attention_s_per_token2)
        )
        self.decode = Fit(self._decode_prior(1.0))
        self.calibrated = False
        self.strangers = 0  # samples in a row of engines of the kind that it does not describe

    def __repr__(self) -> str:
        return f"<Calibration {self.prefill} {self.decode}>"

    def observe_prefill(
        self,
        *,
        tokens_ahead: float,
        tokens_own: float,
        attention_ahead: float,
        attention_own: float,
        ttft_s: float,
    ) -> None:
        """A first token came after `ttft_s`, with so much to be computed before it.

        What was queued ahead may have been half done: the more of it, the less is learned.
        """
        assert tokens_ahead >= 0 and attention_ahead >= 0, (tokens_ahead, attention_ahead)  # noqa: PT018 - one fact
        work = (1.0, tokens_ahead + tokens_own, attention_ahead + attention_own)
        own_s = self.prefill.predict((1.0, tokens_own, attention_own))
        share = own_s / max(self.prefill.predict(work), own_s, 1e-9)
        self._observe(self.prefill, work, ttft_s, max(_QUEUED_WEIGHT_MIN, share))

    def observe_decode(
        self, *, batch_mean: float, kv_tokens_mean: float, step_s: float, weight: float = 1.0
    ) -> None:
        """Steps took `step_s` on average, at this many sequences and resident tokens."""
        self._observe(self.decode, (1.0, batch_mean, kv_tokens_mean), step_s, weight)

    def _observe(
        self, fit: Fit, work: tuple[float, float, float], seconds: float, weight: float
    ) -> None:
        if not isfinite(seconds) or seconds <= 0:
            return
        fit.observe(work, seconds, weight)
        if not self.calibrated and _is_sane(self.prefill):
            self.calibrated = True
            if not self.decode.count:
                self.decode = Fit(self._decode_prior(self._prefill_ratio()))

    def slowed(self, factor: float) -> "Calibration":
        """One whose times are `factor` times as long, to be learned anew from there."""
        known = zip(astuple(self.speeds()), astuple(PRIOR), strict=True)
        slower = Calibration(
            Speeds(*[factor * max(value, _KNOWN_SHARE_MIN * usual) for value, usual in known])
        )
        slower.calibrated = self.calibrated
        return slower

    def _prefill_ratio(self) -> float:
        """How much longer prefills take than their prior says, at a prompt of usual length."""
        work = (0.0, _USUAL_TOKENS, _USUAL_TOKENS**2 / 2)
        usual_s = self.prior.prefill_s_per_token * work[1]
        usual_s += self.prior.attention_s_per_token2 * work[2]
        return max(self.prefill.predict(work) / usual_s, _RATIO_MIN)

    def _decode_prior(self, ratio: float) -> Triple:
        prior = self.prior
        return (ratio * prior.step_s, ratio * prior.sequence_s, ratio * prior.kv_token_s)

    def speeds(self) -> Speeds:
        """The speeds as known now."""
        return Speeds(*self.prefill.coefficients, *self.decode.coefficients)

    def first_token_s(self, tokens: float, attention: float) -> float:
        """Expected time to a first token when so much is to be computed before it."""
        return self.prefill.predict((1.0, tokens, attention))

    def work_s(self, tokens: float, attention: float) -> float:
        """Expected time to compute so much."""
        return self.prefill.predict((0.0, tokens, attention))

    def step_s(self, batch: float, kv_tokens: float) -> float:
        """Expected time of a step at this many sequences and resident tokens."""
        return self.decode.predict((1.0, batch, kv_tokens))


def _is_sane(fit: Fit) -> bool:
    error = fit.error
    return fit.count >= _SAMPLES_MIN and error is not None and error < _ERROR_SANE
