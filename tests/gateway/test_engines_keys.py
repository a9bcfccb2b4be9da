"""Engines that ask for a key of their own: requests and warm-ups have it, and nothing else."""

import logging
from collections.abc import Callable

import pytest

from pointsman.core.blocks import Prompt
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway.observer import ReplayResult
from pointsman.gateway.options import GatewayOptions
from tests.gateway.conftest import rig
from tests.gateway.test_samples import HOT, effect, kept
from tests.support.upstreams import Behaviour, Served, answer_ok, closed_url, post, silent

KEY = "engines-own"
BODY = b'{"model":"m","prompt":"hello"}'


def guarded(key: str) -> Behaviour:
    """As vLLM with --api-key."""

    async def behave(served: Served) -> None:
        if served.header("authorization") == f"Bearer {key}":
            await answer_ok(served)
        else:
            await served.reply(401, b'{"error":"Unauthorized"}')

    return behave


@pytest.mark.parametrize("line", ["X-No: key", "Authorization: Bearer client's", "X-Api-Key: c"])
async def test_requests_have_the_engines_key_in_the_place_of_the_clients(line: str) -> None:
    keys = EngineKeys()
    async with rig(guarded(KEY), engine_keys=keys) as it:
        assert (await it.ask(post("/v1/completions", BODY, line))).status == 401
        keys.hold({it.engine.url: KEY})
        assert (await it.ask(post("/v1/completions", BODY, line))).status == 200
        served = it.engine.served[-1]
        assert served.head.lower().count(b"authorization:") == 1
        assert served.header("x-api-key") is None


async def test_an_engine_that_refuses_our_key_draws_no_requests() -> None:
    """It answers sooner than any that works."""
    keys = EngineKeys()
    async with rig(guarded(KEY), answer_ok, engine_keys=keys) as it:
        keys.hold({it.engines[0].url: "wrong"})
        statuses = {(await it.ask(post("/v1/completions", BODY))).status for _ in range(4)}
        assert it.engines[0].served, "it was never asked"
        assert statuses == {200}


@pytest.mark.parametrize(
    ("forwards", "key", "status"), [(False, "", 502), (True, "wrong", 502), (True, "", 401)]
)
async def test_a_client_hears_of_keys_only_if_it_is_its_own(
    forwards: bool, key: str, status: int
) -> None:
    keys = EngineKeys()
    options = GatewayOptions(forward_authorization=forwards)
    async with rig(guarded(KEY), engine_keys=keys, options=options) as it:
        keys.hold({it.engine.url: key})
        reply = await it.ask(post("/v1/completions", BODY))
        assert reply.status == status
        assert (b"Unauthorized" in reply.body) is (status == 401)


async def test_not_even_a_long_refusal_of_our_key_reaches_a_client() -> None:
    """Some say it back: 'Incorrect API key provided: …'."""

    async def says_it_back(served: Served) -> None:
        told = served.header("authorization") or ""
        await served.reply(401, told.encode() * 100_000)

    keys = EngineKeys()
    async with rig(says_it_back, engine_keys=keys) as it:
        keys.hold({it.engine.url: "wrong"})
        reply = await it.ask(post("/v1/completions", BODY))
        assert (reply.status, b"wrong" in reply.body) == (502, False)


async def test_another_engine_is_not_told() -> None:
    keys = EngineKeys()
    async with rig(answer_ok, answer_ok, engine_keys=keys) as it:
        keys.hold({it.engines[1].url: KEY})
        for _ in range(4):
            await it.ask(post("/v1/completions", BODY))
        for engine, seen in zip(it.engines, (None, f"Bearer {KEY}"), strict=True):
            assert {served.header("authorization") for served in engine.served} <= {seen}


@pytest.mark.parametrize(
    ("key", "result", "warning"),
    [
        (KEY, ReplayResult.COMPUTED, ""),
        ("wrong", ReplayResult.REFUSED, "refused 1 of the requests that were to warm it up, the"),
        ("", ReplayResult.REFUSED, "with 401: give its key, engines[].api_key"),
    ],
)
async def test_a_warm_up_has_the_key_and_a_refusal_is_seen(
    key: str, result: ReplayResult, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Prompt | None] = []
    keys = EngineKeys()
    with caplog.at_level(logging.WARNING):
        async with rig(guarded(KEY), samples=kept(), engine_keys=keys) as it:
            keys.hold({it.engine.url: key})
            it.gateway.warm_up(effect(it.engine.url, (HOT,), within_s=5.0), told.append)
            await it.until(lambda: None in told)
            assert it.records.replays == [result]
    assert len(told) == (2 if result is ReplayResult.COMPUTED else 1)
    assert warning in caplog.text
    assert bool(warning) is bool(caplog.records)
    assert key == "" or key not in caplog.text


@pytest.mark.parametrize(
    ("url", "result"),
    [(lambda url: url, ReplayResult.LATE), (lambda _: closed_url(), ReplayResult.LOST)],
)
async def test_replays_that_are_not_answered_are_told_apart(
    url: Callable[[str], str], result: ReplayResult
) -> None:
    told: list[Prompt | None] = []
    async with rig(silent, samples=kept()) as it:
        it.gateway.warm_up(effect(url(it.engine.url), (HOT,), within_s=0.1), told.append)
        await it.until(lambda: bool(told))
        assert it.records.replays == [result]
