"""`up` and `serve` as processes: from the first line they print to the way they end."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

START_S_MAX = 60.0
END_S_MAX = 30.0


class Running:
    """A `pointsman` process that serves."""

    def __init__(self, process: asyncio.subprocess.Process, api: str, admin: str) -> None:
        self.process = process
        self.api = api
        self.admin = admin

    async def end(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(END_S_MAX):
            return await self.process.wait()


@asynccontextmanager
async def pointsman(*arguments: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pointsman", *arguments, "--port", "0", "--admin-port", "0"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        async with asyncio.timeout(START_S_MAX):
            yield await _served(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _served(process: asyncio.subprocess.Process) -> Running:
    """Where it serves, from what it prints. Fails with that if it does not."""
    assert process.stderr is not None
    text = ""
    while found := (await process.stderr.readline()).decode():
        text += found
        api = re.search(r"(http://\S+)/v1\b", text)
        admin = re.search(r"(http://\S+)/pointsman/v1/state", text)
        if api and admin:
            return Running(process, api[1], admin[1])
    raise AssertionError(text)


async def chat(session: aiohttp.ClientSession, api: str, **more: object) -> aiohttp.ClientResponse:
    body = {"messages": [{"role": "user", "content": "Which track?"}], "max_tokens": 4, **more}
    return await session.post(f"{api}/v1/chat/completions", json={"model": "sim", **body})


async def test_up_serves_explains_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    arguments = ("--engines", "2", "--speed", "50", "--access-log", str(log))
    async with pointsman("up", *arguments) as running, aiohttp.ClientSession() as session:
        reply = await chat(session, running.api)
        assert reply.status == 200, await reply.text()
        request_id = reply.headers["x-request-id"]
        node = reply.headers["x-pointsman-node"]
        assert node in ("engine-1", "engine-2")
        assert reply.headers["x-pointsman-policy"] == "marginal_cost"
        assert "127.0.0.1" not in str(reply.headers), "addresses of engines stay inside"
        assert await explained(running.admin, request_id) == [node]
        assert await explained(running.admin, "--prompt", "Which track?") != []
        running.process.send_signal(signal.SIGINT)
        assert await running.end() == 0
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["id"], line["node"], line["end"]) == (request_id, node, "finished")
    assert "Which track?" not in log.read_text()


async def explained(admin: str, *arguments: str) -> list[str]:
    """The nodes of the decisions that `pointsman explain` shows."""
    command = ("-m", "pointsman", "explain", *arguments, "--json", "--admin-url", admin)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return [decision["node"] for decision in json.loads(out)]


async def test_engines_never_outlive_a_killed_parent() -> None:
    async with pointsman("up", "--engines", "2") as running, aiohttp.ClientSession() as session:
        async with session.get(f"{running.admin}/pointsman/v1/state") as reply:
            urls = [node["url"] for node in (await reply.json())["nodes"]]
        assert len(urls) == 2
        running.process.kill()
        await running.end()
        async with asyncio.timeout(END_S_MAX):
            for url in urls:
                await until_gone(url)


async def until_gone(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.05)


async def test_serve_drains_on_sigterm() -> None:
    """What runs finishes; what comes is told 503."""
    async with (
        pointsman("up", "--engines", "1", "--access-log", "none") as cluster,
        aiohttp.ClientSession() as session,
    ):
        engines = ("--engine", cluster.api, "--access-log", "none")
        async with pointsman("serve", *engines) as running:
            await until_ready(session, running.api)
            streaming = await chat(session, running.api, stream=True, max_tokens=64)
            await streaming.content.readline()
            running.process.send_signal(signal.SIGTERM)
            await until_draining(session, running.api)
            refused = await chat(session, running.api)
            assert refused.status == 503
            assert refused.headers["x-pointsman-reason"] == "draining"
            assert b"data: [DONE]" in await streaming.content.read()
            assert await running.end() == 0


async def until_ready(session: aiohttp.ClientSession, api: str) -> None:
    while await status(session, f"{api}/ready") != 200:  # noqa: ASYNC110 - another process's state
        await asyncio.sleep(0.05)


async def until_draining(session: aiohttp.ClientSession, api: str) -> None:
    while await status(session, f"{api}/ready") == 200:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)


async def status(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as reply:
        return reply.status
