"""Byte for byte in both directions, on every route, through the whole stack."""

import gzip
import json
import zlib

import pytest

from pointsman.wire import endpoints
from tests.support.raw_cluster import RawCluster, raw_cluster
from tests.support.upstreams import Served, get, post

PATHS = [path for paths in endpoints._PATHS.values() for path in paths.split()]

ODD = (
    b'{ "seed" : 18446744073709551615,\n\t"model":"m" ,"zzz_unknown":{"b":1,"a":[1.0,1e3,-0]},'
    b' "prompt":[1, 2,3 ,4], "messages":[{"role":"user","content":"caf\\u00e9 \\ud83d\\ude00'
    b' \xf0\x9f\x9a\x82","x":null}],"input":"hi", "query":"q","documents":["d"],'
    b'"text_1":"a","text_2":"b","stop":["a","b","c","d","e"],"temperature":0.70,'
    b'"aaa":"first comes last" ,"model_extra":"m"}  \r\n'
)
"""Odd white space, unknown fields, key order, escapes, a seed of 64 bits, five stop strings."""

ANSWER = (
    b'{ "id" : "x" ,\n "z":1,"a":2, "usage":{"prompt_tokens":4,"completion_tokens":1},'
    b'"text":"\\u00e9\xc3\xa9","big":12345678901234567890123 }\n\n'
)

EVENTS = (
    b': a comment\r\ndata: {"a": 1}\r\n\r\n'
    b'event: odd\ndata:{"z":"\xf0\x9f\x9a\x82","a":"\\u00e9"}\nid: 7\n\n'
    b'data: {"choices":[],  "usage":{"prompt_tokens":4,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


async def answer(served: Served) -> None:
    await served.reply(200, ANSWER, "x-engine-Field: Kept", "Content-Type: application/json")


async def ask_engine(cluster: RawCluster, request: bytes) -> Served:
    """What the engine got of a request that is answered well."""
    received = await cluster.ask(request)
    assert received.status == 200, received.body
    return cluster.posts()[-1]


@pytest.mark.parametrize("path", PATHS)
async def test_every_route_passes_bytes_both_ways(path: str) -> None:
    async with raw_cluster(answer) as cluster:
        received = await cluster.ask(post(f"{path}?x=%20y&z", ODD))
        assert received.status == 200, received.body
        assert received.body == ANSWER
        assert received.header("x-engine-field") == "Kept"
        (served,) = cluster.posts()
    assert served.target == f"{path}?x=%20y&z"
    assert served.body == ODD


async def test_headers_pass_but_those_of_the_hop_and_the_hints() -> None:
    lines = (
        "Authorization: Bearer key",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "X-Custom: one",
        "x-custom: two",
        "X-Request-Id: mine",
        "x-pointsman-tenant: t",
        "Connection: keep-alive, X-Named",
        "X-Named: of this hop",
        "TE: trailers",
    )
    async with raw_cluster(answer) as cluster:
        served = await ask_engine(cluster, post("/v1/completions", ODD, *lines))
        url = cluster.engines[0].url
    head = served.head.decode().lower()
    assert served.header("host") == url.removeprefix("http://")
    assert served.header("authorization") == "Bearer key"
    assert served.header("x-request-id") == "mine"
    assert head.count("traceparent: 00-0af7") == 1
    assert "x-custom: one\r\nx-custom: two\r\n" in head
    for gone in ("x-pointsman-tenant", "x-named", "\r\nte:", "\r\nconnection"):
        assert gone not in head


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":[1,2,3]}',
        b'{"model":"m","prompt":[[1,2],[3]]}',
        b'{"model":"m","prompt":"x","stop":["1","2","3","4","5"]}',
        b'{"model":"m","prompt":"x","seed":18446744073709551615}',
        b'{"model":"m","prompt":"x","seed":-9223372036854775808}',
        b'{"prompt":"no model: there is one only"}',
        b'{"model":"m","prompt":"twice","prompt":"taken as it is"}',
    ],
)
async def test_what_other_routers_refuse_passes(body: bytes) -> None:
    async with raw_cluster(answer) as cluster:
        assert (await ask_engine(cluster, post("/v1/completions", body))).body == body


async def test_large_and_deep_bodies_pass() -> None:
    large = json.dumps({"model": "m", "prompt": "x" * 20_000_000}).encode()
    deep = b'{"model":"m","prompt":"x","deep":' + b"[" * 200 + b"]" * 200 + b"}"
    async with raw_cluster(answer) as cluster:
        for body in (large, deep):
            assert (await ask_engine(cluster, post("/v1/completions", body))).body == body


async def test_a_chunked_request_passes() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (ODD[:7], ODD[7:100], ODD[100:]))
    async with raw_cluster(answer) as cluster:
        assert (await ask_engine(cluster, head + chunks + b"0\r\n\r\n")).body == ODD


