"""The API's surface: routes, models, CORS, keys, ids, which headers pass and which do not."""

import json
from math import inf

import pytest

from pointsman.core.decision import Prospect
from pointsman.core.errors import Reason
from pointsman.gateway import ApiKey, GatewayOptions, key_digest
from pointsman.gateway.replies import prospect_lines
from tests.gateway.conftest import rig
from tests.support.upstreams import OK_BODY, STREAM, Served, answer_ok, get, post

BODY = b'{"model":"m","prompt":"hello"}'
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", b'{"model":"m","prompt":[1,2,3],"stop":["a","b","c","d","e"]}'),
        ("/v1/completions", b'{"model":"m","prompt":"x","seed":18446744073709551615}'),
        ("/v1/responses", b'{"model":"m","input":"hi"}'),
        ("/v1/messages", b'{"model":"m","max_tokens":4,"messages":[]}'),
        ("/v1/embeddings", b'{"model":"m","input":["a","b"]}'),
        ("/v1/rerank", b'{"model":"m","query":"q","documents":["a"]}'),
        ("/v1/score", b'{"model":"m","text_1":"a","text_2":"b"}'),
        ("/tokenize", b'{"model":"m","prompt":"a"}'),
        ("/detokenize", b'{"model":"m","tokens":[1]}'),
        ("/v1/images/generations", b'{"model":"m","prompt":"a cat"}'),
    ],
)
async def test_every_engine_route_passes_byte_for_byte(path: str, body: bytes) -> None:
    spaced = body.replace(b":", b" :  ").replace(b",", b"\n,")
    async with rig(answer_ok) as it:
        for sent in (body, spaced):
            assert (await it.ask(post(path, sent))).body == OK_BODY
            assert it.engine.served[-1].body == sent
            assert it.engine.served[-1].target == path


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_form_where_none_is_taken_is_read_as_json(path: str) -> None:
    """llama.cpp reads JSON whatever the type says: nothing in it may go past the gateway."""
    field = "Content-Type: multipart/form-data; boundary=B"
    async with rig(answer_ok) as it:
        for body in (b'{"model":["m"]}', b"--B\r\n"):
            assert (await it.ask(post(path, body, field))).status == 400


async def test_a_form_is_routed_by_its_model_and_passes_byte_for_byte() -> None:
    form = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        b"\x00\xff\r\n"
        b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--B--\r\n'
    )
    head = (
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
        f"Content-Length: {len(form)}\r\nContent-Type: multipart/form-data; boundary=B\r\n\r\n"
    ).encode()
    async with rig(answer_ok) as it:
        assert (await it.ask(head + form)).status == 200
        served = it.engine.served[0]
        assert served.body == form
        assert served.header("content-type") == "multipart/form-data; boundary=B"
        assert served.header("authorization") == "Bearer k"
        assert it.placer.order[0].request.model == "whisper"


async def test_models_are_listed_from_the_registry() -> None:
    async with rig() as it:
        listed = json.loads((await it.ask(get("/v1/models"))).body)
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["m"]
        assert listed["data"][0]["max_model_len"] == 8_192
        one = await it.ask(get("/v1/models/m"))
        assert json.loads(one.body) == listed["data"][0]
        missing = await it.ask(get("/v1/models/a%2Fb"))
        assert (missing.status, json.loads(missing.body)["error"]["code"]) == (
            404,
            "model_not_found",
        )


async def test_health_and_readiness_are_two_things() -> None:
    async with rig() as it:
        assert (await it.ask(get("/health"))).status == 200
        assert (await it.ask(get("/ready"))).status == 200
        it.placer.is_ready = False
        assert (await it.ask(get("/health"))).status == 200
        assert (await it.ask(get("/ready"))).status == 503


