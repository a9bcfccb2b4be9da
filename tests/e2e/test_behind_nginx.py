"""Streams through a real nginx, with its defaults and with the configuration in docs/."""

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pointsman.cli.config import Admin, Config, Listen
from tests.support.raw_cluster import raw_cluster
from tests.support.upstreams import OK_BODY, STREAM, Client, Served, answer_ok, post, two_events

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
SNIPPET = Path(__file__).parents[2] / "docs" / "nginx.conf"
DEFAULTS = "location / { proxy_pass http://127.0.0.1:8080; }"
START_S_MAX = 10.0

pytestmark = pytest.mark.skipif(not Path(NGINX).exists(), reason="nginx is not installed")

CONFIG = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{ listen 127.0.0.1:{port}; {location} }}
}}
"""


@asynccontextmanager
async def nginx(folder: Path, location: str, upstream_port: int) -> AsyncIterator[int]:
    """Its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    location = location.replace("127.0.0.1:8080", f"127.0.0.1:{upstream_port}")
    path = folder / "nginx.conf"
    path.write_text(CONFIG.format(folder=folder, port=port, location=location))
    process = await asyncio.create_subprocess_exec(
        NGINX, "-e", str(folder / "errors"), "-p", str(folder), "-c", str(path)
    )
    try:
        async with asyncio.timeout(START_S_MAX):
            while not await _listens(port):
                assert process.returncode is None, (folder / "errors").read_text()
                await asyncio.sleep(0.02)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.transport.abort()
    return True


@pytest.mark.parametrize("location", ["defaults", "snippet"])
async def test_events_pass_nginx_one_by_one(location: str, tmp_path: Path) -> None:
    """Seen with other gateways behind it: a pause, and then a wall of text."""
    gate = asyncio.Event()

    text = DEFAULTS if location == "defaults" else SNIPPET.read_text()
    async with (
        raw_cluster(two_events(gate)) as cluster,
        nginx(tmp_path, text, cluster.process.port) as port,
    ):
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        await client.send(post(body=STREAM))
        async with asyncio.timeout(10):
            await client.reader.readuntil(b"data: 1\n\n")
            gate.set()
            await client.reader.readuntil(b"data: 2\n\n")
        client.leave()


async def test_a_client_that_leaves_nginx_is_noticed_behind_it(tmp_path: Path) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def silent(served: Served) -> None:
        asked.set()
        await served.until_closed()
        left.set()

    async with (
        raw_cluster(silent) as cluster,
        nginx(tmp_path, SNIPPET.read_text(), cluster.process.port) as port,
    ):
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        await client.send(post())
        async with asyncio.timeout(10):
            await asked.wait()
            client.leave()
            await left.wait()


async def test_large_bodies_pass_and_connections_are_reused_through_nginx(tmp_path: Path) -> None:
    large = json.dumps({"model": "m", "prompt": "x" * 8_000_000}).encode()
    async with (
        raw_cluster(answer_ok) as cluster,
        nginx(tmp_path, SNIPPET.read_text(), cluster.process.port) as port,
    ):
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        for body in (large, b'{"model":"m","prompt":"x"}', large):
            await client.send(post(body=body))
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, OK_BODY)
            assert cluster.posts()[-1].body == body
            assert re.fullmatch(r"127\.0\.0\.1:\d+", cluster.posts()[-1].header("host") or "")
        client.leave()


async def test_behind_nginx_each_client_is_known_by_the_address_that_nginx_saw(
    tmp_path: Path,
) -> None:
    config = Config(listen=Listen(port=0, trusted_proxies=("127.0.0.1",)), admin=Admin(port=0))
    async with (
        raw_cluster(answer_ok, config=config) as cluster,
        nginx(tmp_path, SNIPPET.read_text(), cluster.process.port) as port,
    ):
        for address in ("127.0.0.2", "127.0.0.3"):
            connection = asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            client = Client(*await connection)
            body = b'{"model":"m","prompt":"x"}'
            await client.send(post("/v1/completions", body, "X-Forwarded-For: 203.0.113.9"))
            assert (await client.answer()).status == 200
            client.leave()
        known = list(cluster.process.service.scheduler.guard._clients)
        assert known == ["address:127.0.0.2", "address:127.0.0.3"]
