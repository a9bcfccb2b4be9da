"""The way of a prompt to its ids and back: at once, by a thread, late, or not at all."""

import asyncio
import json
import threading
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pointsman.core.events import ModelCard
from pointsman.core.ids import ModelName
from pointsman.engines.tokenizer import (
    Fallback,
    FolderSource,
    ModelTokenizer,
    Pieces,
    Source,
    TokenizerService,
    Workers,
    load,
    service,
)
from pointsman.engines.tokenizer.encoded import Encoded
from pointsman.engines.tokenizer.source import BODY_BYTES_MAX, INLINE_BYTES_MAX, Cancel, Outcome
from pointsman.wire.endpoints import Endpoint
from tests.support.tokenizers import write_folder
from tests.support.waiting import eventually

M = ModelName("m")


class Counts:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.tokens: list[tuple[int, int]] = []
        self.causes: list[Fallback] = []

    def tokenized(self, *, tokens: int, remembered: int, seconds: float) -> None:
        assert seconds >= 0
        self.tokens.append((tokens, remembered))

    def fell_back(self, cause: Fallback) -> None:
        self.causes.append(cause)


class Delivered:
    """What a prompt came to; `deliver` may be called once."""

    def __init__(self) -> None:
        self.tokens: array[int] | None = None
        self.event = asyncio.Event()

    def __call__(self, tokens: "array[int] | None") -> None:
        assert not self.event.is_set(), "delivered twice"
        assert threading.current_thread() is threading.main_thread()
        self.tokens = tokens
        self.event.set()


class Scripted:
    """A source that answers when told to."""

    def __init__(self) -> None:
        self.done: Callable[[Outcome], None] | None = None
        self.withdrawn = 0

    def tokenize(
        self, model: ModelName, endpoint: Endpoint, body: bytes, done: Callable[[Outcome], None]
    ) -> Cancel | None:
        self.done = done
        return self._withdraw

    def _withdraw(self) -> None:
        self.withdrawn += 1


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    made = Workers(threads=1, pending_max=2)
    yield made
    await made.close()
    assert made.pending == 0


@pytest.fixture
def tokenizer(tmp_path: Path) -> ModelTokenizer:
    return load(write_folder(tmp_path), Pieces(1_000_000))


def body(words: int = 1, **fields: Any) -> bytes:
    message = {"role": "user", "content": "train " * words}
    return json.dumps({"model": "m", "messages": [message], **fields}).encode()


def made_service(sources: dict[str, Source], *cards: ModelCard) -> tuple[TokenizerService, Counts]:
    counts = Counts()
    named = {ModelName(name): source for name, source in sources.items()}
    return TokenizerService(named, lambda: cards, counts), counts


async def ask(
    made: TokenizerService, data: bytes, endpoint: Endpoint = Endpoint.CHAT, model: str = "m"
) -> "array[int] | None":
    delivered = Delivered()
    made.tokenize(ModelName(model), endpoint, data, delivered)
    await delivered.event.wait()
    return delivered.tokens


# --- folders ------------------------------------------------------------------------------


async def test_a_small_prompt_is_tokenised_at_once(
    tokenizer: ModelTokenizer, workers: Workers
) -> None:
    made, counts = made_service({"m": FolderSource(tokenizer, workers)})
    delivered = Delivered()
    assert made.tokenize(M, Endpoint.CHAT, body(), delivered) is None
    assert delivered.event.is_set()
    assert delivered.tokens == tokenizer.tokens(Endpoint.CHAT, body()).tokens
    assert delivered.tokens is not None
    assert counts.tokens == [(len(delivered.tokens), 0)]


async def test_a_large_prompt_leaves_the_loop(tokenizer: ModelTokenizer, workers: Workers) -> None:
    made, counts = made_service({"m": FolderSource(tokenizer, workers)})
    large = body(INLINE_BYTES_MAX)
    delivered = Delivered()
    assert made.tokenize(M, Endpoint.CHAT, large, delivered) is not None
    assert workers.pending == 1
    await delivered.event.wait()
    assert delivered.tokens == tokenizer.tokens(Endpoint.CHAT, large).tokens
    assert (len(counts.tokens), counts.causes, workers.pending) == (1, [], 0)


async def test_what_cannot_be_exact_is_told_at_once(
    tokenizer: ModelTokenizer, workers: Workers
) -> None:
    made, counts = made_service({"m": FolderSource(tokenizer, workers)})
    assert await ask(made, body(), Endpoint.RESPONSES) is None
    assert await ask(made, body(chat_template="x")) is None
    assert await ask(made, bytes(BODY_BYTES_MAX + 1)) is None
    assert await ask(made, b"{") is None
    expected = [Fallback.ENDPOINT, Fallback.OPTIONS, Fallback.LARGE, Fallback.REFUSED]
    assert counts.causes == expected


