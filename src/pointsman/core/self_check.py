"""Does an engine find in its cache what the index foretold? Kept for each node, over its life.

Engines say with each answer how many of its prompt's tokens they had cached. Where that and
the prediction part for long, something between us and the engine is set wrongly, and nothing
else would ever show it: every answer is right, only slower.

    expected   min(indexed, whole blocks of prompt - 1)     engines compute one token at least
    match      |expected - reported| <= one block; of a prompt known by its text alone a
               quarter of either more, since its tokens are estimated

Answers with nothing expected and nothing reported say nothing and are not counted.
"""

from enum import StrEnum
from typing import Final

SAMPLES_MIN: Final = 32
"""Answers before a doubt: a burst of siblings, each counted on the first one's prefill, is no
proof, and a tenth of that many are in flight at once."""

MEMORY: Final = 1 / 32  # of the shares, in answers
APART_MIN: Final = 0.7
"""Share of answers that part in one direction, from which on the index is doubted."""

_TEXT_TOLERANCE: Final = 0.25

_FOUND_MEMORY: Final = 1 / 10  # of the share that is found of what was foretold, in samples
_FOUND_SAMPLES_MIN: Final = 8
_FOUND_SHARE_MIN: Final = 0.1
"""An engine that finds less than this share of what is foretold is taken to cache nothing."""


class Doubt(StrEnum):
    """Why what is foretold is probably not what the engine reports. Empty: no doubt."""

    NONE = ""
    NOTHING_FOUND = (
        "hits are expected and none reported: prefix caching is off there, or the engine reads "
        "prompts otherwise than its events say"
    )
    LESS_FOUND = (
        "fewer hits are reported than expected: blocks have gone without an event, or another "
        "engine answers behind this address"
    )
    MORE_FOUND = (
        "more hits are reported than expected: prompts become other token ids here than there "
        "(tokenizer, chat template, adapter), or events are missing"
    )


class HitCheck:
    """Predicted against reported hits of one node. Shares forget within some 32 answers.

    `match_share` is of all answers that say anything; `doubt` is of those that an index fed by
    events has foretold: our own history may miss what others sent there, and be right.

    `foretold_tokens` and `found_tokens` are sums over the answers that are learned from. Hits are
    counted on while `cache_is_believed`: an engine may cache nothing, whatever is foretold.
    """

    __slots__ = (
        "_events_samples",
        "_found_samples",
        "_found_share",
        "_less",
        "_more",
        "_nothing",
        "cache_is_believed",
        "foretold_tokens",
        "found_tokens",
        "match_share",
        "samples",
    )

    def __init__(self) -> None:
        self.cache_is_believed = True
        self.foretold_tokens = self.found_tokens = 0
        self._found_share = 1.0
        self._found_samples = 0
        self.samples = 0
        self.match_share = 1.0
        self._events_samples = 0
        self._less = self._more = self._nothing = 0.0

    def observe(
        self,
        *,
        indexed_tokens: int,
        reported_tokens: int,
        prompt_tokens: int,
        block_tokens: int,
        from_text: bool,
        from_events: bool,
    ) -> None:
        """One answer. `prompt_tokens` is the engine's count of them."""
        blocks = max(0, prompt_tokens - 1) // block_tokens
        expected = min(indexed_tokens, blocks * block_tokens)
        larger = max(expected, reported_tokens)
        if larger < block_tokens:
            return
        tolerance = block_tokens + (_TEXT_TOLERANCE * larger if from_text else 0.0)
        surplus = reported_tokens - expected
        self.samples += 1
        self.match_share += MEMORY * ((abs(surplus) <= tolerance) - self.match_share)
        if from_events and not from_text:
            self._events_samples += 1
            self._less += MEMORY * ((surplus < -tolerance) - self._less)
            self._more += MEMORY * ((surplus > tolerance) - self._more)
            self._nothing += MEMORY * ((reported_tokens < block_tokens) - self._nothing)

    def learn(self, *, foretold_tokens: int, found_tokens: int, block_tokens: int) -> None:
        """One answer that is learned from."""
        self.foretold_tokens += foretold_tokens
        self.found_tokens += found_tokens
        if foretold_tokens < block_tokens:
            return
        share = min(1.0, found_tokens / foretold_tokens)
        self._found_share += _FOUND_MEMORY * (share - self._found_share)
        self._found_samples += 1
        is_unproven = self._found_samples < _FOUND_SAMPLES_MIN
        self.cache_is_believed = is_unproven or self._found_share >= _FOUND_SHARE_MIN

    @property
    def doubt(self) -> Doubt:
        """The probable cause, where the index and the engine have parted for long."""
        if self._events_samples < SAMPLES_MIN:
            return Doubt.NONE
        if self._more >= APART_MIN:
            return Doubt.MORE_FOUND
        if self._less < APART_MIN:
            return Doubt.NONE
        return Doubt.NOTHING_FOUND if self._nothing >= APART_MIN else Doubt.LESS_FOUND
