"""Keys: who comes in, what each may do, and that every slot comes back on every way out."""

import asyncio
import gzip
import hmac
import json
import logging
from typing import Any

import pytest

from pointsman.core.admission.key_rules import KeyLimits, KeyRules
from pointsman.core.errors import EndCause, Reason
from pointsman.core.limits import PRIORITY_MAX
from pointsman.gateway import ApiKey, GatewayOptions, key_digest
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.keys import KeyRing, duration
from tests.gateway.conftest import Rig, rig
from tests.support.upstreams import (
    OK_BODY,
    STREAM,
    Received,
    Served,
    answer_ok,
    closed_url,
    get,
    post,
)

SECRET = "pm-the-key-of-team-a"
BEARER = f"Authorization: Bearer {SECRET}"
PATH = "/v1/completions"
BODY = b'{"model":"m","prompt":"hello"}'
HEADERS = [f"x-ratelimit-{n}-{of}" for of in ("requests", "tokens") for n in ("limit", "remaining")]


def guarded(
    limits: KeyLimits | None = None, *, forward: bool | None = None, **rules: Any
) -> GatewayOptions:
    """A gateway that knows one key."""
    made = KeyRules(name="team-a", limits=limits or KeyLimits(), **rules)
    key = ApiKey(key_digest(SECRET.encode()), made)
    return GatewayOptions(sweep_s=0.02, keys=(key,), forward_authorization=forward)


async def ask(it: Rig, body: bytes = BODY, *lines: str, path: str = PATH) -> Received:
    return await it.ask(post(path, body, BEARER, *lines))


def code(answer: Received) -> str:
    return str(json.loads(answer.body)["error"]["code"])


def inflight(it: Rig) -> int:
    return it.gateway.key_states()[0].quota.inflight


# --- who comes in -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [BEARER, f"authorization: bearer {SECRET}", f"X-Api-Key: {SECRET}"]
)
async def test_a_key_is_taken_as_openais_and_anthropics_clients_send_it(line: str) -> None:
    async with rig(answer_ok, options=guarded()) as it:
        assert (await it.ask(post(PATH, BODY, line))).status == 200
        served = it.engine.served[0]
        assert SECRET.encode() not in served.head


@pytest.mark.parametrize(
    "line",
    [
        "X-No: key",
        "Authorization: Bearer ",
        f"Authorization: Bearer {SECRET}x",
        f"Authorization: Bearer {SECRET[:-1]}",
        f"Authorization: Basic {SECRET}",
        "Authorization: Bearer " + "00" * 32,
        "X-Api-Key: ",
    ],
)
async def test_a_stranger_is_refused_in_openais_shape_and_reaches_nobody(line: str) -> None:
    async with rig(answer_ok, options=guarded()) as it:
        answer = await it.ask(post(PATH, BODY, line))
        assert (answer.status, code(answer)) == (401, "invalid_api_key")
        assert answer.header("x-pointsman-reason") == "unauthorized"
        assert it.placer.order == []
        assert it.records.refused == [Reason.UNAUTHORIZED]


def test_an_empty_key_is_no_key() -> None:
    ring = KeyRing()
    ring.hold([ApiKey(key_digest(b""))], 0.0)
    assert ring.find(RequestHead(b"GET", b"/", is_http_10=True, keep_alive=False)) is None


@pytest.mark.parametrize(
    "line",
    [
        "Content-Length: 30000000",
        "Transfer-Encoding: chunked",
        "Content-Length: 9\r\nExpect: 100-continue",
    ],
)
async def test_a_strangers_body_is_not_read(line: str) -> None:
    async with rig(answer_ok, options=guarded()) as it:
        client = await it.connect()
        await client.send(f"POST {PATH} HTTP/1.1\r\nHost: g\r\n{line}\r\n\r\n".encode())
        answer = await client.answer()
        assert (answer.status, code(answer)) == (401, "invalid_api_key")
        assert await client.closed()
        assert it.gateway.state().bodies_bytes == 0


async def test_a_large_body_with_a_key_is_read() -> None:
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 200_000)
    async with rig(answer_ok, options=guarded()) as it:
        assert (await ask(it, body)).status == 200
        assert it.records.ended[0].key == "team-a"


