"""One node's speeds: its class's, unless it is clearly slower.

Engines of one kind, model and size are fitted together: a class has many times the samples of a
node, and equal engines get equal speeds instead of each its own noise, which routing would follow.
A node whose running mean of log(observed / predicted by the class) rises above the dead band goes
by its own fit, and no longer teaches the class. Where its own has seen too few samples, it begins
with the class's speeds, slowed by that deviation. One that is faster stays and teaches: what was
learned of the class is old, or the others will be found slow. Were it let go, equal engines that
all become faster would part, and all work go to the first that was seen to.

A node that is believed slow is given little work, and would never be seen to recover. So when
nothing runs there and no sample has confirmed it for `trial_after_s` it counts as any other for
one short request, whose sample decides at once.

Where only nodes that are slower have told anything for a while, they are what the class has become,
and teach it: a node that is alone in its class cannot be slower than it for good.

Samples come with the ends of answers. Where those of a node take several times as long as foreseen
and its peers' do not, the judge says so sooner (`slowed`), and the node goes by that at once.

Noise that is larger than the deviation hides it: equal engines on a busy machine stay equal.
"""

from math import exp, log
from typing import Final

from pointsman.core.calibration.calibration import Calibration
from pointsman.core.calibration.speeds import Speeds
from pointsman.core.health_limits import TRIAL_AFTER_FACTOR_MAX
from pointsman.core.rules import HealthRules

_MEMORY_SAMPLES: Final = 16.0
_DEAD_BAND: Final = 0.25  # of the logarithm: 28 % slower
_STRANGERS_MAX: Final = 32  # samples of slower nodes in a row; then they are the class
_LOG_MAX: Final = 3.0  # one sample counts as 20 times slower at most

_RULES = HealthRules()


class _Deviation:
    """Running mean of log(observed / predicted), and how far single samples lie from it. A busy
    machine scatters, and for a while in one direction: a mean within the scatter says nothing."""

    __slots__ = ("_memory", "mean", "scatter")

    def __init__(self) -> None:
        self.mean = 0.0
        self.scatter = 0.0
        self._memory = _MEMORY_SAMPLES

    @property
    def is_slow(self) -> bool:
        return self.mean > max(_DEAD_BAND, self.scatter)

    def observe(self, ratio: float, weight: float) -> None:
        self._memory = min(self._memory + weight, _MEMORY_SAMPLES)
        share = weight / self._memory
        self.mean += share * (ratio - self.mean)
        self.scatter += share * (abs(ratio - self.mean) - self.scatter)

    def become(self, ratio: float) -> None:
        """One sample that decides. It counts as one beside those that come."""
        self.mean, self.scatter, self._memory = ratio, 0.0, 1.0


