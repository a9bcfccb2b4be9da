"""How long outputs are, by model and tenant; and how many bytes of text make a token."""

from collections import OrderedDict
from math import ceil
from typing import Final

from pointsman.core.ids import ModelName
from pointsman.core.recent import RecentMean, keep, mean_of

OUTPUT_TOKENS_PRIOR: Final = 256.0
"""Between a chat's mean (200 to 400 in public traces) and a code completion's (28, Azure)."""

BYTES_PER_TOKEN_PRIOR: Final = 4.0
"""English text under a vocabulary of 100,000 or more."""

_TENANTS_MAX: Final = 16_384  # (model, tenant) pairs; the least recently used is forgotten first
_MODELS_MAX: Final = 1_024
_PARENT_SAMPLES: Final = 8.0  # the model's mean counts as this many outputs of the tenant's
_RATIO_KEPT: Final = 0.98
_RATIO_PRIOR_TOKENS: Final = 64.0
_RATIO_MIN, _RATIO_MAX = 0.25, 64.0  # bytes a token: beyond these a count is wrong


class OutputLengths:
    """Running means of output tokens. A tenant's is drawn to its model's, that to the prior,
    by less as there are more samples."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[tuple[ModelName, str], RecentMean] = OrderedDict()
        self._models: OrderedDict[ModelName, RecentMean] = OrderedDict()
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
        mean_of(self._models, model, _MODELS_MAX).add(output_tokens)
        mean_of(self._tenants, (model, tenant), _TENANTS_MAX).add(output_tokens)
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
        keep(self._models, model, ratio, _MODELS_MAX)


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


def _drawn(mean: RecentMean | None, parent: float) -> float:
    if mean is None:
        return parent
    weight = mean.count / (mean.count + _PARENT_SAMPLES)
    return parent + weight * (mean.value - parent)
