"""Prompts of all models to token ids, with what is counted of it (`ports.PromptTokenizer`)."""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Protocol

import msgspec

from pointsman.core.events import ModelCard
from pointsman.core.ids import ModelName
from pointsman.engines.tokenizer.fallback import Fallback
from pointsman.engines.tokenizer.source import Cancel, Outcome, Source
from pointsman.ports import TokensSink
from pointsman.wire.endpoints import Endpoint

WAIT_S_MAX = 1.0
"""For a prompt's ids. So much new text is half a megabyte, which takes an engine seconds to
prefill; longer waits would be felt, and what they could save is not known to be cached."""

ADAPTERS_MAX = 1_024
"""Names of which is remembered whose adapter they are; then that starts anew."""

ADAPTER_S = 30.0
"""For so long. Engines are asked about their models as often."""


class TokenizerState(msgspec.Struct, frozen=True):
    """Counts at one moment: prompts under way, and the pieces that are remembered."""

    pending: int
    pieces: int
    pieces_bytes: int


class TokenizerObserver(Protocol):
    """Counts. Called on the loop, quick, never raising."""

    def tokenized(self, *, tokens: int, remembered: int, seconds: float) -> None:
        """A prompt has its ids; `remembered` of them were known before."""
        ...

    def fell_back(self, cause: Fallback) -> None:
        """A prompt is known by its text only."""
        ...


class TokenizerService:
    """One source a model. An adapter is tokenised as its base model is, unless it has its own.

    `models` are the cards of what the cluster serves.
    """

    def __init__(
        self,
        sources: Mapping[ModelName, Source],
        models: Callable[[], Sequence[ModelCard]],
        observer: TokenizerObserver,
    ) -> None:
        self._sources = sources
        self._models = models
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._adapters: dict[ModelName, Source | None] = {}
        self._adapters_until_s = 0.0

    def tokenize(
        self, model: ModelName, endpoint: Endpoint, body: bytes, deliver: TokensSink
    ) -> Callable[[], None] | None:
        """See `ports.PromptTokenizer`."""
        source = self._sources.get(model) or self._source_of_adapter(model)
        if source is None:
            deliver(None)
            return None
        job = _Job(self._observer, deliver)
        cancel = source.tokenize(model, endpoint, body, job.done)
        if cancel is None:
            return None
        job.wait(cancel, self._loop.call_later(WAIT_S_MAX, job.late))
        return job.cancel

    def _source_of_adapter(self, model: ModelName) -> Source | None:
        now_s = self._loop.time()
        if now_s >= self._adapters_until_s or len(self._adapters) >= ADAPTERS_MAX:
            self._adapters = {}
            self._adapters_until_s = now_s + ADAPTER_S
        if model not in self._adapters:
            parents = (card.parent for card in self._models() if card.name == model)
            parent = next(parents, None)
            self._adapters[model] = None if parent is None else self._sources.get(parent)
        return self._adapters[model]


class _Job:
    """One prompt on its way; over with the first of its outcome, its time and its client."""

    def __init__(self, observer: TokenizerObserver, deliver: TokensSink) -> None:
        self._observer = observer
        self._deliver = deliver
        self._begin_s = perf_counter()
        self._is_over = False
        self._withdraw: Cancel | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, withdraw: Cancel, timer: asyncio.TimerHandle) -> None:
        """The outcome is still to come."""
        self._withdraw, self._timer = withdraw, timer

    def done(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        self._end()
        tokens: array[int] | None = None
        if isinstance(outcome, Fallback):
            self._observer.fell_back(outcome)
        else:
            tokens = outcome.tokens
            seconds = perf_counter() - self._begin_s
            self._observer.tokenized(
                tokens=len(tokens), remembered=outcome.remembered, seconds=seconds
            )
        self._deliver(tokens)

    def late(self) -> None:
        self._call_off()
        self.done(Fallback.LATE)

    def cancel(self) -> None:
        """The client has left: nobody waits for it."""
        if not self._is_over:
            self._call_off()
            self._end()

    def _call_off(self) -> None:
        if self._withdraw is not None:
            self._withdraw()

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
