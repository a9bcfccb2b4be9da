"""An engine is asked for the ids of a prompt; whatever it answers, there is one outcome."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from pointsman.core.ids import ModelName
from pointsman.engines.simulated.tokenizer import encode
from pointsman.engines.tokenizer import EngineSource, Fallback, engine_source
from pointsman.engines.tokenizer.engine_source import question_of
from pointsman.engines.tokenizer.fallback import Inexact
from pointsman.engines.tokenizer.source import BODY_BYTES_MAX, Outcome
from pointsman.wire.endpoints import Endpoint
from tests.support.engines import running_engine
from tests.support.waiting import eventually

M = ModelName("sim")
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def running(*urls: str) -> AsyncIterator[EngineSource]:
    source = EngineSource(lambda model: urls if model == M else ())
    task = asyncio.create_task(source.run())  # awaited below
    await asyncio.sleep(0)
    try:
        yield source
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.asked == 0


@asynccontextmanager
async def answering(reply: Callable[[], web.Response]) -> AsyncIterator[str]:
    """An engine that answers so; its URL."""

    async def tokenize(_: web.Request) -> web.Response:
        return reply()

    application = web.Application()
    application.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def ask(
    source: EngineSource,
    body: dict[str, Any] | bytes,
    endpoint: Endpoint = Endpoint.CHAT,
    model: str = M,
) -> Outcome:
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    source.tokenize(ModelName(model), endpoint, data, outcome.set_result)
    return await outcome


async def test_the_engine_itself_says_the_ids() -> None:
    async with running_engine() as engine, running(engine.url) as source:
        outcome = await ask(source, {"model": "sim", "prompt": "hi there"}, Endpoint.COMPLETIONS)
        assert not isinstance(outcome, Fallback)
        assert list(outcome.tokens) == list(encode("hi there"))
        chat = await ask(source, CHAT)
        assert not isinstance(chat, Fallback)
        long = {**CHAT, "messages": [{"role": "user", "content": "a b " * 4_000}]}
        longer = await ask(source, long)
        assert not isinstance(longer, Fallback)
        assert len(longer.tokens) > 4_000 > len(chat.tokens)


@pytest.mark.parametrize(
    "reply",
    [
        lambda: web.Response(status=404),
        lambda: web.Response(body=b"{}"),
        lambda: web.Response(body=b"no json"),
        lambda: web.Response(body=b'{"tokens": []}'),
        lambda: web.Response(body=b'{"tokens": [36893488147419103232]}'),
        lambda: web.Response(body=b'{"tokens": ["a"]}'),
    ],
)
async def test_anything_else_is_no_answer(reply: Callable[[], web.Response]) -> None:
    async with answering(reply) as url, running(url) as source:
        assert await ask(source, CHAT) is Fallback.ENGINE


def nested() -> dict[str, Any]:
    """JSON within a string, deeper than anybody can read it."""
    call = {"type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    return {**CHAT, "messages": [{"role": "assistant", "tool_calls": [call]}]}


async def test_a_body_that_is_nested_too_deeply_is_refused_alone() -> None:
    async with running_engine() as engine, running(engine.url) as source:
        assert await ask(source, nested()) is Fallback.REFUSED
        assert not isinstance(await ask(source, CHAT), Fallback)


async def test_a_bug_ends_one_question(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_source, "question_of", lambda *_: 1 / 0)
    async with running("http://127.0.0.1:1") as source:
        assert await ask(source, CHAT) is Fallback.FAILED
    assert "ZeroDivisionError" in caplog.text


async def test_a_prompt_goes_to_nobody_whom_the_engine_names() -> None:
    def elsewhere() -> web.Response:
        return web.Response(status=307, headers={"Location": f"{engine.url}/tokenize"})

    async with (
        running_engine() as engine,
        answering(elsewhere) as url,
        running(url) as source,
    ):
        assert await ask(source, CHAT) is Fallback.ENGINE


async def test_a_long_answer_comes_in_pieces() -> None:
    ids = list(range(300_000))
    body = json.dumps({"tokens": ids}).encode()
    async with answering(lambda: web.Response(body=body)) as url, running(url) as source:
        outcome = await ask(source, CHAT)
        assert not isinstance(outcome, Fallback)
        assert list(outcome.tokens) == ids


async def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_source, "REPLY_BYTES_MAX", 100)
    async with answering(lambda: web.Response(body=bytes(100_000))) as url, running(url) as source:
        assert await ask(source, CHAT) is Fallback.LARGE


async def test_engines_that_are_not_there() -> None:
    async with running("http://127.0.0.1:1") as source:
        assert await ask(source, CHAT) is Fallback.ENGINE
        assert await ask(source, CHAT, model="unknown") is Fallback.ENGINE


async def test_before_it_runs_there_is_no_answer() -> None:
    assert await ask(EngineSource(lambda _: ["http://127.0.0.1:1"]), CHAT) is Fallback.ENGINE


async def test_what_needs_no_question() -> None:
    async with running("http://127.0.0.1:1") as source:
        assert await ask(source, CHAT, Endpoint.RESPONSES) is Fallback.ENDPOINT
        assert await ask(source, bytes(BODY_BYTES_MAX + 1)) is Fallback.LARGE
        image = [{"type": "image_url", "image_url": {"url": "data:"}}]
        media = {**CHAT, "messages": [{"role": "user", "content": image}]}
        assert await ask(source, media) is Fallback.MEDIA


async def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_source, "ASKED_MAX", 1)
    async with running_engine() as engine, running(engine.url) as source:
        first, second = await asyncio.gather(ask(source, CHAT), ask(source, CHAT))
        assert not isinstance(first, Fallback)
        assert second is Fallback.BUSY


async def test_a_question_is_withdrawn() -> None:
    told: list[Outcome] = []
    async with running_engine() as engine, running(engine.url) as source:
        withdraw = source.tokenize(M, Endpoint.CHAT, json.dumps(CHAT).encode(), told.append)
        assert withdraw is not None
        withdraw()
        await eventually(lambda: not source.asked)
        assert not told


def test_a_question_has_what_the_template_needs() -> None:
    body = {
        **CHAT,
        "stream": True,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
        "add_generation_prompt": False,
    }
    question = json.loads(
        question_of(ModelName("adapter"), Endpoint.CHAT, json.dumps(body).encode())
    )
    assert question == {
        "model": "adapter",
        "messages": CHAT["messages"],
        "tools": body["tools"],
        "chat_template_kwargs": {"a": 1, "reasoning_effort": "low"},
        "add_generation_prompt": False,
    }
    completion = json.dumps({"prompt": ["a", "b"]}).encode()
    assert json.loads(question_of(M, Endpoint.COMPLETIONS, completion)) == {
        "model": "sim",
        "prompt": "a",
        "add_special_tokens": True,
    }
    with pytest.raises(Inexact):
        question_of(M, Endpoint.CHAT, b'{"messages": "none"}')


def test_ids_are_64_bits() -> None:
    assert engine_source._tokens(b'{"tokens": [1, 4294967295]}') == array("q", [1, 4294967295])