async def test_health_and_readiness_need_no_key() -> None:
    async with rig(answer_ok, options=guarded()) as it:
        for path, status in (("/health", 200), ("/ready", 200), ("/v1/models", 401)):
            assert (await it.ask(get(path))).status == status
        assert (await it.ask(get("/nothing"))).status == 401


@pytest.mark.parametrize(("forward", "seen"), [(None, None), (False, None), (True, SECRET)])
async def test_a_key_goes_on_to_the_engine_only_where_that_is_said(
    forward: bool | None, seen: str | None
) -> None:
    async with rig(answer_ok, options=guarded(forward=forward)) as it:
        await it.ask(post(PATH, BODY, f"X-Api-Key: {SECRET}"))
        assert it.engine.served[0].header("x-api-key") == seen


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known or not: one digest, one comparison of two digests."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = KeyRing()
    ring.hold(guarded().keys, 0.0)
    found = []
    for sent in (SECRET.encode(), b"wrong", b""):
        head = RequestHead(b"GET", b"/", is_http_10=True, keep_alive=False)
        head.read([(b"authorization", b"Bearer " + sent)])
        found.append(ring.find(head))
    assert [key is not None for key in found] == [True, False, False]
    assert [(len(left), len(right)) for left, right in compared] == [(32, 32)] * 3


# --- what it may do -----------------------------------------------------------------------


async def test_a_model_that_is_not_the_keys_is_403() -> None:
    async with rig(answer_ok, options=guarded(models=("other",))) as it:
        for body in (BODY, b'{"prompt":"the only model there is"}'):
            answer = await ask(it, body)
            assert (answer.status, code(answer)) == (403, "model_not_allowed")
        assert it.placer.order == []
        assert inflight(it) == 0
    async with rig(answer_ok, options=guarded(models=("m",))) as it:
        for body in (BODY, b'{"prompt":"the only model there is"}'):
            assert (await ask(it, body)).status == 200


@pytest.mark.parametrize(("models", "listed"), [((), ["m"]), (("m",), ["m"]), (("other",), [])])
async def test_a_key_sees_the_models_that_it_may_use(
    models: tuple[str, ...], listed: list[str]
) -> None:
    async with rig(answer_ok, options=guarded(models=models)) as it:
        answer = await it.ask(get("/v1/models", BEARER))
        assert [card["id"] for card in json.loads(answer.body)["data"]] == listed
        one = await it.ask(get("/v1/models/m", BEARER))
        assert one.status == (200 if listed else 404)


@pytest.mark.parametrize(
    ("body", "lines", "priority"),
    [
        (BODY, (), -10),
        (BODY, ("X-Pointsman-Priority: high",), -10),
        (BODY, ("X-Pointsman-Priority: -50",), -50),
        (b'{"model":"m","prompt":"x","service_tier":"priority"}', (), -10),
        (b'{"model":"m","prompt":"x","priority":20}', (), -20),
        (b'{"model":"m","prompt":"x","priority":20}', ("X-Vllm-Priority: 30",), -30),
        (BODY, ("X-Vllm-Priority: 5",), -10),
    ],
)
async def test_a_priority_is_lowered_to_the_keys_ceiling(
    body: bytes, lines: tuple[str, ...], priority: int
) -> None:
    async with rig(answer_ok, options=guarded(priority_max=-10)) as it:
        assert (await ask(it, body, *lines)).status == 200
        assert it.placer.order[0].request.priority == priority


@pytest.mark.parametrize("line", ["X-Pointsman-Priority: 0", "X-Vllm-Priority: 5", "X-No: hint"])
@pytest.mark.parametrize(
    "field",
    [
        b'"priority":-5',
        b'"priority":"-5"',
        b'"priority":-5.0',
        b'"priority":5,"priority":-5',
        b'"\\u0070riority":-5',
    ],
)
async def test_a_body_that_would_jump_the_engines_queue_is_refused(field: bytes, line: str) -> None:
    """Some engines read the field and no header, and bodies are not rewritten."""
    async with rig(answer_ok, options=guarded(priority_max=0)) as it:
        answer = await ask(it, b'{"model":"m","prompt":"x",%b}' % field, line)
        assert (answer.status, code(answer)) == (403, "priority_not_allowed")
        assert "'priority' of 0 or more" in answer.body.decode()