async def test_head_gets_the_head_alone() -> None:
    async with rig() as it:
        client = await it.connect()
        await client.send(get("/health", method="HEAD") + get("/health"))
        head = await client.head()
        assert b"content-length: 15" in head
        assert (await client.answer()).body == b'{"status":"ok"}'


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nothing", 404, None),
        ("POST", "/v1/chat/completions/", 404, None),
        ("POST", "/v1/../v1/completions", 404, None),
        ("GET", "/v1/completions", 405, "POST, OPTIONS"),
        ("DELETE", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("POST", "/health", 405, "GET, HEAD, OPTIONS"),
        ("CONNECT", "example.org:443", 404, None),
    ],
)
async def test_other_routes_are_refused_in_openais_shape(
    method: str, path: str, status: int, allow: str | None
) -> None:
    async with rig() as it:
        answer = await it.ask(get(path, method=method))
        assert (answer.status, answer.header("allow")) == (status, allow)
        error = json.loads(answer.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.header("x-pointsman-reason") == error["code"]
        assert answer.header("x-request-id")


@pytest.mark.parametrize(
    ("prospect", "lines"),
    [
        (None, b""),
        (Prospect(3, None), b"x-pointsman-queue-position: 3\r\n"),
        (Prospect(3, inf), b"x-pointsman-queue-position: 3\r\n"),
        (
            Prospect(3, 0.25),
            b"x-pointsman-queue-position: 3\r\nx-pointsman-expected-wait-ms: 250\r\n",
        ),
    ],
)
def test_only_a_wait_that_is_known_is_told(prospect: Prospect | None, lines: bytes) -> None:
    assert prospect_lines(prospect) == lines


# --- browsers -----------------------------------------------------------------------------------

PREFLIGHT = (
    "Origin: https://app.example",
    "Access-Control-Request-Method: POST",
    "Access-Control-Request-Headers: authorization,x-stainless-os",
)


async def test_a_preflight_is_answered_without_a_key() -> None:
    options = GatewayOptions(sweep_s=0.02, keys=(ApiKey(key_digest(b"secret")),))
    async with rig(options=options) as it:
        answer = await it.ask(get("/v1/chat/completions", *PREFLIGHT, method="OPTIONS"))
        assert answer.status == 204
        assert answer.header("access-control-allow-origin") == "*"
        assert answer.header("access-control-allow-methods") == "POST, OPTIONS"
        assert answer.header("access-control-allow-headers") == "authorization,x-stainless-os"


async def test_only_configured_origins_are_let_in() -> None:
    options = GatewayOptions(sweep_s=0.02, cors_origins=("https://app.example",))
    async with rig(answer_ok, options=options) as it:
        good = await it.ask(post("/v1/completions", BODY, "Origin: https://app.example"))
        assert good.header("access-control-allow-origin") == "https://app.example"
        assert good.header("vary") == "origin"
        assert "x-request-id" in (good.header("access-control-expose-headers") or "")
        for line in ("Origin: https://evil.example", "X-No: origin"):
            other = await it.ask(post("/v1/completions", BODY, line))
            assert other.header("access-control-allow-origin") is None
        preflight = await it.ask(
            get("/v1/completions", "Origin: https://evil.example", method="OPTIONS")
        )
        assert preflight.header("access-control-allow-origin") is None


@pytest.mark.parametrize(("origins", "count"), [(("*",), 1), ((), 1)])
async def test_an_engines_own_cors_headers_are_not_doubled(
    origins: tuple[str, ...], count: int
) -> None:
    async def open_engine(served: Served) -> None:
        await served.reply(200, OK_BODY, "Access-Control-Allow-Origin: *")

    options = GatewayOptions(sweep_s=0.02, cors_origins=origins)
    async with rig(open_engine, options=options) as it:
        answer = await it.ask(post("/v1/completions", BODY, "Origin: https://app.example"))
        assert answer.head.lower().count(b"access-control-allow-origin") == count


async def test_errors_can_be_read_by_browsers_too() -> None:
    async with rig() as it:
        answer = await it.ask(get("/nothing", "Origin: https://app.example"))
        assert answer.header("access-control-allow-origin") == "*"


# --- keys ---------------------------------------------------------------------------------------


async def test_keys_guard_everything_but_health() -> None:
    keys = tuple(ApiKey(key_digest(key)) for key in (b"k1", b"k2"))
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, keys=keys)) as it:
        for line in ("X-No: key", "Authorization: Bearer k3", "Authorization: Basic k1"):
            answer = await it.ask(post("/v1/completions", BODY, line))
            assert answer.status == 401
            assert answer.header("www-authenticate") == "Bearer"
            assert json.loads(answer.body)["error"]["code"] == "invalid_api_key"
        assert (await it.ask(get("/v1/models"))).status == 401
        assert (await it.ask(get("/health"))).status == 200
        good = await it.ask(post("/v1/completions", BODY, "Authorization: Bearer k2"))
        assert good.status == 200
        assert it.engine.served[0].header("authorization") is None


