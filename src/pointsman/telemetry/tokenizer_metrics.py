"""What tokenising prompts comes to: how often, how long, how much of it was known before."""

from enum import StrEnum

from prometheus_client.registry import CollectorRegistry

from pointsman.telemetry.instruments import Counter, Histogram

TOKENIZE_BOUNDS_S = (
    *(50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3),
    *(10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0),
)


class TokenizerMetrics:
    """Told of each prompt of a model that has a tokenizer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            registry,
            "pointsman_tokenizer_seconds",
            "From a prompt's body to its token ids, waiting for a worker included.",
            bounds=TOKENIZE_BOUNDS_S,
        ).labels()
        tokens = Counter(
            registry,
            "pointsman_tokenizer_tokens",
            "Prompt tokens, encoded anew or remembered from an earlier turn.",
            ("result",),
        )
        self._encoded = tokens.labels("encoded")
        self._remembered = tokens.labels("remembered")
        self._fallbacks = Counter(
            registry,
            "pointsman_tokenizer_fallbacks",
            "Prompts that are known by their text only, by the cause of it.",
            ("cause",),
        )

    def tokenized(self, *, tokens: int, remembered: int, seconds: float) -> None:
        """A prompt has its ids."""
        self._seconds.observe(seconds)
        self._encoded.value += tokens - remembered
        self._remembered.value += remembered

    def fell_back(self, cause: StrEnum) -> None:
        """A prompt has none."""
        self._fallbacks.labels(cause).add()
