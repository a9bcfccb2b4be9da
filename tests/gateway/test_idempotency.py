"""Idempotency keys: of one client's requests under one key one runs, and never two."""

import asyncio
import json

import pytest

from pointsman.core.admission.key_rules import KeyLimits, KeyRules
from pointsman.core.errors import EndCause, Reason
from pointsman.gateway import ApiKey, GatewayOptions, key_digest
from tests.gateway.conftest import Rig, rig
from tests.support.upstreams import (
    OK_BODY,
    STREAM,
    Behaviour,
    Client,
    Served,
    answer_ok,
    post,
    silent,
)

KEY = "Idempotency-Key: 4f1c-9d"
BODY = b'{"model":"m","prompt":"hello"}'


def first_hangs(how: Behaviour) -> Behaviour:
    """The first request is answered by `how`, the others are answered."""
    came = []

    async def answer(served: Served) -> None:
        came.append(served)
        await (how if len(came) == 1 else answer_ok)(served)

    return answer


async def begun(served: Served) -> None:
    await served.begin_stream()
    await served.chunk(b'data: {"choices":[]}\n\n')
    await served.until_closed()


async def send(it: Rig, data: bytes) -> Client:
    client = await it.connect()
    await client.send(data)
    return client


async def test_the_newer_replaces_the_older_whose_engine_stops() -> None:
    async with rig(first_hangs(silent)) as it:
        older = await send(it, post("/v1/completions", BODY, KEY))
        await it.until(lambda: len(it.engine.served) == 1)
        newer = await it.ask(post("/v1/completions", BODY, KEY))
        assert (newer.status, newer.body) == (200, OK_BODY)
        told = await older.answer()
        assert (told.status, told.header("x-pointsman-reason")) == (409, "superseded")
        assert told.header("x-should-retry") == "false"
        await it.until(lambda: it.engine.open == 1)
        ends = [outcome.end for outcome in it.placer.outcomes]
        assert ends == [EndCause.REFUSED, EndCause.FINISHED]


async def test_a_stream_that_has_begun_breaks_off_with_an_error_event() -> None:
    async with rig(first_hangs(begun)) as it:
        older = await send(it, post("/v1/completions", STREAM, KEY))
        await it.until(lambda: bool(it.placer.order and it.placer.order[0].started))
        assert (await it.ask(post("/v1/completions", STREAM, KEY))).status == 200
        told = await older.answer()
        assert b'"superseded"' in told.body
        assert told.body.endswith(b"data: [DONE]\n\n")


async def test_who_waits_in_the_queue_leaves_it() -> None:
    async with rig(answer_ok) as it:
        it.placer.hold = True
        older = await send(it, post("/v1/completions", BODY, KEY))
        await it.until(lambda: len(it.placer.order) == 1)
        it.placer.hold = False
        assert (await it.ask(post("/v1/completions", BODY, KEY))).status == 200
        assert (await older.answer()).status == 409
        assert len(it.engine.served) == 1


async def test_another_body_under_the_key_of_a_running_request_is_a_conflict() -> None:
    async with rig(first_hangs(silent)) as it:
        older = await send(it, post("/v1/completions", BODY, KEY))
        await it.until(lambda: len(it.engine.served) == 1)
        for path, body in (
            ("/v1/completions", BODY.replace(b"hello", b"world")),
            ("/v1/embeddings", BODY),
        ):
            answer = await it.ask(post(path, body, KEY))
            assert (answer.status, answer.header("x-should-retry")) == (422, "false")
            error = json.loads(answer.body)["error"]
            assert error["code"] == "idempotency_conflict"
            assert "Idempotency-Key" in error["message"]
        assert len(it.engine.served) == 1
        older.leave()
        await it.until(lambda: bool(it.placer.outcomes))
        assert it.placer.outcomes[0].end is EndCause.CLIENT_GONE


async def test_nothing_is_remembered_of_what_is_over() -> None:
    async with rig(answer_ok) as it:
        for body in (BODY, BODY, BODY.replace(b"hello", b"world")):
            assert (await it.ask(post("/v1/completions", body, KEY))).status == 200
        assert len(it.engine.served) == 3


async def test_without_the_header_equal_requests_run_beside_each_other() -> None:
    async with rig(first_hangs(silent)) as it:
        older = await send(it, post())
        await it.until(lambda: len(it.engine.served) == 1)
        assert (await it.ask(post())).status == 200
        assert not it.placer.order[0].settled
        older.leave()