async def test_a_full_queue_falls_back_at_once(workers: Workers) -> None:
    stuck = threading.Event()
    made, counts = made_service({"m": FolderSource(_waiting(stuck), workers)})
    large = body(INLINE_BYTES_MAX)
    first, second, third = Delivered(), Delivered(), Delivered()
    made.tokenize(M, Endpoint.CHAT, large, first)
    made.tokenize(M, Endpoint.CHAT, large, second)
    assert made.tokenize(M, Endpoint.CHAT, large, third) is None
    assert third.event.is_set()
    assert third.tokens is None
    assert counts.causes == [Fallback.BUSY]
    stuck.set()
    await first.event.wait()
    await second.event.wait()
    assert len(counts.tokens) == 2


async def test_a_withdrawn_prompt_is_not_delivered_and_its_place_is_free(workers: Workers) -> None:
    stuck = threading.Event()
    made, counts = made_service({"m": FolderSource(_waiting(stuck), workers)})
    running, queued = Delivered(), Delivered()
    large = body(INLINE_BYTES_MAX)
    withdraws = [made.tokenize(M, Endpoint.CHAT, large, each) for each in (running, queued)]
    for withdraw in withdraws:
        assert withdraw is not None
        withdraw()
        withdraw()  # a second call is harmless
    await asyncio.sleep(0)
    assert workers.pending == 1  # what runs cannot be stopped, what is queued is dropped
    stuck.set()
    await eventually(lambda: not workers.pending)
    assert not running.event.is_set()
    assert not queued.event.is_set()
    assert (counts.tokens, counts.causes) == ([], [])


async def test_a_fault_costs_the_index_only(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ModelTokenizer):
        def __init__(self) -> None: ...

        def tokens(self, endpoint: Endpoint, body: bytes) -> Encoded:
            raise RuntimeError("a bug")

    made, counts = made_service({"m": FolderSource(Broken(), workers)})
    assert await ask(made, body()) is None
    assert await ask(made, body(INLINE_BYTES_MAX)) is None
    assert counts.causes == [Fallback.FAILED] * 2
    assert "a bug" in caplog.text


async def test_a_body_that_is_nested_too_deeply_is_no_fault_of_ours(
    tokenizer: ModelTokenizer, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    hostile = {"role": "assistant", "content": "", "tool_calls": [call]}
    made, counts = made_service({"m": FolderSource(tokenizer, workers)})
    assert await ask(made, json.dumps({"model": "m", "messages": [hostile]}).encode()) is None
    assert counts.causes == [Fallback.REFUSED]
    assert not caplog.records, "anybody could fill the log"


def _waiting(event: threading.Event) -> ModelTokenizer:
    class Waiting(ModelTokenizer):
        def __init__(self) -> None: ...

        def tokens(self, endpoint: Endpoint, body: bytes) -> Encoded:
            event.wait(10.0)
            return Encoded(array("q", [1]), 0)

    return Waiting()


# --- any source ---------------------------------------------------------------------------


async def test_what_comes_late_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WAIT_S_MAX", 0.01)
    source = Scripted()
    made, counts = made_service({"m": source})
    assert await ask(made, body()) is None
    assert (source.withdrawn, counts.causes) == (1, [Fallback.LATE])
    assert source.done is not None
    source.done(Encoded(array("q", [1]), 0))  # nobody hears it
    assert not counts.tokens


async def test_models_without_a_tokenizer_are_not_counted() -> None:
    made, counts = made_service({"m": Scripted()})
    assert await ask(made, body(), model="other") is None
    assert await ask(made, body(), model="") is None
    assert not counts.causes


async def test_an_adapter_is_tokenised_as_its_base(
    tokenizer: ModelTokenizer, workers: Workers
) -> None:
    card = ModelCard(ModelName("adapter"), parent=M)
    made, counts = made_service({"m": FolderSource(tokenizer, workers)}, card, ModelCard(M))
    for _ in range(2):
        assert await ask(made, body(), model="adapter") is not None
    assert len(counts.tokens) == 2


async def test_made_up_models_are_not_remembered_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "ADAPTERS_MAX", 10)
    made, _ = made_service({"m": Scripted()})
    for number in range(100):
        assert await ask(made, body(), model=f"made-up-{number}") is None
    assert len(made._adapters) <= 10
