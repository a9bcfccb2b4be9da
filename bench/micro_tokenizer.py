"""Tokenising a conversation of 100,000 tokens that grows by 200 a turn.

python -m bench.micro_tokenizer

A byte-level BPE tokenizer is made on the spot. Goals: at most 5 ms of the event loop's time a
turn, and at most 30 ms from a body to its placement's block hashes. "loop" is CPU of the loop's
thread; "delay" is the longest that a callback due every millisecond had to wait meanwhile,
which is what other requests feel of the interpreter's lock.
"""

import argparse
import asyncio
import gc
import itertools
import json
import random
import statistics
import tempfile
import time
from array import array
from pathlib import Path

import uvloop

from bench.timing import median_us
from pointsman.core.blocks import Prompt
from pointsman.core.ids import ModelName
from pointsman.core.scheme import Namespace, Scheme, Unit
from pointsman.engines.tokenizer import (
    Fallback,
    FolderSource,
    ModelTokenizer,
    Pieces,
    TokenizerService,
    Workers,
    load,
)
from pointsman.engines.tokenizer import service as service_module
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.routing import routing_fields
from pointsman.wire.endpoints import Endpoint
from tests.support.tokenizers import word_list, words_tokenizer, write_folder

MODEL = ModelName("m")
PROMPT_TOKENS = 100_000
TURN_TOKENS = 200
BLOCK = Scheme(Unit.TOKENS, 16)
LATE_S = 30.0
SYSTEM_WORDS = 100
SMALL_WORDS = (20, 100, 200)
HEAD = RequestHead(b"POST", b"/v1/chat/completions", is_http_10=False, keep_alive=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--message-tokens", type=int, default=400, help="of the first messages")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), words_tokenizer())
        uvloop.run(measure(Path(folder), arguments.turns, arguments.message_tokens))


async def measure(folder: Path, turns: int, message_tokens: int) -> None:
    setattr(service_module, "WAIT_S_MAX", LATE_S)  # noqa: B010 - the first turn is measured, too
    workers = Workers()
    tokenizer = load(folder, Pieces(64 * 1024 * 1024))
    service = TokenizerService({MODEL: FolderSource(tokenizer, workers)}, list, _Uncounted())
    conversation = Conversation(message_tokens)
    gc.collect()
    gc.freeze()
    cold = await turn(service, conversation.body())
    warm = []
    for _ in range(turns):
        conversation.grow()
        warm.append(await turn(service, conversation.body()))
    await workers.close()
    print(f"{len(conversation.messages)} messages, {cold.tokens} tokens, body of {cold.kb:.0f} kB")
    print(f"first turn  {cold}")
    print(f"others, p50 {_middle(warm)}")
    print(f"others, max {_worst(warm)}")
    for words in SMALL_WORDS:
        small(tokenizer, words)


def small(tokenizer: ModelTokenizer, words: int) -> None:
    """A chat so small that it is done on the loop, at once; its question is always new."""
    rng, known = random.Random(5), word_list()
    system = " ".join(known[:SYSTEM_WORDS])
    bodies = []
    for _ in range(5_000):
        question = " ".join(rng.choices(known, k=words))
        contents = (("system", system), ("user", question))
        messages = [{"role": role, "content": content} for role, content in contents]
        bodies.append(json.dumps({"model": MODEL, "messages": messages}).encode())
    turn = itertools.cycle(bodies)
    warm_us = median_us(lambda: tokenizer.tokens(Endpoint.CHAT, next(turn)))
    kb = len(bodies[0]) / 1e3
    print(f"{kb:.1f} kB, {SYSTEM_WORDS + words} words, {words} of them new: {warm_us:.0f} us")


class Conversation:
    """Messages of made-up words, one token each."""

    def __init__(self, message_tokens: int) -> None:
        self._rng = random.Random(7)
        self._words = word_list()
        self.messages: list[dict[str, str]] = []
        for _ in range(PROMPT_TOKENS // message_tokens):
            self._say(message_tokens)

    def grow(self) -> None:
        self._say(TURN_TOKENS // 2)
        self._say(TURN_TOKENS // 2)

    def body(self) -> bytes:
        return json.dumps({"model": MODEL, "messages": self.messages}).encode()

    def _say(self, tokens: int) -> None:
        role = ("user", "assistant")[len(self.messages) % 2]
        text = " ".join(self._rng.choices(self._words, k=tokens))
        self.messages.append({"role": role, "content": text})


class Turn:
    """What one prompt cost, in ms; `tokens` it had."""

    def __init__(self, parts: dict[str, float], tokens: int, kb: float) -> None:
        self.parts, self.tokens, self.kb = parts, tokens, kb

    def __str__(self) -> str:
        return "  ".join(f"{name} {value:6.2f} ms" for name, value in self.parts.items())


async def turn(service: TokenizerService, body: bytes) -> Turn:
    """One prompt on its way through the gateway: read, tokenised, hashed."""
    loop = asyncio.get_running_loop()
    ids: asyncio.Future[array[int] | None] = loop.create_future()
    ticker = _Ticker(loop)
    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
    fields = routing_fields(Endpoint.CHAT, HEAD, body)
    read_s = time.perf_counter()
    service.tokenize(MODEL, Endpoint.CHAT, body, ids.set_result)
    tokens = await ids
    assert tokens is not None, "fell back"
    tokenised_s = time.perf_counter()
    prompt = Prompt(Namespace(MODEL), text=fields.prompt_text or b"", tokens=tokens)
    prompt.chain(BLOCK)
    end_s, end_cpu_s = time.perf_counter(), time.thread_time()
    parts = {
        "read": read_s - begin_s,
        "tokenised": tokenised_s - read_s,
        "hashed": end_s - tokenised_s,
        "all": end_s - begin_s,
        "loop": end_cpu_s - begin_cpu_s,
        "delay": ticker.stop(),
    }
    return Turn({k: v * 1e3 for k, v in parts.items()}, len(tokens), len(body) / 1e3)


class _Ticker:
    """The longest time by which a callback came late."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest_s = 0.0
        self._tick()

    def stop(self) -> float:
        self._handle.cancel()
        return self._longest_s

    def _tick(self) -> None:
        due_s = self._loop.time() + 0.001
        self._handle = self._loop.call_at(due_s, self._late, due_s)

    def _late(self, due_s: float) -> None:
        self._longest_s = max(self._longest_s, self._loop.time() - due_s)
        self._tick()


class _Uncounted:
    def tokenized(self, *, tokens: int, remembered: int, seconds: float) -> None:
        pass

    def fell_back(self, cause: Fallback) -> None:
        raise AssertionError(cause)


def _middle(turns: list[Turn]) -> Turn:
    return _summary(turns, statistics.median)


def _worst(turns: list[Turn]) -> Turn:
    return _summary(turns, max)


def _summary(turns: list[Turn], choose: object) -> Turn:
    assert callable(choose)
    parts = {name: choose([turn.parts[name] for turn in turns]) for name in turns[0].parts}
    return Turn(parts, turns[-1].tokens, turns[-1].kb)


if __name__ == "__main__":
    main()
