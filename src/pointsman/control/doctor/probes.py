"""Small prompts of the doctor's own: answered twice, streamed once, tokenised."""

import asyncio
import secrets
import time
from collections.abc import Callable
from itertools import cycle, islice

import aiohttp
import msgspec

from pointsman.control.doctor.seen import ProbeSeen, StreamSeen
from pointsman.engines.adapters import EngineReply, EngineTrouble
from pointsman.engines.adapters.address import rank_headers, server_of
from pointsman.wire.answers import read_answer
from pointsman.wire.sse import SseScanner
from pointsman.wire.usage import Usage

ANSWER_S_MAX = 10.0
ANSWER_BYTES_MAX = 1024 * 1024

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


async def post(
    session: aiohttp.ClientSession,
    base: str,
    path: str,
    body: object,
    *,
    timeout_s: float = ANSWER_S_MAX,
) -> EngineReply:
    """Send, and return the answer, whatever its status. Raises EngineTrouble."""
    data = msgspec.json.encode(body)
    url, headers = server_of(base) + path, {"Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(
                url, data=data, headers=headers | rank_headers(base), allow_redirects=False
            ) as reply,
        ):
            return EngineReply(reply.status, await reply.content.read(ANSWER_BYTES_MAX))
    except TimeoutError:
        raise EngineTrouble(f"no answer within {timeout_s:g} s", timed_out=True) from None
    except (aiohttp.ClientError, OSError) as error:
        raise EngineTrouble(str(error) or type(error).__name__) from None


async def repeat(
    session: aiohttp.ClientSession, base: str, *, model: str, prompt: str
) -> ProbeSeen:
    """The same prompt two or three times, one token each: until it is found cached."""
    usages: list[Usage] = []
    seconds: list[float] = []
    trouble, refused = "", False
    while len(usages) <= REPETITIONS_MAX and not (len(usages) > 1 and usages[-1].cached_tokens):
        begun_s = time.monotonic()
        try:
            usages.append(await once(session, base, model=model, prompt=prompt))
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


async def once(session: aiohttp.ClientSession, base: str, *, model: str, prompt: str) -> Usage:
    """Ask for one token. Raises EngineTrouble, of which PromptRefused is one kind."""
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    reply = await post(session, base, "/v1/completions", body)
    if reply.status != 200:
        kind = PromptRefused if reply.status < 500 or reply.status == 503 else EngineTrouble
        raise kind(f"POST /v1/completions answers {reply.status}: {error_of(reply.body)}")
    usage = read_answer(reply.body).usage
    if usage is None:
        raise EngineTrouble("POST /v1/completions answers without usage")
    return usage


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def error_of(body: bytes) -> str:
    """An error's message, short enough for a line."""
    try:
        message = msgspec.json.decode(body, type=_Refusal).error.message
    except (msgspec.DecodeError, RecursionError):
        message = ""
    return (message or body.decode(errors="replace"))[:200]


async def stream(
    session: aiohttp.ClientSession, base: str, *, model: str, prompt: str
) -> StreamSeen:
    """A streamed answer of STREAM_TOKENS, and when its bytes came."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": STREAM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    url, headers = f"{server_of(base)}/v1/completions", rank_headers(base)
    begun_s = time.monotonic()
    try:
        async with (
            asyncio.timeout(ANSWER_S_MAX),
            session.post(url, json=body, headers=headers, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                body_read = await reply.content.read(ANSWER_BYTES_MAX)
                return _no_stream(f"{reply.status} {error_of(body_read)}")
            return await _follow(reply.content, lambda: time.monotonic() - begun_s)
    except TimeoutError:
        return _no_stream(f"no end within {ANSWER_S_MAX:g} s")
    except (aiohttp.ClientError, OSError) as error:
        return _no_stream(str(error) or type(error).__name__)


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
