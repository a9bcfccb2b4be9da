"""What holds on one route holds on all of them."""

import json

import pytest

from tests.gateway.conftest import rig
from tests.support.upstreams import OK_BODY, answer_ok, post

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/audio/speech": {"input": "hi"},
    "/v1/images/generations": {"prompt": "a cat"},
}
ROUTES = sorted(BODIES)
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


def body(path: str, **more: object) -> bytes:
    return json.dumps({"model": "m", **BODIES[path], **more}).encode()


@pytest.mark.parametrize("path", ROUTES)
async def test_the_clients_authorization_is_handed_on_by_every_route(path: str) -> None:
    """production-stack#733: it was forgotten on the audio routes."""
    async with rig(answer_ok) as it:
        answer = await it.ask(post(path, body(path), "Authorization: Bearer x"))
        assert (answer.status, answer.body) == (200, OK_BODY)
        assert it.engine.served[0].header("authorization") == "Bearer x"


@pytest.mark.parametrize("path", GENERATING)
async def test_a_session_is_found_in_every_body(path: str) -> None:
    """litellm#38078: the key was looked for in `messages` only, never beside an `input`."""
    async with rig(answer_ok) as it:
        await it.ask(post(path, body(path, prompt_cache_key="s-1")))
        await it.ask(post(path, body(path, prompt_cache_key="s-1"), "X-Pointsman-Session: s-2"))
        await it.ask(post(path, body(path)))
        sessions = [told.request.session for told in it.placer.order]
        assert sessions == ["s-1", "s-2", None], "who sets the header knows of this gateway"


@pytest.mark.parametrize("path", [p for p in ROUTES if "audio" not in p and "image" not in p])
async def test_a_prompt_is_found_in_every_body(path: str) -> None:
    """Affinity to a cached prefix works on each route, not only for chats."""
    async with rig(answer_ok) as it:
        await it.ask(post(path, body(path)))
        assert it.placer.order[0].request.prompt.text


@pytest.mark.parametrize("path", ROUTES)
async def test_every_route_asks_the_same_engines_byte_for_byte(path: str) -> None:
    """gpustack#6184: a model was listed, and its route answered 404."""
    async with rig(answer_ok) as it:
        sent = body(path, zzz=1)
        await it.ask(post(path, sent))
        assert (it.engine.served[0].target, it.engine.served[0].body) == (path, sent)
        assert it.placer.order[0].request.model == "m"