@pytest.mark.parametrize(
    ("forward", "seen"), [(None, "Bearer x"), (True, "Bearer x"), (False, None)]
)
async def test_the_clients_authorization_is_handed_on_as_configured(
    forward: bool | None, seen: str | None
) -> None:
    options = GatewayOptions(sweep_s=0.02, forward_authorization=forward)
    async with rig(answer_ok, options=options) as it:
        await it.ask(post("/v1/completions", BODY, "Authorization: Bearer x"))
        assert it.engine.served[0].header("authorization") == seen


# --- ids and other headers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seen", "priority"),
    [
        ("-7", "-7", 7),
        ("+7", "7", -7),
        ("-1700000000", "-1700000000", 100),  # finer than ours: as it came
        ("soon", None, 0),
        ("9" * 30, None, 0),
        ("-7\r\nx-vllm-priority: -9", "-7", 7),
    ],
)
async def test_vllms_own_priority_is_handed_on_and_meant_here_too(
    value: str, seen: str | None, priority: int
) -> None:
    async with rig(answer_ok) as it:
        await it.ask(post("/v1/completions", BODY, f"X-Vllm-Priority: {value}"))
        served = it.engine.served[-1]
        assert served.header("x-vllm-priority") == seen
        assert served.head.lower().count(b"x-vllm-priority") == (seen is not None)
        assert it.placer.order[-1].request.priority == priority


async def test_a_usable_request_id_is_the_same_everywhere() -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(post("/v1/completions", BODY, "X-Request-Id: abc-123.X_y"))
        assert answer.header("x-request-id") == "abc-123.X_y"
        assert it.engine.served[0].header("x-request-id") == "abc-123.X_y"
        assert it.placer.order[0].request.id == "abc-123.X_y"
        assert it.records.ended[0].request_id == "abc-123.X_y"


@pytest.mark.parametrize("wanted", ["x" * 129, "a b", "é", "", "a\tb", "<script>"])
async def test_an_unusable_request_id_is_replaced(wanted: str) -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(post("/v1/completions", BODY, f"X-Request-Id: {wanted}"))
        made = answer.header("x-request-id") or ""
        assert made not in ("", wanted)
        assert len(made) <= 128
        assert it.engine.served[0].header("x-request-id") == made


async def test_a_request_id_sent_twice_reaches_the_engine_once() -> None:
    """vllm#10968, #27983: each hop added one of its own."""
    lines = ("X-Request-Id: first", "x-request-id: second")
    async with rig(answer_ok) as it:
        answer = await it.ask(post("/v1/completions", BODY, *lines))
        served = it.engine.served[0]
        assert answer.head.lower().count(b"x-request-id") == 1
        assert served.head.lower().count(b"x-request-id") == 1
        assert served.header("x-request-id") == answer.header("x-request-id")


async def test_a_request_id_of_a_megabyte_is_refused() -> None:
    """sglang#24220: it was echoed in each chunk."""
    async with rig(answer_ok) as it:
        answer = await it.ask(post("/v1/completions", BODY, "X-Request-Id: " + "x" * 1_000_000))
        assert answer.status == 431
        assert len(answer.head) < 2_000
        assert not it.engine.served


async def test_two_requests_never_share_an_id() -> None:
    async def hang(served: Served) -> None:
        await served.until_closed()

    async with rig(hang) as it:
        for _ in range(2):
            client = await it.connect()
            await client.send(post("/v1/completions", BODY, "X-Request-Id: same"))
        await it.until(lambda: len(it.placer.order) == 2)
        ids = [told.request.id for told in it.placer.order]
        assert ids[0] == "same"
        assert ids[1] != "same"


async def test_an_engines_request_id_does_not_replace_ours() -> None:
    async def own_id(served: Served) -> None:
        await served.reply(200, OK_BODY, "X-Request-Id: engines", "X-Other: kept")

    async with rig(own_id) as it:
        answer = await it.ask(post("/v1/completions", BODY, "X-Request-Id: ours"))
        assert answer.head.lower().count(b"x-request-id") == 1
        assert answer.header("x-request-id") == "ours"
        assert answer.header("x-other") == "kept"