@pytest.mark.parametrize(("priority_max", "status"), [(PRIORITY_MAX, 200), (PRIORITY_MAX - 1, 403)])
async def test_a_body_may_be_as_urgent_as_engines_count_where_no_ceiling_is_set(
    priority_max: int, status: int
) -> None:
    """They count further than we do: to some, a priority is a deadline."""
    async with rig(answer_ok, options=guarded(priority_max=priority_max)) as it:
        assert (await ask(it, b'{"model":"m","prompt":"x","priority":-1000}')).status == status


TIER = b'{"model":"m","prompt":"x","service_tier":"priority"}'
LATE = b'{"model":"m","prompt":"x","priority":5}'


@pytest.mark.parametrize(
    ("body", "line", "vllm", "front"),
    [
        (BODY, "X-No: hint", None, None),
        (LATE, "X-No: hint", None, None),
        (BODY, "X-Pointsman-Priority: low", "10", "-10"),
        (LATE, "X-Pointsman-Priority: -5", None, None),
        (LATE, "X-Pointsman-Priority: normal", "0", "0"),
        (BODY, "X-Pointsman-Priority: high", None, None),
        (LATE, "X-Pointsman-Priority: high", "0", "0"),
        (TIER, "X-No: hint", None, "0"),
        (TIER, "X-Pointsman-Priority: low", "10", "-10"),
        (b'{"model":"m","prompt":"x","service_tier":"flex"}', "X-No: hint", "10", None),
        (BODY, "X-Vllm-Priority: -5", None, None),
        (BODY, "X-Vllm-Priority: 5", "5", "-5"),
        (LATE, "X-Vllm-Priority: -5", "0", "0"),
        (BODY, "X-Vllm-Priority: 5\r\nX-Pointsman-Priority: high", None, None),
        # Hostile heads: twice, by another case, as hop-by-hop, as no two parsers read it.
        (LATE, "x-vllm-priority: -5\r\nX-VLLM-PRIORITY: -9", "0", "0"),
        (TIER, "x-pointsman-priority: low\r\nX-POINTSMAN-PRIORITY: high", None, "0"),
        (LATE, "Connection: x-vllm-priority\r\nX-Vllm-Priority: -5", "0", "0"),
        (TIER, "Connection: x-pointsman-priority\r\nX-Pointsman-Priority: high", None, "0"),
        (BODY, "X-Vllm-Priority: soon", None, None),
        (BODY, "X-Vllm-Priority: -1_0", None, None),
        (BODY, "X-Vllm-Priority: \xa0-5", None, None),
    ],
)
async def test_engines_and_fronts_are_told_what_the_ceiling_left(
    body: bytes, line: str, vllm: str | None, front: str | None
) -> None:
    """By header, where the body says another; nothing of what the client's head says goes on."""
    async with rig(answer_ok, options=guarded(priority_max=0)) as it:
        asked = post(PATH, body, BEARER, line).replace("\xa0".encode(), b"\xa0")
        assert (await it.ask(asked)).status == 200
        served = it.engine.served[0]
        assert served.body == body
        for name, value in (("x-vllm-priority", vllm), ("x-pointsman-priority", front)):
            assert served.header(name) == value
            assert served.head.lower().count(name.encode()) == (value is not None)


BODIES = {
    "/v1/chat/completions": b'"messages":[]',
    "/v1/messages": b'"max_tokens":1,"messages":[]',
    "/v1/responses": b'"input":"x"',
    "/v1/completions": b'"prompt":"x"',
    "/generate": b'"text":"x"',
    "/v1/embeddings": b'"input":"x"',
}


