"""HTTP as clients write it, and as attackers do: what is read, what is refused, and how."""

import asyncio
import gzip
import json
import threading
import zlib
from codecs import BOM_UTF8
from typing import Any

import pytest

from pointsman.core.errors import EndCause, Reason
from pointsman.gateway import GatewayOptions
from tests.gateway.conftest import Rig, rig
from tests.support.upstreams import OK_BODY, Served, answer_ok, get, post

BODY = b'{"model":"m","prompt":"hello"}'


async def echo(served: Served) -> None:
    await served.reply(200, served.body)


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\nHost: x\n\n",
        b"POST /v1/completions HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x/../y\r\n\r\n",
        b"POST /v1/completions HTTP/2.0\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/3.7\r\nHost: x\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_two_parsers_could_read_differently_is_refused(sent: bytes) -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(sent)
        answer = await client.answer()
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert answer.header("connection") == "close"
        assert await client.closed()
        assert not it.placer.order
        assert it.records.refused == [Reason.BAD_REQUEST]


async def test_nothing_smuggled_behind_a_refusal_is_read() -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + post()
        )
        assert (await client.answer()).status == 400
        assert await client.closed()
        assert not it.placer.order


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_byte_order_mark_is_no_part_of_the_json(encoding: str) -> None:
    """Python's json passes over it, so FastAPI and the engines on it do; others do not."""
    body = BOM_UTF8 + BODY
    if encoding == "gzip":
        body = gzip.compress(body)
    async with rig(echo) as it:
        answer = await it.ask(post("/v1/completions", body, f"Content-Encoding: {encoding}"))
        assert (answer.status, answer.body) == (200, BODY)


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_a_chunked_body_is_taken_and_sent_on_with_its_length(size: int) -> None:
    body = b'{"model":"m","prompt":"' + b"x" * 5_000 + b'"}'
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    async with rig(echo) as it:
        client = await it.connect()
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for chunk in chunks:
            await client.send(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk))
        await client.send(b"0\r\nX-Trailer: dropped\r\n\r\n")
        assert (await client.answer()).body == body
        served = it.engine.served[0]
        assert served.header("content-length") == str(len(body))
        assert served.header("transfer-encoding") is None
        assert b"x-trailer" not in served.head.lower()


async def test_a_request_in_single_bytes_is_read() -> None:
    async with rig(echo) as it:
        client = await it.connect()
        for byte in post():
            await client.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.answer()).body == BODY


async def test_expect_100_continue_is_answered() -> None:
    async with rig(echo) as it:
        client = await it.connect()
        whole = post("/v1/completions", BODY, "Expect: 100-continue")
        await client.send(whole[: -len(BODY)])
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(BODY)
        assert (await client.answer()).body == BODY
        assert it.engine.served[0].header("expect") is None


@pytest.mark.parametrize(
    ("request_line", "line", "status"),
    [
        ("POST /nowhere", "", 404),
        ("POST /v1/models", "", 405),
        ("POST /v1/completions", "Content-Encoding: br\r\n", 415),
    ],
)
async def test_expect_gets_the_status_that_no_body_can_change_at_once(
    request_line: str, line: str, status: int
) -> None:
    async with rig(answer_ok) as it:
        client = await it.connect()
        head = f"{request_line} HTTP/1.1\r\nHost: x\r\n{line}Content-Length: 9\r\n"
        await client.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
        answer = await client.answer()
        assert answer.status == status
        assert (answer.header("allow") is not None) == (status == 405)
        assert await client.closed()
        assert len(it.records.refused) == 1


async def test_expect_while_draining_is_refused_at_once() -> None:
    async with rig(answer_ok) as it:
        await it.gateway.drain()
        client = await it.connect()
        await client.send(post("/v1/completions", BODY, "Expect: 100-continue")[: -len(BODY)])
        assert (await client.answer()).status == 503


async def test_expect_with_a_body_too_large_is_refused_before_it_is_sent() -> None:
    async with rig(echo, options=GatewayOptions(sweep_s=0.02, body_bytes_max=1_000)) as it:
        client = await it.connect()
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert (await client.head()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_too_large_is_refused_with_the_limit(chunked: bool) -> None:
    async with rig(echo, options=GatewayOptions(sweep_s=0.02, body_bytes_max=100_000)) as it:
        client = await it.connect()
        big = b"x" * 3_000_000
        if chunked:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            sent = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(big), big)
        else:
            sent = post(body=big)
        sending = asyncio.gather(client.send(sent), return_exceptions=True)
        answer = await client.answer()
        await sending
        assert answer.status == 413
        assert b"100000 bytes" in answer.body
        assert it.gateway.state().bodies_bytes < 400_000


async def test_a_large_body_within_the_limit_passes() -> None:
    body = b'{"model":"m","prompt":"' + b"x" * 20_000_000 + b'"}'
    async with rig(echo) as it:
        answer = await it.ask(post(body=body))
        assert answer.body == body


async def send_all_but_one_byte(it: Rig) -> None:
    """Of a body of 1,000, which the gateway holds until the last comes."""
    client = await it.connect()
    await client.send(post(body=b"x" * 1_000)[:-1])
    await it.until(lambda: it.gateway.state().bodies_bytes == 999)


async def test_all_bodies_together_are_bounded() -> None:
    options = GatewayOptions(sweep_s=0.02, body_bytes_max=1_000, bodies_bytes_max=1_500)
    async with rig(answer_ok, options=options) as it:
        await send_all_but_one_byte(it)
        answer = await it.ask(post(body=b"x" * 1_000))
        assert answer.status == 429
        assert answer.header("retry-after") in {"1", "2"}, "a second, and jitter"