async def test_hop_by_hop_and_private_headers_stay_here() -> None:
    lines = (
        "Connection: keep-alive, X-Named",
        "X-Named: hop",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Proxy-Authorization: secret",
        "X-Pointsman-Tenant: acme",
        "X-Pointsman-Anything: else",
        "Traceparent: 00-aa-bb-01",
        "User-Agent: test",
        "Accept: */*",
        "X-Custom: passes",
    )
    async with rig(answer_ok) as it:
        await it.ask(post("/v1/completions", BODY, *lines))
        served = it.engine.served[0]
        for name in ("x-named", "keep-alive", "te", "proxy-authorization", "connection"):
            assert served.header(name) is None, name
        assert b"x-pointsman" not in served.head.lower()
        for name in ("traceparent", "user-agent", "accept", "x-custom", "content-type"):
            assert served.header(name) is not None, name


async def test_an_engines_hop_by_hop_headers_stay_there() -> None:
    async def chatty(served: Served) -> None:
        named = ("X-Named: hop", "Connection: keep-alive, x-named", "X-Other: stays")
        await served.reply(200, OK_BODY, "Keep-Alive: timeout=5", *named)

    async with rig(chatty) as it:
        answer = await it.ask(post())
        assert answer.header("keep-alive") is None
        assert answer.header("connection") is None
        assert answer.header("x-named") is None, "RFC 9110 section 7.6.1"
        assert answer.header("x-other") == "stays"


@pytest.mark.parametrize(
    ("location", "told"),
    [("/v1/completions", "/v1/completions"), ("http://gpu-1:8000/v1", None), ("//gpu-1/v1", None)],
)
async def test_a_redirect_tells_no_engines_address(location: str, told: str | None) -> None:
    async def redirects(served: Served) -> None:
        await served.reply(307, b"", f"Location: {location}")

    async with rig(redirects) as it:
        answer = await it.ask(post())
        assert (answer.status, answer.header("location")) == (307, told)


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_node_and_policy_are_told_on_request(body: bytes) -> None:
    async with rig(answer_ok, options=GatewayOptions(sweep_s=0.02, reply_headers=True)) as it:
        answer = await it.ask(post(body=body))
        assert answer.header("x-pointsman-node") == "engine-1"
        assert answer.header("x-pointsman-policy") == "scripted"
    async with rig(answer_ok) as it:
        assert b"pointsman" not in (await it.ask(post())).head


async def test_hints_reach_the_scheduler() -> None:
    lines = (
        "X-Pointsman-Priority: high",
        "X-Pointsman-SLO-TTFT-ms: 1500",
        "X-Pointsman-Tenant: acme",
        "X-Pointsman-Session: s1",
        "X-Pointsman-Pool: gold",
        "X-Pointsman-Zone: eu",
        "X-Pointsman-Labels: gpu=h100, tier=gold",
    )
    async with rig(answer_ok) as it:
        await it.ask(post("/v1/completions", BODY, *lines))
        request = it.placer.order[0].request
        assert (request.priority, request.slo_ttft_s, request.tenant) == (10, 1.5, "acme")
        assert (request.session, request.pool, request.zone) == ("s1", "gold", "eu")
        assert request.labels == (("gpu", "h100"), ("tier", "gold"))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("X-Pointsman-Priority: urgent", "x-pointsman-priority"),
        ("X-Pointsman-SLO-TTFT-ms: soon", "x-pointsman-slo-ttft-ms"),
        ("X-Pointsman-SLO-TTFT-ms: nan", "x-pointsman-slo-ttft-ms"),
        ("X-Pointsman-Tenant: " + "x" * 300, "x-pointsman-tenant"),
        ("X-Pointsman-Labels: gpu", "x-pointsman-labels"),
    ],
)
async def test_a_malformed_hint_is_refused_by_name(line: str, named: str) -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(post("/v1/completions", BODY, line))
        assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, named)


async def test_a_refusal_names_its_reason() -> None:
    async with rig() as it:
        it.placer.reason = Reason.MODEL_NOT_FOUND
        answer = await it.ask(post())
        assert (answer.status, answer.header("x-pointsman-reason")) == (404, "model_not_found")
        assert answer.header("retry-after") is None
