"""Small prompts of the doctor's own: answered twice, streamed once, tokenised."""

import secrets
import time
from collections.abc import Callable
from itertools import cycle, islice

import aiohttp
import msgspec

from pointsman.collectors.client import ASK_PATH, EngineClient
from pointsman.control.doctor.seen import ProbeSeen, StreamSeen
from pointsman.decoding import decoded_or_none
from pointsman.engines.adapters import EngineTrouble
from pointsman.wire.answers import read_answer
from pointsman.wire.sse import SseScanner
from pointsman.wire.usage import Usage

ANSWER_S_MAX = 10.0

REPETITIONS_MAX = 2
"""A hit may be missed once on an engine that is short of memory, not twice."""

STREAM_TOKENS = 16

_BLOCKS = 4
_WORDS_MIN, _WORDS_MAX = 64, 768
_SENTENCE = "the train waits at the points until the way is set for it and then goes on"


def new_prompt(block_tokens: int | None, context_tokens: int | None) -> str:
    """A text that no cache holds, of a few blocks: a word is a token or two."""
    wanted = min(max(_BLOCKS * (block_tokens or 16), _WORDS_MIN), _WORDS_MAX)
    count = min(wanted, context_tokens // 4) if context_tokens else wanted
    words = islice(cycle(_SENTENCE.split()), count)
    return f"{secrets.token_hex(8)} {' '.join(words)}"


async def repeat(client: EngineClient, *, model: str, prompt: str) -> ProbeSeen:
    """The same prompt two or three times, one token each: until it is found cached."""
    usages: list[Usage] = []
    seconds: list[float] = []
    trouble, refused = "", False
    while len(usages) <= REPETITIONS_MAX and not (len(usages) > 1 and usages[-1].cached_tokens):
        begun_s = time.monotonic()
        try:
            usages.append(await once(client, model=model, prompt=prompt))
        except EngineTrouble as error:
            trouble, refused = str(error), isinstance(error, PromptRefused)
            break
        seconds.append(time.monotonic() - begun_s)
    return ProbeSeen(
        model=model,
        prompt=prompt,
        usages=tuple(usages),
        seconds_min=min(seconds, default=None),
        trouble=trouble,
        refused=refused,
    )


class PromptRefused(EngineTrouble):
    """The engine turns the prompt away, for good or for now, which is not a fault."""


async def once(client: EngineClient, *, model: str, prompt: str) -> Usage:
    """Ask for one token. Raises EngineTrouble, of which PromptRefused is one kind."""
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    reply = await client.post(ASK_PATH, body, timeout_s=ANSWER_S_MAX)
    if reply.status != 200:
        kind = PromptRefused if reply.status < 500 or reply.status == 503 else EngineTrouble
        raise kind(f"POST {ASK_PATH} answers {reply.status}: {error_of(reply.body)}")
    usage = read_answer(reply.body).usage
    if usage is None:
        raise EngineTrouble(f"POST {ASK_PATH} answers without usage")
    return usage


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


_decode_refusal = msgspec.json.Decoder(_Refusal).decode


def error_of(body: bytes) -> str:
    """An error's message, short enough for a line."""
    refusal = decoded_or_none(_decode_refusal, body) or _Refusal()
    return (refusal.error.message or body.decode(errors="replace"))[:200]


async def stream(client: EngineClient, *, model: str, prompt: str) -> StreamSeen:
    """A streamed answer of STREAM_TOKENS, and when its bytes came."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": STREAM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    begun_s = time.monotonic()
    try:
        async with client.streamed(ASK_PATH, body, timeout_s=ANSWER_S_MAX) as answer:
            if answer.status != 200:
                said = error_of(await answer.content.readany())
                return _no_stream(f"{answer.status} {said}")
            return await _follow(answer.content, lambda: time.monotonic() - begun_s)
    except EngineTrouble as trouble:
        return _no_stream(str(trouble))


def _no_stream(trouble: str) -> StreamSeen:
    return StreamSeen(events=0, first_s=0.0, last_s=0.0, trouble=trouble)


async def _follow(content: aiohttp.StreamReader, elapsed_s: Callable[[], float]) -> StreamSeen:
    scanner = SseScanner()
    first_s = last_s = 0.0
    async for chunk in content.iter_any():
        before = scanner.events
        scanner.feed(chunk)
        if scanner.events > before:
            last_s = elapsed_s()
            first_s = first_s or last_s
    error = scanner.close().error
    trouble = error.message if error is not None else ""
    return StreamSeen(events=scanner.events, first_s=first_s, last_s=last_s, trouble=trouble)
