"""Between body and placement a prompt may be tokenised; whatever happens meanwhile, nothing
is placed twice, settled twice or left behind."""

from array import array
from collections.abc import Callable

import pytest

from pointsman.core.errors import EndCause
from pointsman.core.ids import ModelName
from pointsman.core.rules import Timeouts
from pointsman.core.scheme import Scheme, Unit
from pointsman.gateway import GatewayOptions
from pointsman.ports import TokensSink
from pointsman.wire.endpoints import Endpoint
from tests.gateway.conftest import rig
from tests.support.upstreams import answer_ok, post

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
TOKENS = array("q", range(32))


class ScriptedTokenizer:
    """Answers at once with `tokens` if `at_once`, else when told to."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self.asked: list[tuple[ModelName, Endpoint, bytes]] = []
        self.withdrawn = 0
        self._deliver: TokensSink | None = None

    def tokenize(
        self, model: ModelName, endpoint: Endpoint, body: bytes, deliver: TokensSink
    ) -> Callable[[], None] | None:
        self.asked.append((model, endpoint, body))
        if self.at_once:
            deliver(TOKENS)
            return None
        self._deliver = deliver
        return self._withdraw

    def deliver(self, tokens: "array[int] | None" = TOKENS) -> None:
        assert self._deliver is not None
        deliver, self._deliver = self._deliver, None
        deliver(tokens)

    def _withdraw(self) -> None:
        assert self._deliver is not None, "withdrawn after it was delivered"
        self.withdrawn += 1
        self._deliver = None


async def test_the_placer_gets_text_and_token_ids() -> None:
    tokenizer = ScriptedTokenizer(at_once=True)
    async with rig(answer_ok, tokenizer=tokenizer) as it:
        answer = await it.ask(post("/v1/chat/completions", CHAT))
        assert answer.status == 200
        assert tokenizer.asked == [("m", Endpoint.CHAT, CHAT)]
        prompt = it.placer.order[0].request.prompt
        assert prompt.token_count == 32
        assert prompt.text
        assert len(prompt.chain(Scheme(Unit.TOKENS, 16))) == 2


async def test_a_body_without_a_model_is_tokenised_as_the_one_that_it_means() -> None:
    tokenizer = ScriptedTokenizer(at_once=True)
    body = CHAT.replace(b'"model": "m", ', b"")
    async with rig(answer_ok, tokenizer=tokenizer) as it:
        assert (await it.ask(post("/v1/chat/completions", body))).status == 200
        assert tokenizer.asked == [("m", Endpoint.CHAT, body)]
        request = it.placer.order[0].request
        assert request.model == request.prompt.namespace.model == "m"


async def test_a_late_answer_places_then() -> None:
    tokenizer = ScriptedTokenizer()
    async with rig(answer_ok, tokenizer=tokenizer) as it:
        client = await it.connect()
        await client.send(post("/v1/chat/completions", CHAT))
        await it.until(lambda: bool(tokenizer.asked))
        assert not it.placer.order
        tokenizer.deliver()
        assert (await client.answer()).status == 200
        assert it.placer.order[0].request.prompt.token_count == 32
        assert tokenizer.withdrawn == 0


async def test_without_token_ids_the_text_goes_on() -> None:
    tokenizer = ScriptedTokenizer()
    async with rig(answer_ok, tokenizer=tokenizer) as it:
        client = await it.connect()
        await client.send(post("/v1/chat/completions", CHAT))
        await it.until(lambda: bool(tokenizer.asked))
        tokenizer.deliver(None)
        assert (await client.answer()).status == 200
        prompt = it.placer.order[0].request.prompt
        assert prompt.token_count is None
        assert prompt.text


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "prompt": [1, 2, 3]}',
        b'{"model": "m"}',
    ],
)
async def test_token_ids_and_no_prompt_at_all_need_no_tokenizer(body: bytes) -> None:
    tokenizer = ScriptedTokenizer()
    async with rig(answer_ok, tokenizer=tokenizer) as it:
        assert (await it.ask(post("/v1/completions", body))).status == 200
        assert not tokenizer.asked


async def test_a_client_that_leaves_meanwhile_withdraws_its_prompt() -> None:
    tokenizer = ScriptedTokenizer()
    async with rig(answer_ok, tokenizer=tokenizer) as it:
        client = await it.connect()
        await client.send(post("/v1/chat/completions", CHAT))
        await it.until(lambda: bool(tokenizer.asked))
        client.leave()
        await it.until(lambda: bool(it.records.ended))
        assert it.records.ended[0].end is EndCause.CLIENT_GONE
        assert tokenizer.withdrawn == 1
        assert not it.placer.order


async def test_a_deadline_that_passes_meanwhile_withdraws_it() -> None:
    tokenizer = ScriptedTokenizer()
    options = GatewayOptions(sweep_s=0.02, timeouts=Timeouts(total_s=0.1))
    async with rig(answer_ok, tokenizer=tokenizer, options=options) as it:
        answer = await it.ask(post("/v1/chat/completions", CHAT))
        assert answer.status == 504
        assert tokenizer.withdrawn == 1
        assert not it.placer.order


async def test_the_end_of_a_drain_withdraws_it() -> None:
    tokenizer = ScriptedTokenizer()
    options = GatewayOptions(sweep_s=0.02, drain_s=0.05)
    async with rig(answer_ok, tokenizer=tokenizer, options=options) as it:
        client = await it.connect()
        await client.send(post("/v1/chat/completions", CHAT))
        await it.until(lambda: bool(tokenizer.asked))
        assert await it.gateway.drain() == 1
        assert (await client.answer()).status == 503
        assert tokenizer.withdrawn == 1
        assert not it.placer.order


async def test_a_placer_that_fails_after_it_costs_one_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = ScriptedTokenizer()
    async with rig(answer_ok, tokenizer=tokenizer) as it:
        client = await it.connect()
        await client.send(post("/v1/chat/completions", CHAT))
        await it.until(lambda: bool(tokenizer.asked))

        def fail() -> None:
            raise RuntimeError("a bug of the placer's")

        it.placer.before_verdict = fail
        tokenizer.deliver()
        assert (await client.answer()).status == 500
    assert "a bug of the placer's" in caplog.text