# --- encoded bodies -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "body"), [("gzip", gzip.compress(ODD)), ("deflate", zlib.compress(ODD))]
)
async def test_a_compressed_body_is_decoded(encoding: str, body: bytes) -> None:
    line = f"Content-Encoding: {encoding}"
    async with raw_cluster(answer) as cluster:
        served = await ask_engine(cluster, post("/v1/completions", body, line))
    assert served.body == ODD
    assert served.header("content-encoding") is None
    assert served.header("content-length") == str(len(ODD))


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", gzip.compress(b" " * 64 * 1024 * 1024), 413),
        ("gzip", gzip.compress(ODD)[:-9], 400),
        ("gzip", b"no gzip at all", 400),
        ("br", ODD, 415),
    ],
    ids=["a bomb", "cut short", "a lie", "unknown"],
)
async def test_a_body_that_cannot_be_decoded_is_refused(
    encoding: str, body: bytes, status: int
) -> None:
    line = f"Content-Encoding: {encoding}"
    async with raw_cluster(answer) as cluster:
        received = await cluster.ask(post("/v1/completions", body, line))
        assert received.status == status
        assert json.loads(received.body)["error"]["message"]
        assert not cluster.posts()


async def test_multipart_audio_passes() -> None:
    audio = bytes(range(256)) * 400 + b"\r\n--not the boundary\r\n"
    body = (
        b'--B42\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        b"Content-Type: audio/wav\r\n\r\n" + audio + b"\r\n"
        b'--B42\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--B42--\r\n'
    )
    kind = "multipart/form-data; boundary=B42"
    head = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with raw_cluster(answer) as cluster:
        served = await ask_engine(cluster, head.encode() + body)
        assert served.body == body
        assert served.header("content-type") == kind
        wrong = body.replace(b"\r\nm\r\n", b"\r\nx\r\n")
        assert (await cluster.ask(head.encode() + wrong)).status == 404


# --- answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1_000_000], ids=["each byte", "sevens", "at once"])
async def test_a_stream_passes_however_it_is_cut(size: int) -> None:
    async def stream(served: Served) -> None:
        await served.begin_stream()
        for at in range(0, len(EVENTS), size):
            await served.chunk(EVENTS[at : at + size])
        await served.end_stream()

    body = b'{"model":"m","prompt":"x","stream":true}'
    async with raw_cluster(stream) as cluster:
        received = await cluster.ask(post("/v1/completions", body))
    assert received.is_whole
    assert received.body == EVENTS


async def test_an_event_of_a_megabyte_and_a_half_passes() -> None:
    event = b'data: {"image":"' + b"x" * 1_500_000 + b'"}\n\n'

    async def stream(served: Served) -> None:
        await served.begin_stream()
        await served.chunk(event)
        await served.end_stream()

    body = b'{"model":"m","prompt":"x","stream":true}'
    async with raw_cluster(stream) as cluster:
        assert (await cluster.ask(post("/v1/completions", body))).body == event


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (400, "application/json", b'{"object":"error", "message":"no" ,"code":400}'),
        (404, "application/json", b'{"error": {"message" : "model not here"}}\n'),
        (422, "text/plain", b"unprocessable \xff"),
        (200, "text/plain", b"not JSON"),
        (200, "application/json", b""),
        (200, "application/json", b"{broken"),
    ],
)
async def test_any_answer_that_another_engine_would_not_better_passes(
    status: int, kind: str, body: bytes
) -> None:
    async def reply(served: Served) -> None:
        await served.reply(status, body, f"Content-Type: {kind}")

    async with raw_cluster(reply) as cluster:
        received = await cluster.ask(post("/v1/completions", ODD))
        assert (received.status, received.body) == (status, body)
        assert received.header("content-type") == kind
        assert len(cluster.posts()) == 1, "a client's mistake is not tried again"


async def test_an_answer_that_is_compressed_stays_so() -> None:
    packed = gzip.compress(ANSWER)

    async def reply(served: Served) -> None:
        assert served.header("accept-encoding") == "gzip"
        await served.reply(200, packed, "Content-Encoding: gzip")

    async with raw_cluster(reply) as cluster:
        received = await cluster.ask(post("/v1/completions", ODD, "Accept-Encoding: gzip"))
    assert received.body == packed
    assert received.header("content-encoding") == "gzip"


async def test_routes_of_our_own_and_those_that_are_not_there() -> None:
    async with raw_cluster(answer) as cluster:
        models = await cluster.ask(get("/v1/models"))
        assert [m["id"] for m in json.loads(models.body)["data"]] == ["m"]
        assert (await cluster.ask(get("/health"))).status == 200
        assert (await cluster.ask(get("/ready"))).status == 200
        assert (await cluster.ask(get("/metrics"))).status == 404, "not on the data plane"
        assert (await cluster.ask(post("/simulate", b"{}"))).status == 404
        wrong = await cluster.ask(get("/v1/chat/completions"))
        assert (wrong.status, wrong.header("allow")) == (405, "POST, OPTIONS")
        assert not cluster.posts()
