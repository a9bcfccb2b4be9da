"""A configuration that changes while requests run: nothing is lost, and nothing half applied."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pointsman.cli import config_file, reload
from pointsman.cli.reload import Source
from pointsman.engines.simulated import RunningEngine
from pointsman.gateway import key_digest
from tests.support.cluster import Cluster, new_session, running_process
from tests.support.engines import running_engine
from tests.support.waiting import eventually

WAIT_S_MAX = 20.0
COMPLETIONS = "/v1/completions"
HEAD = "listen: {port: 0, reply_headers: true}\nadmin: {port: 0}\nlog: {access: none}\n"


@pytest.fixture(autouse=True)
def _watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "WATCH_S", 0.03)


class Rig:
    """A process on a file, and spare engines to put into it."""

    def __init__(self, file: Path, cluster: Cluster, engines: list[RunningEngine]) -> None:
        self.file = file
        self.cluster = cluster
        self.engines = engines

    def write(self, *engines: str, rest: str = "") -> None:
        self.file.write_text(self.text(*engines, rest=rest))

    def text(self, *engines: str, rest: str = "") -> str:
        """Engines by letter, with more of their fields after a comma: 'a', 'b, pool: long'."""
        return text_of(self.engines, *engines, rest=rest)

    async def configuration(self) -> Any:
        return (await self.cluster.state())["configuration"]

    async def nodes(self) -> dict[str, Any]:
        return {node["name"]: node for node in (await self.cluster.state())["nodes"]}

    async def until_reloaded(self, times: int, result: str = "changed") -> None:
        await self.cluster.until_shown(
            lambda state: state["configuration"]["reloads"][result] >= times
        )

    async def until_nodes_are(self, *names: str) -> None:
        """Exactly these are there, and all are ready."""
        wanted = sorted((name, "ready", False) for name in names)
        await self.cluster.until_shown(
            lambda state: (
                wanted == sorted((n["name"], n["health"], n["draining"]) for n in state["nodes"])
            )
        )

    async def metric(self, name: str) -> float:
        async with self.cluster.session.get(f"{self.cluster.admin}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def text_of(engines: Sequence[RunningEngine], *names: str, rest: str = "") -> str:
    entries = ""
    for entry in names:
        letter, _, more = entry.partition(",")
        url = engines["abcd".index(letter)].url
        entries += f"  - {{name: {letter}, url: '{url}'{',' + more if more else ''}}}\n"
    return f"{HEAD}engines:{' []' if not names else ''}\n{entries}{rest}"


@asynccontextmanager
async def reloading(
    tmp_path: Path, *names: str, count: int = 2, rest: str = "", **options: Any
) -> AsyncIterator[Rig]:
    """`count` engines, those named in the file; the process goes by it."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(running_engine(seed=number, **options))
            for number in range(count)
        ]
        file = tmp_path / "pointsman.yaml"
        file.write_text(text_of(engines, *names, rest=rest))
        source = Source(file, partial(config_file.load, file, {}))
        process = await stack.enter_async_context(running_process(source.read(), source))
        session = await stack.enter_async_context(new_session())
        rig = Rig(file, Cluster(process, engines, session), engines)
        await rig.until_nodes_are(*(name[0] for name in names))
        yield rig
        await rig.cluster.at_rest()


