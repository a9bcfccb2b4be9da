"""An agent before schedulers of all kinds: those that are not to be trusted, and slow ones."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry

from pointsman.agent import AgentOptions, reporter, rhythm
from pointsman.agent.report import EngineReport
from pointsman.agent.reporter import Reporter
from pointsman.collectors.cadence import Cadence
from pointsman.collectors.link import NodeLink
from pointsman.control.agents import ListenerOptions
from pointsman.core.cache_events import BlockStored
from pointsman.core.events import CacheChanged, NodeDescribed, NodeFacts, NodeSpec
from pointsman.core.ids import NodeId, NodeName
from pointsman.telemetry.collector_metrics import CollectorMetrics
from pointsman.wire.control import (
    FRAME_BYTES_MAX,
    Ack,
    AgentFrame,
    Announce,
    Challenge,
    ControlAddress,
    Farewell,
    Heartbeat,
    Hello,
    Refusal,
    SchedulerFrame,
    Welcome,
    encode,
    frames_from_agent,
)
from pointsman.wire.control_auth import Role, prove, proves
from tests.support.waiting import eventually

SECRET = b"sixteen or more bytes"
SPEC = NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9")
NONCE = b"c" * 16


class Peer:
    """One connection of an agent, as a scheduler has it. Everything that came is in `raw`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.raw = b""
        self._frames = frames_from_agent()
        self._frames.bytes_max = FRAME_BYTES_MAX
        self._reader = reader
        self._writer = writer
        self._waiting: list[AgentFrame] = []

    async def next(self) -> AgentFrame | None:
        async with asyncio.timeout(10):
            while not self._waiting:
                data = await self._reader.read(65_536)
                if not data:
                    return None
                self.raw += data
                self._waiting = self._frames.feed(data)
        return self._waiting.pop(0)

    def say(self, *frames: SchedulerFrame) -> None:
        for frame in frames:
            self._writer.write(encode(frame))

    def babble(self, noise: bytes) -> None:
        self._writer.write(noise)

    async def greet(self) -> None:
        self.say(Challenge(NONCE, wants_proof=False))
        assert isinstance(await self.next(), Hello)
        self.say(Welcome())


class Setting:
    """A scheduler that `script` plays on each connection, and a reporter that knows it."""

    def __init__(self, report: EngineReport) -> None:
        self.report = report
        self.connections = 0
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.running: asyncio.Task[None] | None = None


@asynccontextmanager
async def reporting(
    script: Callable[[Peer], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[Setting, Reporter]]:
    wake = asyncio.Event()
    report = EngineReport(0, SPEC, clock=time.monotonic, wake=wake.set, delta_blocks=16)
    setting = Setting(report)

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        setting.connections += 1
        peer = Peer(reader, writer)
        setting.peers.put_nowait(peer)
        try:
            await script(peer)
        finally:
            writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    address = ControlAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    tally = CollectorMetrics(CollectorRegistry()).node(SPEC.name)
    report.link = NodeLink(SPEC, report, tally, Random(0), cadence=Cadence())
    report.link.join()
    given = AgentOptions(name="a", scheduler=address, **{"heartbeat_s": 0.05, **options})
    subject = Reporter(given, [report], wake=wake, clock=time.monotonic, rng=Random(0))
    async with server, asyncio.TaskGroup() as tasks:
        running = setting.running = tasks.create_task(subject.run())
        try:
            yield setting, subject
        finally:
            running.cancel()


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "RECONNECT_S_MIN", 0.01)
    monkeypatch.setattr(reporter, "RECONNECT_S_MAX", 0.02)


async def test_an_engine_is_announced_before_its_beats_and_the_last_word_is_farewell() -> None:
    seen: list[AgentFrame | None] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        while (frame := await peer.next()) is not None:
            seen.append(frame)
            if isinstance(frame, Heartbeat):
                peer.say(Ack(frame.seq))

    async with reporting(script) as (_, subject):
        await eventually(lambda: len(seen) > 3)
        subject.leave(gone=True)
        await eventually(lambda: isinstance(seen[-1], Farewell))
    assert isinstance(seen[0], Announce)
    beats = [frame.seq for frame in seen if isinstance(frame, Heartbeat)]
    assert beats == list(range(1, len(beats) + 1))
    assert seen[-1] == Farewell(gone=True)


async def test_a_scheduler_that_does_not_know_the_secret_is_told_nothing() -> None:
    async def script(peer: Peer) -> None:
        peer.say(Challenge(NONCE, wants_proof=True))
        hello = await peer.next()
        assert isinstance(hello, Hello)
        peer.say(Welcome(b"x" * 32))
        assert await peer.next() is None

    async with reporting(script, secret=SECRET) as (setting, subject):
        await eventually(lambda: setting.connections >= 2)
        assert not subject.connected.is_set()
        peer = await setting.peers.get()
        assert b"announce" not in peer.raw
        assert SECRET not in peer.raw