async def test_keys_of_different_clients_have_nothing_to_do_with_each_other() -> None:
    names = ("team-a", "team-b")
    keys = tuple(ApiKey(key_digest(n.encode()), KeyRules(name=n)) for n in names)
    async with rig(first_hangs(silent), options=GatewayOptions(sweep_s=0.02, keys=keys)) as it:
        lines = [f"Authorization: Bearer {name}" for name in names]
        older = await send(it, post("/v1/completions", BODY, KEY, lines[0]))
        await it.until(lambda: len(it.engine.served) == 1)
        assert (await it.ask(post("/v1/completions", BODY, KEY, lines[1]))).status == 200
        assert not it.placer.order[0].settled
        older.leave()


async def test_the_place_that_the_older_had_under_its_key_is_the_newers() -> None:
    rules = KeyRules(name="team-a", limits=KeyLimits(concurrency_max=1))
    options = GatewayOptions(sweep_s=0.02, keys=(ApiKey(key_digest(b"secret"), rules),))
    async with rig(first_hangs(silent), options=options) as it:
        data = post("/v1/completions", BODY, KEY, "Authorization: Bearer secret")
        older = await send(it, data)
        await it.until(lambda: len(it.engine.served) == 1)
        assert (await it.ask(data)).status == 200
        assert (await older.answer()).status == 409
        assert it.gateway.key_states()[0].quota.inflight == 0


async def test_a_repeat_that_its_key_does_not_let_in_replaces_nothing() -> None:
    rules = KeyRules(name="team-a", limits=KeyLimits(requests_per_minute=1))
    options = GatewayOptions(sweep_s=0.02, keys=(ApiKey(key_digest(b"secret"), rules),))
    go_on = asyncio.Event()

    async def slow(served: Served) -> None:
        await go_on.wait()
        await answer_ok(served)

    async with rig(slow, options=options) as it:
        data = post("/v1/completions", BODY, KEY, "Authorization: Bearer secret")
        older = await send(it, data)
        await it.until(lambda: len(it.engine.served) == 1)
        assert (await it.ask(data)).status == 429
        go_on.set()
        assert (await older.answer()).status == 200


async def test_a_repeat_that_the_scheduler_refuses_replaces_nothing() -> None:
    go_on = asyncio.Event()

    async def slow(served: Served) -> None:
        await go_on.wait()
        await answer_ok(served)

    async with rig(slow) as it:
        older = await send(it, post("/v1/completions", BODY, KEY))
        await it.until(lambda: len(it.engine.served) == 1)
        it.placer.reason = Reason.QUEUE_FULL
        assert (await it.ask(post("/v1/completions", BODY, KEY))).status == 429
        go_on.set()
        assert (await older.answer()).status == 200


async def test_a_repeat_that_is_held_has_replaced_the_older() -> None:
    async with rig(first_hangs(silent)) as it:
        older = await send(it, post("/v1/completions", BODY, KEY))
        await it.until(lambda: len(it.engine.served) == 1)
        it.placer.hold = True
        newer = await send(it, post("/v1/completions", BODY, KEY))
        assert (await older.answer()).status == 409
        it.placer.place_held()
        assert (await newer.answer()).status == 200


async def test_many_repeats_at_once_end_with_one_answer() -> None:
    async def slow(served: Served) -> None:
        await asyncio.sleep(0.05)
        await answer_ok(served)

    async with rig(slow) as it:
        data = post("/v1/completions", BODY, KEY)
        answers = await asyncio.gather(*(it.ask(data) for _ in range(20)))
        assert sorted(answer.status for answer in answers) == [200] + [409] * 19


@pytest.mark.parametrize("length", [255, 256])
async def test_a_key_is_bounded(length: int) -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(post("/v1/completions", BODY, "Idempotency-Key: " + "k" * length))
        assert answer.status == (200 if length == 255 else 400)
        if length > 255:
            assert json.loads(answer.body)["error"]["param"] == "Idempotency-Key"


async def test_engines_do_not_get_the_header() -> None:
    """Another attempt of ours must not look like a repeat to them."""
    async with rig(answer_ok) as it:
        await it.ask(post("/v1/completions", BODY, KEY))
        assert it.engine.served[0].header("idempotency-key") is None
