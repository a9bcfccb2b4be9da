"""The values of a step: what was planned, how long it takes, what it brought."""

from math import sqrt

import msgspec

from pointsman.engines.compute_model.jobs import CacheEvent, EngineSequence


class Step(msgspec.Struct, frozen=True, gc=False):
    """One planned forward pass. `duration_s` is at the profile's speed."""

    duration_s: float
    prefill_tokens: int
    decode_tokens: int
    kv_tokens: int


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Steps in a row that decode the same sequences and do nothing else: each has as many more
    resident tokens as there are sequences, so step j of them takes `first_s + (j - 1)·growth_s`.
    """

    steps: int
    first_s: float
    growth_s: float

    def duration_s(self, steps: int) -> float:
        """Of the first `steps` of them, at the profile's speed."""
        return steps * (self.first_s + 0.5 * (steps - 1) * self.growth_s)

    def steps_within(self, elapsed_s: float) -> int:
        """How many are over by then, but for the last: that one ends the stretch."""
        slope = self.first_s - 0.5 * self.growth_s
        root = sqrt(slope * slope + 2 * self.growth_s * elapsed_s)
        divisor = slope + root  # 0 where the time is so short that it is lost in rounding
        steps = min(int(2 * elapsed_s / divisor), self.steps - 1) if divisor > 0 else 0
        while steps > 0 and self.duration_s(steps) > elapsed_s:
            steps -= 1
        while steps < self.steps - 1 and self.duration_s(steps + 1) <= elapsed_s:
            steps += 1
        return steps


class StepOutcome(msgspec.Struct, frozen=True):
    """What a completed step brought.

    Each of `advanced` has one more token (its first where `generated` is 1); those of them that are
    done are also in `finished`. `events` are in the order in which they happened. After a stretch
    of several steps, `step` is their sum, and each of `advanced` has that many more tokens.
    """

    step: Step
    advanced: list[EngineSequence]
    finished: list[EngineSequence]
    admitted: list[EngineSequence]
    preempted: list[EngineSequence]
    events: list[CacheEvent]