@pytest.mark.parametrize(
    "lines",
    [
        ["X-Long: " + "x" * 70_000],
        [f"X-{number}: y" for number in range(200)],
        [f"X-{number}: {'y' * 1000}" for number in range(100)],
    ],
    ids=["one", "many", "together"],
)
async def test_a_head_too_large_is_refused(lines: list[str]) -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(get("/health", *lines))
        assert (answer.status, answer.header("x-pointsman-reason")) == (431, "head_too_large")


async def test_a_head_without_end_is_refused() -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * 80_000)
        assert answer.status == 431


async def test_absolute_targets_are_read_and_sent_on_as_paths() -> None:
    async with rig(echo) as it:
        assert (await it.ask(post("http://other:1/v1/completions?a=b"))).body == BODY
        assert it.engine.served[0].target == "/v1/completions?a=b"


async def test_an_upgrade_is_ignored_and_the_connection_lives_on() -> None:
    async with rig(echo) as it:
        client = await it.connect()
        h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
        for _ in range(2):
            await client.send(post("/v1/completions", BODY, *h2c))
            assert (await client.answer()).body == BODY
        head = it.engine.served[0].head.lower()
        assert b"upgrade" not in head
        assert b"http2-settings" not in head


async def test_data_behind_connection_close_is_ignored() -> None:
    async with rig(echo) as it:
        answer = await it.ask(post("/v1/completions", BODY, "Connection: close") + post())
        assert answer.body == BODY
        assert len(it.engine.served) == 1


# --- compressed bodies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(BODY)),
        ("GZIP", gzip.compress(BODY)),
        ("x-gzip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
    ],
)
async def test_a_compressed_body_is_sent_on_decoded(encoding: str, packed: bytes) -> None:
    async with rig(echo) as it:
        line = f"Content-Encoding: {encoding}"
        answer = await it.ask(post("/v1/completions", packed, line))
        assert answer.body == BODY
        assert it.engine.served[0].header("content-encoding") is None


@pytest.mark.parametrize(
    ("encoding", "packed", "status"),
    [
        ("br", BODY, 415),
        ("gzip, gzip", BODY, 415),
        ("gzip", BODY, 400),
        ("gzip", gzip.compress(BODY)[:-4], 400),
        ("gzip", gzip.compress(BODY) + b"tail", 400),
        ("gzip", gzip.compress(b"x" * 10_000_000), 413),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_refused(
    encoding: str, packed: bytes, status: int
) -> None:
    async with rig(echo, options=GatewayOptions(sweep_s=0.02, body_bytes_max=1_000_000)) as it:
        line = f"Content-Encoding: {encoding}"
        answer = await it.ask(post("/v1/completions", packed, line))
        assert answer.status == status
        assert not it.placer.order


async def test_a_body_that_cannot_be_decoded_is_not_kept() -> None:
    """On a connection that stays, thousands of them would leave no room for others."""
    async with rig(echo) as it:
        client = await it.connect()
        await client.send(post("/v1/completions", BODY, "Content-Encoding: zstd"))
        assert (await client.answer()).status == 415
        assert it.gateway.state().bodies_bytes == 0


async def test_all_bodies_together_are_bounded_as_they_are_decoded() -> None:
    options = GatewayOptions(sweep_s=0.02, body_bytes_max=1_000, bodies_bytes_max=1_500)
    async with rig(echo, options=options) as it:
        await send_all_but_one_byte(it)
        packed = gzip.compress(b"x" * 1_000)
        answer = await it.ask(post("/v1/completions", packed, "Content-Encoding: gzip"))
        assert answer.status == 429
        assert it.gateway.state().bodies_bytes == 999


LARGE = json.dumps({"model": "m", "prompt": "x" * 1_000_000}).encode()


class Inflating:
    """Stands in for zlib's: knows in which threads it works, and may be held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.may_go_on = threading.Event()
        self._begin = zlib.decompressobj
        monkeypatch.setattr(zlib, "decompressobj", self._record)

    def _record(self, wbits: int) -> Any:
        self.threads.append(threading.current_thread().name)
        if self.threads[-1] != threading.main_thread().name:
            self.may_go_on.wait(30)
        return self._begin(wbits)


@pytest.mark.parametrize("level", [0, 9])  # no smaller, and a thousandth
async def test_a_large_body_is_inflated_beside_the_loop(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inflating = Inflating(monkeypatch)
    async with rig(echo) as it:
        client = await it.connect()
        packed = gzip.compress(LARGE, level)
        await client.send(post("/v1/completions", packed, "Content-Encoding: gzip"))
        await it.until(lambda: len(inflating.threads) == (1 if level == 0 else 2))
        assert inflating.threads[-1] != threading.main_thread().name
        assert (await it.ask(post("/v1/completions", BODY))).body == BODY
        inflating.may_go_on.set()
        assert (await client.answer()).body == LARGE


async def test_a_client_may_leave_while_its_body_is_inflated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inflating = Inflating(monkeypatch)
    async with rig(echo) as it:
        client = await it.connect()
        packed = gzip.compress(LARGE)
        await client.send(post("/v1/completions", packed, "Content-Encoding: gzip"))
        await it.until(lambda: len(inflating.threads) == 2)
        client.leave()
        await it.until(lambda: bool(it.records.ended))
        inflating.may_go_on.set()
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        assert it.records.ended[0].end is EndCause.CLIENT_GONE
        assert not it.placer.order


async def test_a_body_that_is_no_json_is_refused_by_name() -> None:
    async with rig(answer_ok) as it:
        answer = await it.ask(post(body=b"{"))
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"]) == (400, "invalid_json")
        assert (await it.ask(post(body=OK_BODY))).status == 200