class Traffic:
    """Clients that never stop asking. `bad` is every answer that was no whole 200."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.served = 0
        self.bad: list[str] = []
        self.nodes: list[str] = []
        self._over = False

    @asynccontextmanager
    async def running(self, clients: int) -> AsyncIterator["Traffic"]:
        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(self._ask_on(number))
            try:
                yield self
            finally:
                self._over = True

    async def more(self, count: int) -> None:
        """Wait until so many more are served."""
        goal = self.served + count
        await eventually(lambda: self.served >= goal or self.bad)

    async def _ask_on(self, number: int) -> None:
        turn = 0
        while not self._over:
            turn += 1
            stream = turn % 2 == 0
            body = {"model": "sim", "prompt": f"{number}-{turn}", "max_tokens": 8, "stream": stream}
            try:
                answer = await self.cluster.post(COMPLETIONS, body)
            except aiohttp.ClientError as error:
                self.bad.append(repr(error))
                continue
            whole = not stream or answer.body.endswith(b"data: [DONE]\n\n")
            if answer.status != 200 or not whole or b'"error"' in answer.body:
                self.bad.append(repr(answer))
            self.nodes.append(answer.headers.get("x-pointsman-node", ""))
            self.served += 1


# --- under load ---------------------------------------------------------------------------


async def test_engines_come_and_go_under_load_without_one_failed_request(tmp_path: Path) -> None:
    async with (
        reloading(tmp_path, "a", "b", count=4, speed=20.0) as rig,
        Traffic(rig.cluster).running(12) as traffic,
    ):
        steps = (("b", "c"), ("c",), ("c", "d, pool: x"), ("a", "b"), ("a, concurrency_max: 9",))
        for number, names in enumerate(steps, 1):
            await traffic.more(30)
            policy = "least_request" if number % 2 else "round_robin"
            rig.write(*names, rest=f"policy: {policy}\n")
            await rig.until_reloaded(number)
            await rig.until_nodes_are(*(name[0] for name in names))
            assert rig.cluster.scheduler.policy == policy
        await traffic.more(30)
    assert traffic.bad == []
    assert set(traffic.nodes) == {"a", "b", "c", "d"}
    assert set(traffic.nodes[-10:]) == {"a"}


async def test_all_engines_are_replaced_at_once_without_one_failed_request(tmp_path: Path) -> None:
    """The old ones stay until the new ones have described themselves."""
    async with (
        reloading(tmp_path, "a", "b", count=4, speed=20.0) as rig,
        Traffic(rig.cluster).running(8) as traffic,
    ):
        await traffic.more(20)
        rig.write("c", "d")
        await rig.until_nodes_are("c", "d")
        await traffic.more(20)
    assert traffic.bad == []


async def test_all_engines_get_other_names_without_one_failed_request(tmp_path: Path) -> None:
    """One after the other: each comes back before the next one goes."""
    async with (
        reloading(tmp_path, "a", "b", speed=20.0) as rig,
        Traffic(rig.cluster).running(8) as traffic,
    ):
        await traffic.more(20)
        renamed = rig.text("a", "b").replace("name: a", "name: c").replace("name: b", "name: d")
        rig.file.write_text(renamed)
        await rig.until_nodes_are("c", "d")
        await traffic.more(20)
    assert traffic.bad == []


async def test_engines_that_swap_addresses_leave_no_request_without_one(tmp_path: Path) -> None:
    async with (
        reloading(tmp_path, "a", "b", speed=20.0) as rig,
        Traffic(rig.cluster).running(8) as traffic,
    ):
        await traffic.more(20)
        before = {name: node["url"] for name, node in (await rig.nodes()).items()}
        rig.engines.reverse()
        rig.write("a", "b")
        await rig.until_reloaded(1)
        await rig.until_nodes_are("a", "b")
        after = {name: node["url"] for name, node in (await rig.nodes()).items()}
        await traffic.more(20)
    assert after == {"a": before["b"], "b": before["a"]}
    assert traffic.bad == []


async def test_an_engine_that_is_removed_finishes_what_runs_there(tmp_path: Path) -> None:
    async with reloading(tmp_path, "a", "b", rest="policy: round_robin\n", speed=1.0) as rig:
        body = {"model": "sim", "prompt": "long", "max_tokens": 100, "stream": True}
        async with rig.cluster.session.post(rig.cluster.api + COMPLETIONS, json=body) as stream:
            await stream.content.readline()
            gone = stream.headers["x-pointsman-node"]
            stays = "b" if gone == "a" else "a"
            rig.write(stays, rest="policy: round_robin\n")
            await rig.until_reloaded(1)
            await rig.cluster.until_shown(
                lambda state: any(n["draining"] for n in state["nodes"] if n["name"] == gone)
            )
            answers = [await rig.cluster.complete(f"new {n}", max_tokens=1) for n in range(4)]
            assert {answer.node for answer in answers} == {stays}
            assert (await rig.nodes())[gone]["inflight"] == 1
            rest = await stream.content.read()
        assert rest.count(b'"text":') >= 99, "every token came"
        assert rest.endswith(b"data: [DONE]\n\n")
        await rig.until_nodes_are(stays)


# --- what is applied, and how that is told -------------------------------------------------


async def test_a_reload_tells_old_and_new_and_what_has_to_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reloading(tmp_path, "a") as rig:
        caplog.set_level(logging.INFO)
        rig.write("a, pool: long", "b", rest="policy: least_request\ntimeouts: {queue_s: 3}\n")
        rig.file.write_text(rig.file.read_text().replace("admin: {port: 0}", "admin: {port: 1}"))
        told = await rig.cluster.admin_json("POST", "/reload")
        assert told["result"] == "changed"
        changes = {change["path"]: change for change in told["changes"]}
        assert set(changes) == {
            *("admin.port", "policy", "engines[a].pool", "engines[b]", "timeouts.queue_s")
        }
        assert [path for path, change in changes.items() if change["kept"]] == ["admin.port"]
        assert 'policy: "marginal_cost" → "least_request"' in caplog.text
        assert "admin.port: 0 → 1 (kept: needs a restart)" in caplog.text
        await rig.until_nodes_are("a", "b")
        assert (await rig.nodes())["a"]["pool"] == "long"
        state = await rig.configuration()
        assert state["pending"] == ["admin.port: 0 → 1 (kept: needs a restart)"]
        again = await rig.cluster.admin_json("POST", "/reload")
        assert again["result"] == "unchanged"
        assert await rig.metric('pointsman_config_reloads_total{result="changed"}') == 1.0


async def test_an_engine_configured_otherwise_keeps_its_cache(tmp_path: Path) -> None:
    async with reloading(tmp_path, "a") as rig:
        await rig.cluster.complete("Where do trains go? " * 200)
        before = (await rig.nodes())["a"]
        rig.write("a, labels: {gpu: h100}, concurrency_max: 3")
        await rig.until_reloaded(1)
        after = (await rig.nodes())["a"]
        assert after["incarnation"] == before["incarnation"]
        assert (after["labels"], after["concurrency_max"]) == ({"gpu": "h100"}, 3)
        assert after["index_blocks"] >= before["index_blocks"] > 0


async def test_a_bad_file_changes_nothing_and_is_shown_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reloading(tmp_path, "a") as rig:
        good = await rig.metric("pointsman_config_last_reload_success_timestamp_seconds")
        rig.file.write_text(rig.text("b") + "polcy: least_request\ntimeouts: {queue_s: soon}\n")
        line = rig.file.read_text().splitlines().index("polcy: least_request") + 1
        await rig.until_reloaded(1, "rejected")
        state = await rig.configuration()
        first, second = state["problems"]
        assert first.startswith(f"{rig.file}:{line}:1: unknown key 'polcy'")
        assert second.startswith(f"{rig.file}:{line + 1}:21: ")
        assert first in caplog.text
        assert await rig.metric('pointsman_config_reloads_total{result="rejected"}') == 1.0
        assert await rig.metric("pointsman_config_last_reload_successful") == 0.0
        stamp = "pointsman_config_last_reload_success_timestamp_seconds"
        assert await rig.metric(stamp) == good
        assert (await rig.cluster.complete("still there")).node == "a"
        url = f"{rig.cluster.admin}/pointsman/v1/reload"
        async with rig.cluster.session.post(url) as refused:
            assert refused.status == 400
            assert first in (await refused.json())["error"]["message"]
        rig.write("a", "b")
        await rig.until_nodes_are("a", "b")
        assert (await rig.configuration())["problems"] == []
        assert await rig.metric(stamp) > good
        assert await rig.metric("pointsman_config_last_reload_successful") == 1.0


async def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    async with reloading(tmp_path, "a") as rig:
        rig.file.unlink()
        await rig.until_reloaded(1, "rejected")
        assert "no such file" in (await rig.configuration())["problems"][0]
        assert (await rig.cluster.complete("still there")).node == "a"
        await asyncio.sleep(0.3)
        assert (await rig.configuration())["reloads"]["rejected"] == 1, "told once"


async def test_sighup_reloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloading(tmp_path, "a") as rig:
        monkeypatch.setattr(reload, "WATCH_S", 3_600.0)
        await asyncio.sleep(0.1)  # the wait that has begun is short
        rig.file.write_text(rig.text("a", rest="policy: least_request\n"))
        os.kill(os.getpid(), signal.SIGHUP)
        await rig.until_reloaded(1)
        assert rig.cluster.scheduler.policy == "least_request"


async def test_a_configmap_that_is_swapped_is_seen(tmp_path: Path) -> None:
    """Kubernetes: file -> ..data/file -> a dated folder; only the middle link is replaced."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine())
        text = text_of([engine], "a")

        def publish(version: str, content: str) -> None:
            (tmp_path / version).mkdir()
            (tmp_path / version / "pointsman.yaml").write_text(content)
            (tmp_path / "..new").symlink_to(version)
            (tmp_path / "..new").rename(tmp_path / "..data")

        publish("..1", text)
        file = tmp_path / "pointsman.yaml"
        file.symlink_to("..data/pointsman.yaml")
        source = Source(file, partial(config_file.load, file, {}))
        process = await stack.enter_async_context(running_process(source.read(), source))
        session = await stack.enter_async_context(new_session())
        rig = Rig(file, Cluster(process, [engine], session), [engine])
        publish("..2", text + "policy: least_request\n")
        await rig.until_reloaded(1)
        assert rig.cluster.scheduler.policy == "least_request"