async def test_who_asks_for_no_proof_must_give_one_all_the_same() -> None:
    """A stranger in the scheduler's place would say that none is needed."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        assert await peer.next() is None

    async with reporting(script, secret=SECRET) as (setting, subject):
        await eventually(lambda: setting.connections >= 2)
        assert not subject.connected.is_set()


async def test_both_prove_themselves() -> None:
    async def script(peer: Peer) -> None:
        peer.say(Challenge(NONCE, wants_proof=True))
        hello = await peer.next()
        assert isinstance(hello, Hello)
        facts = {"challenge": NONCE, "nonce": hello.nonce}
        assert proves(hello.proof, SECRET, Role.AGENT, agent="a", **facts)
        peer.say(Welcome(prove(SECRET, Role.SCHEDULER, agent="a", **facts)))
        while await peer.next() is not None:
            pass

    async with reporting(script, secret=SECRET) as (setting, subject):
        async with asyncio.timeout(10):
            await subject.connected.wait()
        assert SECRET not in (await setting.peers.get()).raw


async def test_a_missing_secret_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def script(peer: Peer) -> None:
        peer.say(Challenge(NONCE, wants_proof=True))
        await peer.next()

    with caplog.at_level(logging.WARNING):
        async with reporting(script) as (setting, _):
            await eventually(lambda: setting.connections >= 3)
    said = [record.message for record in caplog.records if "--secret-file" in record.message]
    assert len(said) == 1, "once, not at every attempt"


@pytest.mark.parametrize(
    "noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\2\1\xc0", b"\xff" * 8]
)
async def test_what_is_no_scheduler_is_tried_again(noise: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.babble(noise)
        await peer.next()

    async with reporting(script) as (setting, subject):
        await eventually(lambda: setting.connections >= 2)
        assert not subject.connected.is_set()


async def test_who_is_turned_away_waits_before_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporter, "RECONNECT_S_MIN", 60.0)

    async def script(peer: Peer) -> None:
        peer.babble(b"no scheduler")

    async with reporting(script) as (setting, _):
        await eventually(lambda: setting.connections)
        await asyncio.sleep(0.1)
        assert setting.connections == 1


async def test_what_does_not_fit_in_one_beat_comes_with_the_next_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporter, "HASHES_MAX", 8)
    told: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        while (frame := await peer.next()) is not None:
            if isinstance(frame, Heartbeat):
                peer.say(Ack(frame.seq))
                told.extend(len(beat.stored) // 8 for beat in frame.engines)

    async with reporting(script, heartbeat_s=60.0, heartbeat_s_max=60.0) as (setting, _):
        setting.report.submit(NodeDescribed(NodeId(1), NodeFacts(block_tokens=4)))
        changes = tuple(BlockStored((n,), None, (n,) * 4, 4) for n in range(1, 33))
        setting.report.submit(CacheChanged(NodeId(1), changes))
        await eventually(lambda: sum(told) == 32)
    assert max(told) <= 8


THE_END = Refusal("the end")


def _refuses(*refusals: Refusal) -> Callable[[Peer], Awaitable[None]]:
    """A scheduler that greets, refuses, and waits for the agent to go."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        peer.say(*refusals)
        while await peer.next() is not None:
            pass

    return script


async def test_a_refusal_is_passed_on_to_people(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with reporting(_refuses(Refusal("no such pool", 0), THE_END)) as (setting, _):
            await eventually(lambda: setting.connections >= 2)
    assert "engine 0 is refused: no such pool" in caplog.text
    assert "it refuses: the end" in caplog.text


async def test_who_is_cancelled_in_the_moment_of_a_refusal_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = reporter._refusal

    def cancelled_amid(frame: SchedulerFrame) -> str:
        assert setting.running is not None
        setting.running.cancel()
        return refusal(frame)

    monkeypatch.setattr(reporter, "_refusal", cancelled_amid)
    async with reporting(_refuses(THE_END)) as (setting, _):
        running = setting.running
        assert running is not None
        await eventually(running.done, within_s=5)


async def test_who_acknowledges_nothing_hears_less_and_is_left_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rhythm, "LOST_S", 1.0)
    beats: list[float] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        while (frame := await peer.next()) is not None:
            if isinstance(frame, Heartbeat) and frame.seq > 1:
                beats.append(time.monotonic())

    async with reporting(script, heartbeat_s_max=0.2) as (setting, _):
        await eventually(lambda: setting.connections >= 2)
    assert 1 <= len(beats) <= 12, "of 20 without adapting"


def test_a_secret_is_not_shown() -> None:
    options = AgentOptions(name="a", scheduler=ControlAddress("h", 1), secret=SECRET)
    assert SECRET.decode() not in f"{options!r} {options}"
    listening = ListenerOptions(address=ControlAddress("h", 1), secret=SECRET)
    assert SECRET.decode() not in f"{listening!r} {listening}"


async def test_an_address_that_is_none_ends_no_agent(caplog: pytest.LogCaptureFixture) -> None:
    options = AgentOptions(name="a", scheduler=ControlAddress("10.0.0..1", 80))
    wake, clock = asyncio.Event(), time.monotonic
    subject = Reporter(options, [], wake=wake, clock=clock, rng=Random(0))
    running = asyncio.create_task(subject.run())
    await eventually(lambda: "scheduler at 10.0.0..1:80: " in caplog.text)
    subject.leave(gone=False)
    await running