class Pace:
    """A node's own calibration beside its class's, and which of them is `in_force`. `rules` may be
    replaced at any time."""

    __slots__ = (
        "_class",
        "_confirmed_s",
        "_decode",
        "_own",
        "_prefill",
        "_trial_factor",
        "_trying",
        "in_force",
        "rules",
    )

    def __init__(
        self,
        shared: Calibration,
        own: Calibration | None = None,
        rules: HealthRules = _RULES,
    ) -> None:
        self._class = shared
        self._own = Calibration() if own is None else own
        self._prefill = _Deviation()
        self._decode = _Deviation()
        self._confirmed_s = 0.0
        self._trial_factor = 1.0
        self._trying = False
        self.in_force = shared
        self.rules = rules

    def __repr__(self) -> str:
        return f"<Pace {self._prefill.mean:+.2f} {self._decode.mean:+.2f} of {self._class}>"

    def within(self, shared: Calibration) -> "Pace":
        """The same machine in another class: it keeps what it has learned itself."""
        return self if shared is self._class else Pace(shared, self._own, self.rules)

    @property
    def calibrated(self) -> bool:
        """Whether its speeds are known: from its class, or from itself."""
        return self.in_force.calibrated

    @property
    def slowdown(self) -> float:
        """How many times as long as its class it takes; 1 unless it goes by its own speeds."""
        return 1.0 if self.in_force is self._class else self._factor

    @property
    def _factor(self) -> float:
        """How many times as long as its class it was seen to take."""
        return exp(max(self._prefill.mean, self._decode.mean))

    def speeds(self) -> Speeds:
        """The speeds as known."""
        return self.in_force.speeds()

    def counted_on(
        self, now_s: float, *, idle: bool, tokens: float, attention: float
    ) -> Calibration:
        """Whose speeds to count on at `now_s` for a prefill of so much: the class's for a node on
        trial. One that is not `idle` is on none: what runs there will tell."""
        in_force = self.in_force
        if idle and in_force is not self._class and self.on_trial(now_s):
            most_s = self.rules.trial_cost_share * (now_s - self._confirmed_s)
            if in_force.first_token_s(tokens, attention) <= most_s:
                return self._class
        return in_force

    def slowed(self, factor: float, now_s: float) -> None:
        """Its answers are found to take `factor` times as long as foreseen, and its peers' are
        not: it goes by that at once. Its own samples would tell when they end, and an answer of
        a node that is ten times as slow takes as long to."""
        self._own = self.in_force.slowed(factor)
        self.in_force = self._own
        deviation = log(factor)
        for of in (self._prefill, self._decode):
            of.become(max(of.mean, 0.0) + deviation)
        self._confirmed_s = now_s
        self._trying = False

    # --- trials ------------------------------------------------------------------------

    def on_trial(self, now_s: float) -> bool:
        """Whether the node is believed slow on old evidence only."""
        if self.in_force is self._class:
            return False
        if now_s - self._confirmed_s <= self._trial_factor * self.rules.trial_after_s:
            return False
        return max(self._decode.mean, self._prefill.mean) > _DEAD_BAND

    def tried(self, now_s: float, *, idle: bool) -> None:
        """A request goes there. If that is the trial, the next one is a while away."""
        if idle and self.on_trial(now_s):
            self._confirmed_s = now_s
            self._trying = True

    def confirmed(self, now_s: float) -> None:
        """Samples have been observed at `now_s`."""
        self._confirmed_s = now_s
        if self.in_force is self._class:
            self._trial_factor = 1.0
        elif self._trying:
            self._trial_factor = min(2 * self._trial_factor, TRIAL_AFTER_FACTOR_MAX)
        self._trying = False

    # --- learning ----------------------------------------------------------------------

    def observe_prefill(
        self,
        *,
        tokens_ahead: float,
        tokens_own: float,
        attention_ahead: float,
        attention_own: float,
        ttft_s: float,
    ) -> None:
        """As `Calibration.observe_prefill`."""
        tokens, attention = tokens_ahead + tokens_own, attention_ahead + attention_own
        predicted_s = self._class.first_token_s(tokens, attention)
        self._note(self._prefill, ttft_s, predicted_s, 1.0)
        for calibration in self._learners():
            calibration.observe_prefill(
                tokens_ahead=tokens_ahead,
                tokens_own=tokens_own,
                attention_ahead=attention_ahead,
                attention_own=attention_own,
                ttft_s=ttft_s,
            )

    def observe_decode(
        self, *, batch_mean: float, kv_tokens_mean: float, step_s: float, weight: float = 1.0
    ) -> None:
        """As `Calibration.observe_decode`."""
        predicted_s = self._class.step_s(batch_mean, kv_tokens_mean)
        self._note(self._decode, step_s, predicted_s, weight)
        for calibration in self._learners():
            calibration.observe_decode(
                batch_mean=batch_mean,
                kv_tokens_mean=kv_tokens_mean,
                step_s=step_s,
                weight=weight,
            )

    def _note(
        self, deviation: _Deviation, observed_s: float, predicted_s: float, weight: float
    ) -> None:
        if observed_s <= 0 or predicted_s <= 0 or not self._class.calibrated:
            return
        ratio = max(-_LOG_MAX, min(_LOG_MAX, log(observed_s / predicted_s)))
        if self._trying:
            deviation.become(ratio)
        else:
            deviation.observe(ratio, weight)

    def _learners(self) -> tuple[Calibration, ...]:
        """Who learns from this sample: the node, and its class if the node is one of it. Speeds
        that were known stay known: no policy can compare seconds where one candidate's are not."""
        slow = self._prefill.is_slow or self._decode.is_slow
        if slow and not self._own.calibrated:
            self._own = self._class.slowed(self._factor)
        self.in_force = self._own if slow else self._class
        self._class.strangers = self._class.strangers + 1 if slow else 0
        is_apart = slow and self._class.strangers <= _STRANGERS_MAX
        return (self._own,) if is_apart else (self._own, self._class)