# --- keys and limits ------------------------------------------------------------------------


def entry(name: str, key: str, more: str = "") -> str:
    digest = key_digest(key.encode()).hex()
    return f"  - {{name: {name}, hash: 'sha256:{digest}'{', ' + more if more else ''}}}\n"


async def test_keys_and_their_limits_are_reloaded(tmp_path: Path) -> None:
    async with reloading(tmp_path, "a", rest="keys:\n" + entry("x", "key-of-x")) as rig:

        async def ask(key: str) -> Any:
            body = {"model": "sim", "prompt": "hello", "max_tokens": 2}
            bearer = {"authorization": f"Bearer {key}"}
            return await rig.cluster.post(COMPLETIONS, body, bearer)

        assert [(await ask(key)).status for key in ("key-of-x", "key-of-y")] == [200, 401]
        keys = entry("x", "key-of-x", "requests_per_minute: 2") + entry("y", "key-of-y")
        rig.write("a", rest="keys:\n" + keys)
        await rig.until_reloaded(1)
        answers = [await ask(key) for key in ("key-of-x", "key-of-x", "key-of-x", "key-of-y")]
        assert [answer.status for answer in answers] == [200, 200, 429, 200]
        assert answers[2].json["error"]["code"] == "rate_limit_exceeded"
        state = await rig.cluster.state()
        shown = {key["name"]: key["quota"] for key in state["keys"]}
        assert shown["x"]["requests"]["limit"] == 2
        assert shown["y"]["requests"] is None
        text = json.dumps(state)
        assert "key-of-x" not in text
        assert key_digest(b"key-of-x").hex() not in text


