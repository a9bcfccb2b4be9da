"""How long outputs are, by model and tenant; and how many bytes of text make a token."""

from collections import OrderedDict
from math import ceil
from typing import Final, TypeVar

from pointsman.core.ids import ModelName

OUTPUT_TOKENS_PRIOR = 256.0
"""Between a chat's mean (200 to 400 in public traces) and a code completion's (28, Azure)."""

BYTES_PER_TOKEN_PRIOR = 4.0
"""English text under a vocabulary of 100,000 or more."""

_TENANTS_MAX: Final = 16_384  # (model, tenant) pairs; the least recently used is forgotten first
_MODELS_MAX: Final = 1_024
_SMOOTHING_MIN: Final = 0.02  # a memory of 50 outputs
_PARENT_SAMPLES: Final = 8.0  # the model's mean counts as this many outputs of the tenant's
_RATIO_KEPT: Final = 0.98
_RATIO_PRIOR_TOKENS: Final = 64.0
_RATIO_MIN, _RATIO_MAX = 0.25, 64.0  # bytes a token: beyond these a count is wrong

_K = TypeVar("_K")
_V = TypeVar("_V")


class OutputLengths:
    """Running means of output tokens. A tenant's is drawn to its model's, that to the prior,
    by less as there are more samples."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[tuple[ModelName, str], _Mean] = OrderedDict()
        self._models: OrderedDict[ModelName, _Mean] = OrderedDict()
        self._expected: dict[tuple[ModelName, str], int] = {}  # until the next sample

    def expect(self, model: ModelName, tenant: str, max_output_tokens: int | None = None) -> int:
        """Output tokens to plan for, within the client's own bound."""
        tokens = self._expected.get((model, tenant))
        if tokens is None:
            tokens = self._expect(model, tenant)
        if max_output_tokens is None or max_output_tokens > tokens:
            return tokens
        return max(0, max_output_tokens)

    def observe(self, model: ModelName, tenant: str, output_tokens: int) -> None:
        """An answer of this model to this tenant was this long."""
        assert output_tokens >= 0, output_tokens
        _recent(self._models, model, _MODELS_MAX).add(output_tokens)
        _recent(self._tenants, (model, tenant), _TENANTS_MAX).add(output_tokens)
        self._expected.clear()

    def _expect(self, model: ModelName, tenant: str) -> int:
        expected = _drawn(self._models.get(model), OUTPUT_TOKENS_PRIOR)
        expected = _drawn(self._tenants.get((model, tenant)), expected)
        if len(self._expected) >= _TENANTS_MAX:
            self._expected.clear()
        tokens = self._expected[model, tenant] = max(1, ceil(expected))
        return tokens


class TokenRatio:
    """Bytes of prompt text a token, by model: recent bytes over recent tokens, so that long
    prompts, where the chat template's own tokens hardly count, weigh most."""

    def __init__(self) -> None:
        self._models: OrderedDict[ModelName, _Ratio] = OrderedDict()

    def bytes_per_token(self, model: ModelName) -> float:
        """The model's ratio, or the prior."""
        ratio = self._models.get(model)
        return BYTES_PER_TOKEN_PRIOR if ratio is None else ratio.value

    def tokens(self, model: ModelName, text_bytes: int) -> int:
        """Tokens that so much text is expected to make, at least 1."""
        return ceil(text_bytes / self.bytes_per_token(model)) or 1

    def observe(self, model: ModelName, text_bytes: int, prompt_tokens: int) -> None:
        """The engine counted so many tokens. Counts of nothing teach nothing."""
        if text_bytes <= 0 or prompt_tokens <= 0:
            return
        ratio = self._models.get(model) or _Ratio()
        ratio.add(text_bytes, prompt_tokens)
        _put(self._models, model, ratio, _MODELS_MAX)


class _Ratio:
    """Bytes over tokens, of all samples but the older the less."""

    __slots__ = ("_bytes", "_tokens", "value")

    def __init__(self) -> None:
        self._bytes = BYTES_PER_TOKEN_PRIOR * _RATIO_PRIOR_TOKENS
        self._tokens = _RATIO_PRIOR_TOKENS
        self.value = BYTES_PER_TOKEN_PRIOR

    def add(self, text_bytes: int, tokens: int) -> None:
        self._bytes = _RATIO_KEPT * self._bytes + text_bytes
        self._tokens = _RATIO_KEPT * self._tokens + tokens
        self.value = min(max(self._bytes / self._tokens, _RATIO_MIN), _RATIO_MAX)


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