@pytest.mark.parametrize(("path", "rest"), BODIES.items())
async def test_the_ceiling_holds_on_every_route_however_a_body_is_sent(
    path: str, rest: bytes
) -> None:
    late = b'{"model":"m","stream":true,"priority":5,%b}' % rest
    soon = late.replace(b'"priority":5', b'"priority":5,"\\u0070riority":-5')
    async with rig(answer_ok, options=guarded(priority_max=0)) as it:
        for body, status in ((late, 200), (soon, 403)):
            packed = gzip.compress(body)
            head = post(path, b"", BEARER, "X-Vllm-Priority: -5", "Content-Encoding: gzip")
            framing = b"Transfer-Encoding: chunked"
            head = head.replace(b"Content-Length: 0", framing)
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in packed) + b"0\r\n\r\n"
            assert (await it.ask(head + chunks)).status == status
        assert [served.body for served in it.engine.served] == [late]
        assert it.engine.served[0].header("x-vllm-priority") == "0"


@pytest.mark.parametrize(
    ("names_tenants", "lines", "tenant"),
    [
        (False, (), "team-a"),
        (False, ("X-Pointsman-Tenant: team-b",), "team-a"),
        (True, ("X-Pointsman-Tenant: team-b",), "team-b"),
        (True, (), "team-a"),
    ],
)
async def test_the_keys_name_is_the_tenant(
    names_tenants: bool, lines: tuple[str, ...], tenant: str
) -> None:
    async with rig(answer_ok, options=guarded(names_tenants=names_tenants)) as it:
        await ask(it, b'{"model":"m","prompt":"x","user":"somebody"}', *lines)
        assert it.placer.order[0].request.tenant == tenant


async def test_a_key_without_a_name_leaves_the_tenant_to_its_requests() -> None:
    options = GatewayOptions(sweep_s=0.02, keys=(ApiKey(key_digest(SECRET.encode())),))
    async with rig(answer_ok, options=options) as it:
        answer = await ask(it, BODY, "X-Pointsman-Tenant: team-b")
        assert it.placer.order[0].request.tenant == "team-b"
        assert answer.header("x-ratelimit-limit-requests") is None


# --- how much -----------------------------------------------------------------------------


async def test_every_answer_tells_what_is_left() -> None:
    async def generous(served: Served) -> None:
        await served.reply(200, OK_BODY, "X-RateLimit-Limit-Requests: 9999")

    limits = KeyLimits(requests_per_minute=60, tokens_per_minute=6_000)
    async with rig(generous, options=guarded(limits)) as it:
        for asked in (
            post(PATH, BODY, BEARER),
            post(PATH, STREAM, BEARER),
            post(PATH, b"{", BEARER),
            get("/v1/models", BEARER),
            get("/nothing", BEARER),
        ):
            answer = await it.ask(asked)
            assert answer.head.lower().count(b"x-ratelimit-limit-requests") == 1
            assert answer.header("x-ratelimit-limit-requests") == "60"
            assert answer.header("x-ratelimit-limit-tokens") == "6000"
        assert int(answer.header("x-ratelimit-remaining-requests") or 0) in (57, 58, 59)
        assert (answer.header("x-ratelimit-reset-requests") or "").endswith("s")
        stranger = await it.ask(get("/v1/models"))
        assert stranger.header("x-ratelimit-limit-requests") is None


