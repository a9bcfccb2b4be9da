"""`up` as a process: from the first line it prints to the way it ends."""

import asyncio
import json
import signal
from pathlib import Path

from tests.support.cluster import new_session
from tests.support.processes import run_inside, serving
from tests.support.waiting import eventually

MESSAGE = {"role": "user", "content": "Which track?"}
BODY = {"model": "sim", "messages": [MESSAGE], "max_tokens": 4}


async def test_up_serves_explains_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    arguments = ("--engines", "2", "--speed", "50", "--access-log", str(log))
    async with serving("up", *arguments) as running, new_session() as session:
        async with session.post(f"{running.api}/v1/chat/completions", json=BODY) as reply:
            assert reply.status == 200, await reply.text()
        request_id = reply.headers["x-request-id"]
        node = reply.headers["x-pointsman-node"]
        assert node in ("engine-1", "engine-2")
        assert reply.headers["x-pointsman-policy"] == "marginal_cost"
        assert "127.0.0.1" not in str(reply.headers), "addresses of engines stay inside"
        assert await explained(running.admin, request_id) == [node]
        assert await explained(running.admin, "--prompt", "Which track?") != []
        running.process.send_signal(signal.SIGINT)
        assert await running.code() == 0
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["id"], line["node"], line["end"]) == (request_id, node, "finished")
    assert "Which track?" not in log.read_text()


async def explained(admin: str, *arguments: str) -> list[str]:
    """The nodes of the decisions that `pointsman explain` shows."""
    ended = await run_inside("explain", *arguments, "--json", "--admin-url", admin)
    assert ended.code == 0, ended.err
    return [decision["node"] for decision in json.loads(ended.out)]


async def test_engines_never_outlive_a_killed_parent() -> None:
    async with serving("up", "--engines", "2") as running, new_session() as session:
        async with session.get(f"{running.admin}/pointsman/v1/state") as reply:
            urls = [node["url"] for node in (await reply.json())["nodes"]]
        assert len(urls) == 2
        running.process.kill()
        await running.code()
        for url in urls:
            await eventually(lambda url=url: is_gone(url))  # type: ignore[misc]  # mypy infers no lambda with defaults


async def is_gone(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False
