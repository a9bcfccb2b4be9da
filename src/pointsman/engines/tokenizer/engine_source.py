"""Token ids from an engine's own `/tokenize`: exact whatever it does, for a round trip more.

vLLM takes a prompt, or messages with what its template needs; the simulated engine does, too.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec
from msgspec import Raw

from pointsman.core.ids import ModelName
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.tokenizer.chat import read_chat, read_text
from pointsman.engines.tokenizer.encoded import Encoded
from pointsman.engines.tokenizer.fallback import Fallback, Inexact
from pointsman.engines.tokenizer.source import INLINE_BYTES_MAX, Cancel, Outcome, unfit
from pointsman.wire.endpoints import Endpoint

ASKED_MAX = 64
"""Questions under way to all engines together; more go by their text."""

REPLY_BYTES_MAX = 16 * 1024 * 1024
ASK_S_MAX = 5.0
"""Bounds a question nobody waits for any more; `service` stops waiting earlier."""

log = logging.getLogger(__name__)

Urls = Callable[[ModelName], Sequence[str]]
"""The engines that are ready and serve a model."""


class EngineSource:
    """Asks the engines of a model in turn. `run` owns the questions; until it runs, and after
    it, there are no answers. `asked` counts those under way."""

    def __init__(self, urls: Urls, keys: EngineKeys | None = None) -> None:
        self._urls = urls
        self._keys = keys or EngineKeys()
        self._turn = 0
        self._session: aiohttp.ClientSession | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.asked = 0

    async def run(self) -> None:
        """Serve until cancelled."""
        connector = aiohttp.TCPConnector(limit=ASKED_MAX, keepalive_timeout=2.0)
        timeout = aiohttp.ClientTimeout(total=ASK_S_MAX)
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=timeout,
                middlewares=(self._keys.authorize,),
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            self._session, self._tasks = session, tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def tokenize(
        self, model: ModelName, endpoint: Endpoint, body: bytes, done: Callable[[Outcome], None]
    ) -> Cancel | None:
        """See `Source`."""
        urls = self._urls(model)
        refused = self._refused(endpoint, body, urls)
        if refused is not None or self._tasks is None:
            done(refused or Fallback.ENGINE)
            return None
        self._turn += 1
        url = f"{urls[self._turn % len(urls)]}/tokenize"
        self.asked += 1
        task = self._tasks.create_task(self._answer(url, model, endpoint, body, done))
        task.add_done_callback(self._answered)
        return task.cancel

    def _answered(self, _: asyncio.Task[None]) -> None:
        self.asked -= 1

    def _refused(self, endpoint: Endpoint, body: bytes, urls: Sequence[str]) -> Fallback | None:
        if (fallback := unfit(endpoint, body)) is not None:
            return fallback
        if self.asked >= ASKED_MAX:
            return Fallback.BUSY
        return None if urls else Fallback.ENGINE

    async def _answer(
        self,
        url: str,
        model: ModelName,
        endpoint: Endpoint,
        body: bytes,
        done: Callable[[Outcome], None],
    ) -> None:
        try:
            question = await _elsewhere(body, question_of, model, endpoint, body)
            reply = await self._ask(url, question)
            tokens = await _elsewhere(reply, _tokens, reply)
            # llama.cpp takes another body, and gives no tokens for one that it does not know.
            outcome: Outcome = Encoded(tokens, 0) if tokens else Fallback.ENGINE
        except Inexact as inexact:
            outcome = inexact.cause
        except RecursionError:  # nested too deeply, be it within a string
            outcome = Fallback.REFUSED
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, OverflowError):
            outcome = Fallback.ENGINE
        except Exception:  # a task's outermost frame: a bug must not end the group, and the process
            log.exception("an engine could not be asked for token ids")
            outcome = Fallback.FAILED
        done(outcome)

    async def _ask(self, url: str, question: bytes) -> bytes:
        assert self._session is not None, "asked before it runs"
        headers = {"content-type": "application/json"}
        async with self._session.post(
            url, data=question, headers=headers, allow_redirects=False
        ) as reply:
            if reply.status != 200:
                raise Inexact(Fallback.ENGINE, f"{url} answers {reply.status}")
            return await _read(reply.content)


async def _read(content: aiohttp.StreamReader) -> bytes:
    """The whole reply, which comes in pieces. Raises Inexact if it is too long."""
    data = bytearray()
    while piece := await content.readany():
        data += piece
        if len(data) > REPLY_BYTES_MAX:
            raise Inexact(Fallback.LARGE)
    return bytes(data)


async def _elsewhere(size: bytes, work: Callable[..., Any], *arguments: Any) -> Any:
    """`work` here if `size` is small, else in a thread."""
    if len(size) <= INLINE_BYTES_MAX:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


class _Asked(msgspec.Struct, omit_defaults=True):
    """What /tokenize takes of a client's body."""

    model: str = ""
    prompt: str | None = None
    messages: Raw = Raw()
    tools: Raw = Raw()
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    reasoning_effort: str | None = None


def question_of(model: ModelName, endpoint: Endpoint, body: bytes) -> bytes:
    """The body for /tokenize. Raises Inexact."""
    if endpoint is Endpoint.COMPLETIONS:
        text = read_text(body)
        asked = _Asked(model=model, prompt=text.text, add_special_tokens=text.special_tokens)
        return msgspec.json.encode(asked)
    read_chat(body, parts_stay=False, reads=frozenset())  # it says whether text is all there is
    asked = _decode_asked(body)
    asked.model = model
    if asked.reasoning_effort is not None:
        own = {"reasoning_effort": asked.reasoning_effort}
        asked.chat_template_kwargs = asked.chat_template_kwargs | own
        asked.reasoning_effort = None
    return msgspec.json.encode(asked)


class _Reply(msgspec.Struct):
    tokens: list[int]


def _tokens(reply: bytes) -> "array[int]":
    return array("q", _decode_reply(reply).tokens)


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_reply = msgspec.json.Decoder(_Reply).decode