async def test_requests_beyond_the_limit_are_429_with_a_time() -> None:
    async with rig(answer_ok, options=guarded(KeyLimits(requests_per_minute=3))) as it:
        answers = [await ask(it) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        refused = answers[-1]
        assert code(refused) == "rate_limit_exceeded"
        assert refused.header("x-pointsman-reason") == "key_requests"
        assert 1 <= int(refused.header("retry-after") or 0) <= 30
        assert refused.header("x-ratelimit-remaining-requests") == "0"
        assert len(it.placer.order) == 3
        assert it.records.ended[-1].reason is Reason.KEY_REQUESTS


async def test_limits_are_exact_when_all_come_at_once() -> None:
    async with rig(answer_ok, options=guarded(KeyLimits(requests_per_minute=7))) as it:
        answers = await asyncio.gather(*(ask(it) for _ in range(40)))
        assert sorted(answer.status for answer in answers) == [200] * 7 + [429] * 33
        assert len(it.engine.served) == 7


async def test_requests_at_once_are_exact() -> None:
    release = asyncio.Event()

    async def wait(served: Served) -> None:
        await release.wait()
        await served.reply(200, OK_BODY)

    async with rig(wait, options=guarded(KeyLimits(concurrency_max=5))) as it:
        asking = [asyncio.ensure_future(ask(it)) for _ in range(20)]
        await it.until(lambda: sum(task.done() for task in asking) == 15)
        assert (inflight(it), len(it.placer.order)) == (5, 5)
        release.set()
        answers = await asyncio.gather(*asking)
        assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 15
        refused = next(answer for answer in answers if answer.status == 429)
        assert code(refused) == "rate_limit_exceeded"
        assert refused.header("retry-after") in {"1", "2"}
        await it.until(lambda: inflight(it) == 0)
        assert (await ask(it)).status == 200


async def test_tokens_are_reserved_by_estimate_and_corrected_by_usage() -> None:
    release = asyncio.Event()

    async def wait(served: Served) -> None:
        await release.wait()
        await served.reply(200, OK_BODY)  # 5 and 2 tokens

    def left(it: Rig) -> int:
        standing = it.gateway.key_states()[0].quota.tokens
        assert standing is not None
        return standing.remaining

    body = b'{"model":"m","prompt":"%b"}' % (b"word" * 100)
    async with rig(wait, options=guarded(KeyLimits(tokens_per_minute=1_000))) as it:
        asking = asyncio.ensure_future(ask(it, body))
        await it.until(lambda: bool(it.placer.order))
        assert 900 <= left(it) <= 910
        release.set()
        await asking
        await it.until(lambda: inflight(it) == 0)
        assert left(it) >= 993


async def test_a_prompt_larger_than_a_minute_is_not_worth_a_retry() -> None:
    body = b'{"model":"m","prompt":"%b"}' % (b"word" * 100)
    async with rig(answer_ok, options=guarded(KeyLimits(tokens_per_minute=50))) as it:
        answer = await ask(it, body)
        assert (answer.status, answer.header("retry-after")) == (429, None)
        assert answer.header("x-should-retry") == "false"
        assert it.placer.order == []


async def test_an_overdraft_is_paid_off_first() -> None:
    async def long_answer(served: Served) -> None:
        usage = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":5000}}'
        await served.reply(200, usage)

    async with rig(long_answer, options=guarded(KeyLimits(tokens_per_minute=600))) as it:
        assert (await ask(it)).status == 200
        await it.until(lambda: inflight(it) == 0)
        refused = await ask(it)
        assert (refused.status, refused.header("x-ratelimit-remaining-tokens")) == (429, "0")
        assert 400 < int(refused.header("retry-after") or 0) <= 752


# --- every way out ------------------------------------------------------------------------


async def _silent(served: Served) -> None:
    await served.until_closed()


async def _dies(served: Served) -> None:
    served.writer.transport.abort()


async def _breaks_off(served: Served) -> None:
    await served.begin_stream()
    await served.chunk(b'data: {"choices":[{"text":"a"}]}\n\n')
    served.writer.transport.abort()


async def _refuses(served: Served) -> None:
    await served.reply(400, b'{"error":{"message":"no"}}')


async def _fails(served: Served) -> None:
    await served.reply(500, b'{"error":{"message":"no"}}')


@pytest.mark.parametrize("behaviour", [answer_ok, _dies, _breaks_off, _refuses, _fails])
async def test_the_slot_comes_back_however_an_answer_ends(behaviour: Any) -> None:
    limits = KeyLimits(concurrency_max=1, tokens_per_minute=1_000)
    async with rig(behaviour, options=guarded(limits)) as it:
        for body in (BODY, STREAM, b"{", b'{"model":"m"', BODY):
            await ask(it, body)
            await it.until(lambda: inflight(it) == 0)


async def test_the_slot_comes_back_when_the_client_leaves() -> None:
    async with rig(_silent, options=guarded(KeyLimits(concurrency_max=1))) as it:
        for _ in range(3):
            client = await it.connect()
            await client.send(post(PATH, STREAM, BEARER))
            await it.until(lambda: inflight(it) == 1)
            client.leave()
            await it.until(lambda: inflight(it) == 0)
        assert {record.end for record in it.records.ended} == {EndCause.CLIENT_GONE}


async def test_the_slot_comes_back_when_nothing_can_be_reached_or_all_is_held() -> None:
    limits = KeyLimits(concurrency_max=1)
    async with rig(urls=(closed_url(),), options=guarded(limits)) as it:
        assert (await ask(it)).status == 503
        assert inflight(it) == 0
        it.placer.hold = True
        client = await it.connect()
        await client.send(post(PATH, BODY, BEARER))
        await it.until(lambda: inflight(it) == 1)
        client.leave()
        await it.until(lambda: inflight(it) == 0)
        it.placer.hold, it.placer.reason = False, Reason.QUEUE_FULL
        assert (await ask(it)).status == 429
        assert inflight(it) == 0


async def test_the_slot_comes_back_when_the_gateway_is_at_fault() -> None:
    async with rig(answer_ok, options=guarded(KeyLimits(concurrency_max=1))) as it:

        def fault() -> None:
            raise RuntimeError("a bug")

        it.placer.before_verdict = fault
        assert (await ask(it)).status == 500
        assert inflight(it) == 0
        it.placer.before_verdict = None


async def test_requests_of_one_connection_may_have_different_keys() -> None:
    async with rig(answer_ok, options=guarded()) as it:
        client = await it.connect()
        for line, status in ((BEARER, 200), ("X-No: key", 401), (BEARER, 200)):
            await client.send(post(PATH, BODY, line))
            assert (await client.answer()).status == status


# --- while running ------------------------------------------------------------------------


async def test_keys_change_without_forgetting_what_is_used() -> None:
    async with rig(answer_ok, options=guarded(KeyLimits(requests_per_minute=3))) as it:
        assert (await ask(it)).status == 200
        it.gateway.apply(guarded(KeyLimits(requests_per_minute=2)))
        answers = [(await ask(it)).status for _ in range(2)]
        assert answers == [200, 429]
        renamed = ApiKey(key_digest(b"another-key"), KeyRules(name="team-a"))
        it.gateway.apply(GatewayOptions(sweep_s=0.02, keys=(renamed,)))
        assert (await ask(it)).status == 401
        other = await it.ask(post(PATH, BODY, "Authorization: Bearer another-key"))
        assert other.status == 200


async def test_a_request_that_runs_while_its_key_is_withdrawn_ends_well() -> None:
    release = asyncio.Event()

    async def wait(served: Served) -> None:
        await release.wait()
        await served.reply(200, OK_BODY)

    async with rig(wait, options=guarded(KeyLimits(concurrency_max=1))) as it:
        asking = asyncio.ensure_future(ask(it))
        await it.until(lambda: inflight(it) == 1)
        it.gateway.apply(GatewayOptions(sweep_s=0.02))
        release.set()
        assert (await asking).status == 200


# --- what is kept to ourselves ------------------------------------------------------------


async def test_no_key_is_told_to_anybody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    limits = KeyLimits(requests_per_minute=1, tokens_per_minute=50)
    async with rig(_fails, options=guarded(limits)) as it:
        answers = [await ask(it) for _ in range(3)]
        answers.append(await it.ask(post(PATH, BODY, f"Authorization: Bearer {SECRET}-wrong")))
        told = "".join(
            [
                *(repr(answer.head + answer.body) for answer in answers),
                *(repr(record) for record in it.records.ended),
                repr(it.gateway.key_states()),
                repr(guarded(limits)),
                caplog.text,
            ]
        )
        assert SECRET not in told
        assert key_digest(SECRET.encode()).hex() not in told
        assert repr(key_digest(SECRET.encode()))[2:20] not in told


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, b"0ms"),
        (0.0101, b"11ms"),
        (0.9991, b"1s"),
        (1.0, b"1s"),
        (10.0, b"10s"),
        (1.5, b"1.5s"),
        (59.9999, b"1m0s"),
        (360.0, b"6m0s"),
        (3_661.25, b"61m1.25s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: bytes) -> None:
    assert duration(seconds) == text
