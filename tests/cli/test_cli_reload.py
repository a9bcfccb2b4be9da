"""When a file is read again, and what becomes of one that cannot be used."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from pointsman.cli import config_file, reload
from pointsman.cli.config import Config, Engine, Key, Listen
from pointsman.cli.config_change import with_names
from pointsman.cli.engine_changes import apply_engines
from pointsman.cli.process import Process
from pointsman.cli.reload import Reloader, Result, Source
from pointsman.control import fleet
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName
from tests.support.cluster import quiet_config, running_process
from tests.support.engines import running_engine
from tests.support.processes import serving
from tests.support.waiting import eventually

WAIT_S_MAX = 10.0
KEY = Key(name="k", hash="sha256:" + "ab" * 32)


class Target:
    """Goes by what it is told, or raises."""

    def __init__(self) -> None:
        self.config = Config()
        self.applied: list[Config] = []
        self.problem = ""
        self.fails = False
        self.pause_s = 0.0
        self.running = 0

    def conflicts(self, config: Config) -> list[str]:
        return [self.problem] if self.problem else []

    async def apply(self, config: Config) -> None:
        self.running += 1
        assert self.running == 1, "one at a time"
        await asyncio.sleep(self.pause_s)
        self.running -= 1
        if self.fails:
            raise RuntimeError("a bug")
        self.config = config
        self.applied.append(config)


def source(file: Path) -> Source:
    return Source(file, lambda: config_file.load(file, {}))


@asynccontextmanager
async def watching(file: Path, target: Target) -> AsyncIterator[Reloader]:
    read = source(file)
    target.config = with_names(read.read())
    reloader = Reloader(read, target, wall_s=lambda: 1_000.0)
    running = asyncio.create_task(reloader.run())
    try:
        yield reloader
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture(autouse=True)
def _watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "WATCH_S", 0.02)


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pointsman.yaml"
    path.write_text("engines: []\n")
    return path


async def test_a_file_that_does_not_change_is_not_read_again(file: Path) -> None:
    target = Target()
    async with watching(file, target) as reloader:
        await asyncio.sleep(0.2)
        assert sum(reloader.state().reloads.values()) == 0


async def test_a_file_that_is_being_written_is_read_when_two_looks_agree(file: Path) -> None:
    looks = iter([(1, 1, 1), (1, 2, 40), (1, 3, 80), None, (2, 4, 90), (2, 4, 90)])
    seen: list[object] = []
    read_at: list[int] = []

    class Scripted(Source):
        def signature(self) -> tuple[int, int, int] | None:
            seen.append(next(looks, (2, 4, 90)))
            return seen[-1]  # type: ignore[return-value]  # of `looks`

    def load() -> Config:
        read_at.append(len(seen))
        return Config()

    scripted = Scripted(file, load)
    scripted.read()  # sees the first
    running = asyncio.create_task(Reloader(scripted, Target()).run())
    await eventually(lambda: len(seen) > 12)
    running.cancel()
    assert read_at == [1, 7], "at the start, and when the last one was seen twice"


async def test_a_change_between_reading_and_watching_is_seen(file: Path) -> None:
    target, read = Target(), source(file)
    target.config = read.read()
    write(file, "engines: []\npolicy: least_request\n")
    reloader = Reloader(read, target)
    running = asyncio.create_task(reloader.run())
    await eventually(lambda: target.config.policy == "least_request")
    running.cancel()


async def test_a_file_that_says_the_same_changes_nothing(file: Path) -> None:
    target = Target()
    async with watching(file, target) as reloader:
        write(file, "# a comment\nengines: []\n")
        await eventually(lambda: reloader.state().reloads["unchanged"] == 1)
        assert target.applied == []
        assert reloader.state().last is Result.UNCHANGED


async def test_requests_go_on_while_a_large_file_is_read(file: Path) -> None:
    """A thousand engines take a second to parse."""
    readers = []

    def load() -> Config:
        readers.append(threading.current_thread())
        return Config()

    await Reloader(Source(file, load), Target()).reload("a test")
    assert len(readers) == 1
    assert readers[0] is not threading.main_thread()


async def test_what_speaks_against_a_file_rejects_it_as_a_whole(file: Path) -> None:
    target = Target()
    async with watching(file, target) as reloader:
        target.problem = "no"
        write(file, "engines: []\npolicy: least_request\n")
        await eventually(lambda: reloader.state().reloads["rejected"] == 1)
        assert reloader.state().problems == (f"{file}:1:1: no",)
        assert target.applied == []
        target.problem = ""
        report = await reloader.reload("asked")
        assert report.result is Result.CHANGED
        assert reloader.state().problems == ()


async def test_a_bug_does_not_end_the_watch(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    target.fails = True
    async with watching(file, target):
        write(file, "engines: []\npolicy: least_request\n")
        await eventually(lambda: "could not be reloaded" in caplog.text)
        target.fails = False
        write(file, "engines: []\npolicy: round_robin\n")
        await eventually(lambda: target.config.policy == "round_robin")


async def test_one_reload_at_a_time(file: Path) -> None:
    target = Target()
    target.pause_s = 0.05
    async with watching(file, target) as reloader:
        write(file, "engines: []\npolicy: least_request\n")
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(reloader.reload("asked")) for _ in range(3)]
        results = [task.result().result for task in asked]
        assert results == [Result.CHANGED, Result.UNCHANGED, Result.UNCHANGED]


async def test_without_a_file_there_is_nothing_to_reload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reloader = Reloader(Source(None, Config), Target())
    report = await reloader.reload("SIGHUP")
    assert report.result is Result.REJECTED
    assert "start with -c FILE" in report.problems[0]
    assert reloader.state().file is None
    assert "-c FILE" in caplog.text


async def test_every_reload_is_told_in_the_log(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    target = Target()
    async with watching(file, target) as reloader:
        write(file, "engines: []\npolicy: least_request\nadmin: {port: 9}\n")
        await reloader.reload("asked")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "configuration reloaded (asked): changed") in lines
    assert ("INFO", '  policy: "marginal_cost" → "least_request"') in lines
    assert ("WARNING", "  admin.port: 8081 → 9 (kept: needs a restart)") in lines


# --- what a process would not do ------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "is_fine"),
    [
        (Listen(), Listen(host="0.0.0.0"), False),
        (Listen(), Listen(host="0.0.0.0", open=True), True),
        (Listen(host="0.0.0.0", api_keys=("k",)), Listen(host="0.0.0.0"), False),
        # The socket stays where it is: without its keys it would be open.
        (Listen(host="0.0.0.0", api_keys=("k",)), Listen(), False),
        (Listen(host="0.0.0.0", open=True), Listen(host="0.0.0.0"), False),
    ],
)
def test_no_reload_opens_the_door(before: Listen, after: Listen, is_fine: bool) -> None:
    process = Process(Config(listen=before))
    assert (process.conflicts(Config(listen=after)) == []) is is_fine
    assert process.conflicts(Config(listen=after, keys=(KEY,))) == []


def test_an_operators_node_is_not_taken_over() -> None:
    process = Process(Config(engines=(Engine(url="http://a:1", name="a"),)))
    process.fleet.add(NodeSpec(name=NodeName("a"), url="http://a:1"))
    process.fleet.add(NodeSpec(name=NodeName("ours"), url="http://b:1"))

    def clash(url: str, name: str) -> list[str]:
        return process.conflicts(Config(engines=(Engine(url=url, name=name),)))

    assert clash("http://a:1", "a") == []
    assert clash("http://c:1", "a") == []
    assert clash("http://c:1", "c") == []
    assert "'ours'" in clash("http://b:1", "b")[0]
    assert "'ours'" in clash("http://c:1", "ours")[0]


async def test_an_engine_that_finds_no_place_keeps_no_other_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet, "NODES_MAX", 1)
    process = Process(Config())
    named = [Engine(url=f"http://{name}:1", name=name) for name in ("a", "b")]
    await apply_engines(process.fleet, (), named, drain_s=1.0)
    assert process.fleet.names == ["a"]
    assert "engine b is not used: the cluster has 1 nodes, its limit" in caplog.text


async def test_what_cannot_be_applied_is_not_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    before = quiet_config()
    async with running_process(before) as process:
        monkeypatch.setattr(process.fleet, "apply", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await process.apply(msgspec.structs.replace(before, policy="round_robin"))
        assert process.config.policy == before.policy


# --- as a user runs it ------------------------------------------------------------------------


async def test_the_command_line_still_wins_after_a_reload(tmp_path: Path) -> None:
    async with running_engine() as engine:
        file = tmp_path / "pointsman.yaml"
        write(file, "policy: round_robin\nlog: {access: none}\n")
        arguments = ("-c", str(file), "--engine", engine.url, "--policy", "least_request")
        async with serving("serve", *arguments) as gateway:
            await gateway.until_said("read again when it changes")
            write(file, "policy: jffc\nlog: {access: none}\ntimeouts: {queue_s: 4}\n")
            await gateway.until_said(r"timeouts\.queue_s: 30\.0 → 4")
            assert "jffc" not in gateway.said
            write(file, "policy: nonsense\n")
            await gateway.until_said("the last good one stays")
            assert f"{file}:1:9: policy: 'nonsense' is none of" in gateway.said
            assert gateway.process.returncode is None


def test_a_report_is_json() -> None:
    report = reload.Report(Result.REJECTED, problems=("x",))
    assert msgspec.json.decode(msgspec.json.encode(report))["result"] == "rejected"


async def test_where_there_is_no_file_a_terminal_that_closes_ends_it() -> None:
    async with serving("serve", "--engine", "http://127.0.0.1:1") as running:
        running.process.send_signal(signal.SIGHUP)
        assert await running.code() == 0