async def test_limits_of_requests_in_the_queue_are_reloaded(tmp_path: Path) -> None:
    async with reloading(tmp_path, "a, concurrency_max: 1", speed=1.0) as rig:
        rig.write("a, concurrency_max: 1", rest="limits: {queue_length_max: 0}\n")
        await rig.until_reloaded(1)
        body = {"model": "sim", "prompt": "long", "max_tokens": 60, "stream": True}
        async with rig.cluster.session.post(rig.cluster.api + COMPLETIONS, json=body) as stream:
            await stream.content.readline()
            refused = await rig.cluster.post(COMPLETIONS, body)
            assert (refused.status, refused.headers["x-pointsman-reason"]) == (429, "queue_full")
            await stream.content.read()


async def test_nothing_is_told_of_keys_in_logs_metrics_and_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = "keys:\n" + entry("x", "key-of-x", "requests_per_minute: 1")
    async with reloading(tmp_path, "a", rest=keys) as rig:
        body = {"model": "sim", "prompt": "hello", "max_tokens": 2}
        bearer = {"authorization": "Bearer key-of-x"}
        answers = [await rig.cluster.post(COMPLETIONS, body, bearer) for _ in range(2)]
        rig.write("a", rest="keys:\n" + entry("x", "key-of-z"))
        await rig.until_reloaded(1)
        bad = rig.text("a", rest="keys:\n  - {name: x, hash: key-of-x}\n")
        rig.file.write_text(bad)
        await rig.until_reloaded(1, "rejected")
        async with rig.cluster.session.get(f"{rig.cluster.admin}/metrics") as reply:
            page = await reply.text()
        told = caplog.text + page + repr(answers) + json.dumps(await rig.cluster.state())
        for secret in ("key-of-x", "key-of-z"):
            assert secret not in told
            assert key_digest(secret.encode()).hex() not in told


# --- operators' nodes -----------------------------------------------------------------------


async def test_nodes_of_the_admin_plane_are_left_alone(tmp_path: Path) -> None:
    async with reloading(tmp_path, "a", count=3) as rig:
        added = {"name": "ours", "url": rig.engines[2].url}
        await rig.cluster.admin_json("POST", "/nodes", added)
        await rig.until_nodes_are("a", "ours")
        rig.write("b")
        await rig.until_nodes_are("b", "ours")
        rig.write("b", "c")  # the operator's engine
        await rig.until_reloaded(1, "rejected")
        assert (
            "node 'ours' was added over the admin plane"
            in ((await rig.configuration())["problems"][0])
        )
        await rig.until_nodes_are("b", "ours")


async def test_a_node_that_was_to_leave_and_is_back_in_the_file_stays(tmp_path: Path) -> None:
    async with reloading(tmp_path, "a", "b", rest="policy: round_robin\n", speed=1.0) as rig:
        body = {"model": "sim", "prompt": "long", "max_tokens": 100, "stream": True}
        async with rig.cluster.session.post(rig.cluster.api + COMPLETIONS, json=body) as stream:
            await stream.content.readline()
            gone = stream.headers["x-pointsman-node"]
            incarnation = (await rig.nodes())[gone]["incarnation"]
            rig.write("b" if gone == "a" else "a", rest="policy: round_robin\n")
            await rig.until_reloaded(1)
            rig.write("a", "b", rest="policy: round_robin\n")
            await rig.until_nodes_are("a", "b")
            assert (await rig.nodes())[gone]["incarnation"] == incarnation
            await stream.content.read()
        await asyncio.sleep(0.3)
        await rig.until_nodes_are("a", "b")
