"""Requests that come back here, because the address of an engine leads to the gateway itself."""

from tests.gateway.conftest import Rig, rig
from tests.support.upstreams import answer_ok, post

BODY = b'{"model":"m","prompt":"hello"}'
NOBODY = ("http://127.0.0.1:1",)


def lead(one: Rig, to: Rig) -> None:
    one.placer.urls = [f"http://127.0.0.1:{to.gateway.port}"]


async def test_a_gateway_that_is_its_own_engine_says_so_the_first_time() -> None:
    async with rig(urls=NOBODY) as it:
        lead(it, to=it)
        answer = await it.ask(post())
        assert (answer.status, answer.header("x-should-retry")) == (508, "false")
        assert b"leads back to this gateway" in answer.body
        assert len(it.placer.order) == 1


async def test_gateways_that_are_each_others_engines_pass_a_request_round_once() -> None:
    async with rig(urls=NOBODY) as one, rig(urls=NOBODY) as other:
        lead(one, to=other)
        lead(other, to=one)
        assert (await one.ask(post())).status == 508
        assert (len(one.placer.order), len(other.placer.order)) == (1, 1)


async def test_a_gateway_behind_another_serves() -> None:
    async with rig(urls=NOBODY) as front, rig(answer_ok) as behind:
        lead(front, to=behind)
        answer = await front.ask(post("/v1/completions", BODY, "Via: 1.0 proxy"))
        assert answer.status == 200
        assert behind.engine.served[0].head.count(b"\r\nvia: ") == 3
