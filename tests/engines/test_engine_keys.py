"""Which engine is sent which key; and the simulated engine, which asks for one as vLLM does."""

from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import ClientRequest, ClientResponse, web
from yarl import URL

from pointsman.engines.adapters.keys import EngineKeys, key_problem
from tests.support.engines import running_engine

KEYS = EngineKeys({"http://gpu-1:8000#1": "k1", "http://GPU-2": "k2", "http://[::1]:9": "k3"})


@pytest.mark.parametrize(
    ("host", "port", "value"),
    [
        ("gpu-1", 8000, "Bearer k1"),  # of all its ranks
        ("gpu-2", 80, "Bearer k2"),
        ("::1", 9, "Bearer k3"),
        ("gpu-1", 8001, ""),
        ("gpu-3", 8000, ""),
    ],
)
def test_a_key_is_its_own_servers(host: str, port: int, value: str) -> None:
    assert KEYS.authorization(host, port) == value


@pytest.mark.parametrize(
    "url",
    [
        "http://[0:0:0:0:0:0:0:1]:9",
        "http://[::FFFF:10.0.0.7]:9",
        "http://[fe80::1%25eth0]:9",
        "http://bücher.example:9",
        "http://xn--bcher-kva.example:9",
        "http://Gpu_1.:9",
    ],
)
async def test_the_spelling_of_a_host_hides_no_key(url: str) -> None:
    keys = EngineKeys({url: "k"})
    assert keys.authorization(urlsplit(url).hostname or "", 9) == "Bearer k"  # a pool's

    async def sent(request: ClientRequest) -> ClientResponse:
        raise ConnectionError(request.headers.get("authorization"))

    async with aiohttp.ClientSession() as session:
        request = ClientRequest("GET", URL(url), loop=session._loop, session=session)
        with pytest.raises(ConnectionError, match="Bearer k"):
            await keys.authorize(request, sent)


def test_an_empty_key_is_none_and_another_replaces_it() -> None:
    keys = EngineKeys({"http://a:1": ""})
    assert keys.authorization("a", 1) == ""
    keys.hold({"http://a:1": "new"})
    assert keys.authorization("a", 1) == "Bearer new"
    keys.hold({})
    assert keys.authorization("a", 1) == ""


def test_an_added_key_stays_over_reloads_and_yields_to_the_configuration() -> None:
    keys = EngineKeys()
    keys.add("http://a:1", "added")
    keys.hold({"http://b:1": "k"})
    assert keys.authorization("a", 1) == "Bearer added"
    keys.hold({"http://a:1": "configured"})
    assert keys.authorization("a", 1) == "Bearer configured"
    keys.hold({})
    keys.drop("http://a:1#7")
    keys.drop("http://a:1")
    assert keys.authorization("a", 1) == ""


@pytest.mark.parametrize(
    ("key", "fits"), [("sk-a.b_c~1", True), ("", True), ("a b", False), ("a\r\nx: y", False)]
)
def test_a_key_is_what_a_header_can_carry(key: str, fits: bool) -> None:
    assert (key_problem(key) == "") is fits


async def test_a_client_sends_a_key_to_its_server_only_also_over_a_redirect() -> None:
    seen: list[tuple[str, str | None]] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.path, request.headers.get("authorization")))
        if request.path == "/there":
            return web.Response(text="there")
        return web.Response(status=307, headers={"location": f"http://localhost:{port}/there"})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = int(runner.addresses[0][1])
    keys = EngineKeys({f"http://127.0.0.1:{port}": "k"})
    async with (
        aiohttp.ClientSession(middlewares=(keys.authorize,)) as session,
        session.post(f"http://127.0.0.1:{port}/here") as reply,
    ):
        assert await reply.text() == "there"
    await runner.cleanup()
    assert seen == [("/here", "Bearer k"), ("/there", None)]


async def test_the_simulated_engine_guards_what_vllm_guards() -> None:
    async with running_engine(api_key="k") as engine, aiohttp.ClientSession(engine.url) as http:
        for path, key, status in (
            ("/v1/models", "", 401),
            ("/v1/models", "wrong", 401),
            ("/v1/models", "k", 200),
            ("/health", "", 200),
            ("/metrics", "", 200),
        ):
            async with http.get(path, headers={"Authorization": f"Bearer {key}"}) as reply:
                assert (path, reply.status) == (path, status)
