"""Agents for tests, on the test's loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from pointsman.agent import Agent, AgentOptions, FrontOptions, LocalEngine
from pointsman.collectors.cadence import Cadence
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName
from pointsman.wire.control import (
    FRAME_BYTES_MAX,
    AgentFrame,
    Challenge,
    ControlAddress,
    Heartbeat,
    Hello,
    SchedulerFrame,
    Welcome,
    encode,
    frames_from_agent,
    frames_from_scheduler,
)
from pointsman.wire.control_auth import Role, prove

BRISK = Cadence(
    probe_s=0.1, probe_retry_s=0.05, probe_timeout_s=1.0, scrape_s=0.05, scrape_idle_s=0.1
)


def agent_options(
    port: int,
    urls: Sequence[str],
    front: FrontOptions | None = None,
    command: tuple[str, ...] = (),
    **more: Any,
) -> AgentOptions:
    """An agent named "a" beside these engines, which it calls a-1, a-2 …"""
    engines = tuple(
        LocalEngine(
            url=url,
            spec=NodeSpec(name=NodeName(f"a-{number}"), url=url),
            front=front,
            command=command,
        )
        for number, url in enumerate(urls, 1)
    )
    given = {"name": "a", "heartbeat_s": 0.1, "delta_s_min": 0.02, "cadence": BRISK, **more}
    return AgentOptions(scheduler=ControlAddress("127.0.0.1", port), engines=engines, **given)


@asynccontextmanager
async def running_agent(options: AgentOptions) -> AsyncIterator[Agent]:
    """Ends as an agent does whose engines go on."""
    agent = Agent(options, rng=Random(1))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(agent.run())
        try:
            yield agent
        finally:
            agent.stop()
            await running


class LossyWire:
    """A wire between agents and scheduler that loses heartbeats while told to."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.lose = False
        self.lost = 0
        self.beats: list[Heartbeat] = []  # that came through
        self._target = port

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LossyWire"]:
        async with asyncio.TaskGroup() as tasks:
            server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            serving = tasks.create_task(server.serve_forever())
            try:
                yield self
            finally:
                serving.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", self._target)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._back(there, writer))
            tasks.create_task(self._forth(reader, to_there))

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = frames_from_agent()
        frames.bytes_max = FRAME_BYTES_MAX
        while data := await reader.read(65_536):
            for frame in frames.feed(data):
                if isinstance(frame, Heartbeat):
                    if self.lose:
                        self.lost += 1
                        continue
                    self.beats.append(frame)
                writer.write(encode(frame))
        writer.close()


class RawAgent:
    """A hand-driven side of the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.frames = frames_from_scheduler()
        self.frames.bytes_max = FRAME_BYTES_MAX
        self.writer = writer
        self._reader = reader
        self._waiting: list[SchedulerFrame] = []

    @classmethod
    async def connect(cls, port: int) -> "RawAgent":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def next(self) -> SchedulerFrame | None:
        """The next frame, None at the end."""
        async with asyncio.timeout(10):
            while not self._waiting:
                data = await self._read()
                if not data:
                    await self.close()
                    return None
                self._waiting = self.frames.feed(data)
        return self._waiting.pop(0)

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(65_536)
        except ConnectionResetError:
            return b""

    async def send(self, *frames: AgentFrame) -> None:
        for frame in frames:
            self.writer.write(encode(frame))
        await self.writer.drain()

    async def greet(self, name: str = "raw", secret: bytes | None = None, boot: int = 1) -> Welcome:
        challenge = await self.next()
        assert isinstance(challenge, Challenge), challenge
        nonce = b"n" * 16
        facts = {"challenge": challenge.nonce, "nonce": nonce, "agent": name}
        proof = b"" if secret is None else prove(secret, Role.AGENT, **facts)  # type: ignore[arg-type]  # by name
        await self.send(Hello(name, nonce, proof, boot))
        welcome = await self.next()
        assert isinstance(welcome, Welcome), welcome
        return welcome

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
