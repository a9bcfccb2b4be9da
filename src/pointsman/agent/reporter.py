"""Keeps the connection to the scheduler: greets, sends heartbeats, answers comparisons, and
connects anew."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from random import Random

from pointsman import __version__
from pointsman.agent.absence import Absence
from pointsman.agent.options import AgentOptions
from pointsman.agent.report import EngineReport
from pointsman.agent.rhythm import Rhythm
from pointsman.collectors.cancellation import first_error, heed_cancellation
from pointsman.wire.control import (
    FRAME_BYTES_MAX,
    HASHES_MAX,
    Ack,
    AgentFrame,
    Challenge,
    Compare,
    ControlError,
    Farewell,
    FrameReader,
    Heartbeat,
    Hello,
    Refusal,
    SchedulerFrame,
    Welcome,
    encode,
    frames_from_scheduler,
    unpack_digests,
)
from pointsman.wire.control_auth import Role, prove, proves

GREETING_S_MAX = 5.0
SEND_S_MAX = 10.0
"""How long the scheduler may take to read what is sent; beyond it, it is gone."""

RECONNECT_S_MIN = 0.2
RECONNECT_S_MAX = 5.0
"""The pause between attempts doubles from one to the other. The scheduler waits as long before it
looks for itself."""

READ_BYTES = 65_536

log = logging.getLogger(__name__)


class Unwelcome(Exception):  # noqa: N818 - named by what happened
    """The scheduler cannot be reported to, for now. The text is for people."""


class Reporter:
    """Tells one scheduler of all engines, for as long as it runs."""

    def __init__(
        self,
        options: AgentOptions,
        reports: Sequence[EngineReport],
        *,
        wake: asyncio.Event,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        """`wake` is set when the next heartbeat should not wait."""
        self.connected = asyncio.Event()
        self._options = options
        self._reports = reports
        self._now_s = clock
        self._rng = rng
        self._boot = rng.getrandbits(53)
        self._wake = wake
        self._absence = Absence()
        self._farewell: Farewell | None = None

    def leave(self, *, gone: bool) -> None:
        """Say goodbye, and end: `run` returns soon."""
        self._farewell = Farewell(gone)
        self._wake.set()

    async def run(self) -> None:
        """Report until told to leave; a connection that breaks is made again."""
        delay_s = RECONNECT_S_MIN
        while self._farewell is None:
            try:
                await self._report()
                continue
            except* Unwelcome as unwelcome:
                self._complain(str(first_error(unwelcome)))
            except* (OSError, UnicodeError, ControlError) as trouble:
                self._complain(str(first_error(trouble)) or "it does not answer")
            finally:
                if self.connected.is_set():
                    self.connected.clear()
                    delay_s = RECONNECT_S_MIN
            heed_cancellation()
            await self._pause(delay_s * self._rng.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, RECONNECT_S_MAX)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when it is time to leave."""
        try:
            async with asyncio.timeout(seconds):
                while self._farewell is None:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            pass

    def _complain(self, problem: str) -> None:
        if told := self._absence.told(problem, self._now_s()):
            log.warning("scheduler at %s: %s; trying again", self._options.scheduler, told)

    async def _report(self) -> None:
        address = self._options.scheduler
        async with asyncio.timeout(GREETING_S_MAX):
            if address.path:
                reader, writer = await asyncio.open_unix_connection(address.path)
            else:
                reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            session = _Session(reader, writer, self._now_s)
            async with asyncio.timeout(GREETING_S_MAX):
                await session.greet(self._options.name, self._options.secret, self._boot)
            log.info("scheduler at %s: %s", address, self._absence.over(self._now_s()))
            async with asyncio.TaskGroup() as tasks:
                answering = tasks.create_task(session.answer(self._reports))
                await self._beat(session)
                answering.cancel()
        finally:
            writer.close()

    # --- heartbeats ---------------------------------------------------------------------

    async def _beat(self, session: "_Session") -> None:
        options = self._options
        session.rhythm = rhythm = Rhythm(options.heartbeat_s, options.heartbeat_s_max)
        for report in self._reports:
            report.connected()
        while True:
            await self._announce(session)
            began_s = self._now_s()
            if rhythm.is_lost(began_s):
                raise Unwelcome("it acknowledges nothing any more")
            await session.send(self._heartbeat(rhythm.send(began_s)))
            self.connected.set()
            if self._farewell is not None:
                await session.send(self._farewell)
                return
            await self._until_due(began_s, rhythm)

    async def _announce(self, session: "_Session") -> None:
        for report in self._reports:
            if (announcement := report.announcement()) is not None:
                await session.send(announcement)

    def _heartbeat(self, seq: int) -> Heartbeat:
        self._wake.clear()
        beats, room = [], HASHES_MAX
        for report in self._reports:
            if report.incarnation:
                beat = report.beat(room)
                room -= (len(beat.stored) + len(beat.removed)) // 8
                beats.append(beat)
        if any(report.has_more for report in self._reports):
            self._wake.set()
        return Heartbeat(seq, tuple(beats))

    async def _until_due(self, began_s: float, rhythm: Rhythm) -> None:
        """Wait for the interval to pass, or for a reason to be early, but at least the least
        distance. While the network is in trouble only leaving is such a reason."""
        while (left_s := began_s + rhythm.interval_s - self._now_s()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            except TimeoutError:
                return
            if self._farewell is not None:
                return
            if not rhythm.is_troubled:
                await asyncio.sleep(max(0.0, began_s + self._options.delta_s_min - self._now_s()))
                return
            await asyncio.sleep(left_s)


class _Session:
    """One connection to the scheduler."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        clock: Callable[[], float],
    ) -> None:
        self.rhythm: Rhythm | None = None
        self._reader = reader
        self._writer = writer
        self._now_s = clock
        self._frames: FrameReader[SchedulerFrame] = frames_from_scheduler()
        self._waiting: list[SchedulerFrame] = []

    async def send(self, frame: AgentFrame) -> None:
        self._writer.write(encode(frame))
        async with asyncio.timeout(SEND_S_MAX):
            await self._writer.drain()

    async def next_frame(self) -> SchedulerFrame:
        """The scheduler's next frame. Raises Unwelcome when there is none any more."""
        while not self._waiting:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise Unwelcome("it closed the connection")
            self._waiting = self._frames.feed(data)
        return self._waiting.pop(0)

    async def greet(self, agent: str, secret: bytes | None, boot: int) -> None:
        """Prove who we are, and see that it is the scheduler. Raises Unwelcome."""
        challenge = await self.next_frame()
        if not isinstance(challenge, Challenge):
            raise Unwelcome(_refusal(challenge))
        if challenge.wants_proof and secret is None:
            raise Unwelcome("it wants a secret: give --secret-file")
        nonce = secrets.token_bytes(32)
        facts = {"challenge": challenge.nonce, "nonce": nonce}
        proof = b"" if secret is None else prove(secret, Role.AGENT, agent=agent, **facts)
        await self.send(Hello(agent, nonce, proof, boot, f"pointsman {__version__}"))
        welcome = await self.next_frame()
        if not isinstance(welcome, Welcome):
            raise Unwelcome(_refusal(welcome))
        if secret is not None and not proves(
            welcome.proof, secret, Role.SCHEDULER, agent=agent, **facts
        ):
            raise Unwelcome("it does not know the secret: is it our scheduler?")
        self._frames.bytes_max = FRAME_BYTES_MAX

    async def answer(self, reports: Sequence[EngineReport]) -> None:
        """Take what the scheduler says, until the connection ends."""
        while True:
            match frame := await self.next_frame():
                case Ack():
                    if self.rhythm is not None:
                        self.rhythm.acknowledged(frame.seq, self._now_s())
                case Compare():
                    report = next((r for r in reports if r.number == frame.engine), None)
                    if report is not None and report.incarnation == frame.incarnation:
                        await self._compare(report, unpack_digests(frame.digests))
                case Refusal(engine=int(number)):
                    log.warning("engine %d is refused: %s", number, frame.detail)
                case _:
                    raise Unwelcome(_refusal(frame))

    async def _compare(self, report: EngineReport, digests: Sequence[int]) -> None:
        for number in report.differing(digests):
            for part in report.bucket(number):
                self._writer.write(encode(part))  # one bucket is of one moment
            async with asyncio.timeout(SEND_S_MAX):
                await self._writer.drain()


def _refusal(frame: SchedulerFrame) -> str:
    if isinstance(frame, Refusal):
        return f"it refuses: {frame.detail}"
    return f"it says {type(frame).__name__.lower()} out of turn"
