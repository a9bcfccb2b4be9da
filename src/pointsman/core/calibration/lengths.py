"""How long outputs are, by model and tenant; and how many bytes of text make a token."""

from collections import OrderedDict
from math import ceil
from typing import TypeVar

from pointsman.core.ids import ModelName

OUTPUT_TOKENS_PRIOR = 256.0
"""Between a chat's mean (200 to 400 in public traces) and a code completion's (28, Azure)."""

BYTES_PER_TOKEN_PRIOR = 4.0
"""English text under a vocabulary of 100,000 or more."""

_TENANTS_MAX = 16_384  # (model, tenant) pairs; the least recently used is forgotten first
_MODELS_MAX = 1_024
_SMOOTHING_MIN = 0.02  # a memory of 50 outputs
_PARENT_SAMPLES = 8.0  # the model's mean counts as this many outputs of the tenant's
_RATIO_KEPT = 0.98
_RATIO_PRIOR_TOKENS = 64.0
_RATIO_MIN, _RATIO_MAX = 0.25, 64.0  # bytes a token: beyond these a count is wrong

_K = TypeVar("_K")
_V = TypeVar("_V")


class OutputLengths:
    """Running means of output tokens. A tenant's is drawn to its model's, that to the prior,
    by less as there are more samples."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[tuple[ModelName, str], _Mean] = OrderedDict()
        self._models: OrderedDict[ModelName, _Mean] = OrderedDict()

    def expect(self, model: ModelName, tenant: str, max_output_tokens: int | None = None) -> int:
        """Output tokens to plan for, within the client's own bound."""
        expected = _drawn(self._models.get(model), OUTPUT_TOKENS_PRIOR)
        expected = _drawn(self._tenants.get((model, tenant)), expected)
        tokens = max(1, ceil(expected))
        return tokens if max_output_tokens is None else min(tokens, max(0, max_output_tokens))

    def observe(self, model: ModelName, tenant: str, output_tokens: int) -> None:
        """An answer of this model to this tenant was this long."""
        assert output_tokens >= 0, output_tokens
        _recent(self._models, model, _MODELS_MAX).add(output_tokens)
        _recent(self._tenants, (model, tenant), _TENANTS_MAX).add(output_tokens)


class TokenRatio:
    """Bytes of prompt text a token, by model: recent bytes over recent tokens, so that long
    prompts, where the chat template's own tokens hardly count, weigh most."""

    def __init__(self) -> None:
        self._models: OrderedDict[ModelName, tuple[float, float]] = OrderedDict()

    def bytes_per_token(self, model: ModelName) -> float:
        """The model's ratio, or the prior."""
        text_bytes, tokens = self._models.get(model, _RATIO_PRIOR)
        return min(max(text_bytes / tokens, _RATIO_MIN), _RATIO_MAX)

    def tokens(self, model: ModelName, text_bytes: int) -> int:
        """Tokens that so much text is expected to make, at least 1."""
        return max(1, ceil(text_bytes / self.bytes_per_token(model)))

    def observe(self, model: ModelName, text_bytes: int, prompt_tokens: int) -> None:
        """The engine counted so many tokens. Counts of nothing teach nothing."""
        if text_bytes <= 0 or prompt_tokens <= 0:
            return
        known_bytes, known_tokens = self._models.get(model, _RATIO_PRIOR)
        renewed = (
            _RATIO_KEPT * known_bytes + text_bytes,
            _RATIO_KEPT * known_tokens + prompt_tokens,
        )
        _put(self._models, model, renewed, _MODELS_MAX)


_RATIO_PRIOR = (BYTES_PER_TOKEN_PRIOR * _RATIO_PRIOR_TOKENS, _RATIO_PRIOR_TOKENS)


class _Mean:
    """A mean of all samples at first, then of the last 50 or so."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(_SMOOTHING_MIN, 1.0 / self.count) * (value - self.value)


def _drawn(mean: _Mean | None, parent: float) -> float:
    if mean is None:
        return parent
    weight = mean.count / (mean.count + _PARENT_SAMPLES)
    return parent + weight * (mean.value - parent)


def _recent(means: OrderedDict[_K, _Mean], key: _K, count_max: int) -> _Mean:
    """The mean of `key`, made if need be, as the most recently used."""
    mean = means.get(key) or _Mean()
    _put(means, key, mean, count_max)
    return mean


def _put(recent: OrderedDict[_K, _V], key: _K, value: _V, count_max: int) -> None:
    """Set `key` as the most recently used; of more than `count_max` the oldest goes."""
    recent[key] = value
    recent.move_to_end(key)
    if len(recent) > count_max:
        recent.popitem(last=False)
