"""One agent's connection: who is it, what does it say?"""

import asyncio
import logging
import os
import secrets
from typing import Protocol, assert_never, cast

from pointsman.control.agents.attended import AttendedEngine
from pointsman.control.agents.gathering import Gathering
from pointsman.wire.control import (
    FRAME_BYTES_MAX,
    Ack,
    AgentFrame,
    Announce,
    Bucket,
    Challenge,
    ControlError,
    Farewell,
    Heartbeat,
    Hello,
    MalformedFrame,
    Refusal,
    SchedulerFrame,
    Welcome,
    encode,
    frames_from_agent,
)
from pointsman.wire.control_auth import Role, prove, proves

GREETING_S_MAX = 5.0
"""From a connection to a proof. Strangers cost a socket for no longer."""

SILENCE_S_MAX = 10.0
"""Five of the longest intervals between heartbeats: the machine or the network is gone."""

WRITE_BUFFER_BYTES_MAX = 256 * 1_024
"""Answers that an agent does not read: hundreds of acknowledgements and comparisons."""

NONCE_BYTES = 32

READ_BYTES = 64 * 1_024
READS_MAX = 16
"""Of one session in its turn: a frame of the largest kind."""

log = logging.getLogger(__name__)


class Owner(Protocol):
    """Knows all sessions and all engines: the listener."""

    secret: bytes | None
    gathering: Gathering

    def begin(self, session: "AgentSession") -> bool:
        """A connection is there. False if there are too many."""
        ...

    def tells_of_strangers(self) -> bool:
        """Whether to log that one more was refused before it had proved its name."""
        ...

    def greeted(self, session: "AgentSession") -> None:
        """The agent has proved who it is; an earlier session of its name is over."""
        ...

    def announced(self, session: "AgentSession", frame: Announce) -> str:
        """Take an engine on. Returns why that cannot be, or an empty string."""
        ...

    def removed(self, session: "AgentSession", engine: AttendedEngine) -> None:
        """The engine's node is gone: attend to the one that has its address by now, if any."""
        ...

    def ended(self, session: "AgentSession", farewell: Farewell | None) -> None:
        """The connection is closed. Called once after `begin`."""
        ...


class AgentSession(asyncio.Protocol):
    """A connection from its beginning to its end. `agent` is empty until it has proved itself."""

    def __init__(self, owner: Owner) -> None:
        self.agent = ""
        self.boot = 0
        self.engines: dict[int, AttendedEngine] = {}
        self._owner = owner
        self._reader = frames_from_agent()
        self._challenge = secrets.token_bytes(NONCE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._descriptor: int | None = None  # while it is read with others'
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self._seq = 0
        self._farewell: Farewell | None = None
        self._begun = False

    # --- the connection -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._begun = self._owner.begin(self)
        if not self._begun:
            self.refuse("too many agents are connected")
            return
        self._timer = self._loop.call_later(GREETING_S_MAX, self._greet_in_time)
        self.send(Challenge(self._challenge, wants_proof=self._owner.secret is not None))

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            for frame in self._reader.feed(data):
                if self._transport is None or self._transport.is_closing():
                    return
                self._take(frame)
        except ControlError as error:
            self.refuse(f"{type(error).__name__}: {error}")

    def _gather(self) -> None:
        """Be read together with the other agents from here on."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.pause_reading()
        self._descriptor = self._transport.get_extra_info("socket").fileno()
        self._owner.gathering.join(self._descriptor, self._read)

    def _leave(self) -> None:
        if self._descriptor is not None:
            self._owner.gathering.leave(self._descriptor)
            self._descriptor = None

    def _read(self) -> None:
        """What the transport does for a session that is read alone."""
        for _ in range(READS_MAX):
            if self._descriptor is None or self._transport is None:
                return
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._transport.abort()
                return
            if not data:
                self.close()
                return
            self.data_received(data)
            if len(data) < READ_BYTES:
                return

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._begun:
            self._begun = False
            self._owner.ended(self, self._farewell)

    def send(self, frame: SchedulerFrame) -> None:
        """To the agent, unless it is gone; one that does not read is dropped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(encode(frame))
        if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
            log.warning("agent %s reads nothing: its connection is closed", self.agent or "?")
            transport.abort()

    def refuse(self, detail: str) -> None:
        """Say why, and close."""
        if self.agent or self._owner.tells_of_strangers():
            log.warning("agent %s is refused: %s", self.agent or "(unknown)", detail[:200])
        self.send(Refusal(detail[:500]))
        self.close()

    @property
    def is_stranger(self) -> bool:
        """Whether it is connected and has not proved who it is yet."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and not self.agent

    def close(self) -> None:
        """A second call changes nothing."""
        self._leave()
        if self._transport is not None:
            self._transport.close()

    # --- time ---------------------------------------------------------------------------

    def _greet_in_time(self) -> None:
        self.refuse(f"no greeting within {GREETING_S_MAX:g} s")

    def _watch(self) -> None:
        """Close a connection on which nothing comes any more."""
        silence_s = self._loop.time() - self._heard_s
        if silence_s >= SILENCE_S_MAX and self._transport is not None:
            log.warning("agent %s is silent: its connection is closed", self.agent)
            self._transport.abort()
            return
        self._timer = self._loop.call_later(SILENCE_S_MAX - silence_s, self._watch)

    # --- frames -------------------------------------------------------------------------

    def _take(self, frame: AgentFrame) -> None:
        if isinstance(frame, Hello):
            self._greet(frame)
            return
        if not self.agent:
            raise MalformedFrame("the first frame is no greeting")
        match frame:
            case Heartbeat():
                self._beat(frame)
            case Announce():
                if detail := self._owner.announced(self, frame):
                    self.send(Refusal(detail[:500], frame.engine))
            case Bucket():
                self._engine(frame.engine).bucket(frame)
            case Farewell():
                self._farewell = frame
                self.close()
            case _:
                assert_never(frame)

    def _greet(self, hello: Hello) -> None:
        if self.agent:
            raise MalformedFrame("a second greeting")
        secret, proof = self._owner.secret, b""
        if secret is not None:
            facts = {"challenge": self._challenge, "nonce": hello.nonce}
            if not proves(hello.proof, secret, Role.AGENT, agent=hello.agent, **facts):
                self.refuse("it does not know the secret")
                return
            proof = prove(secret, Role.SCHEDULER, agent=hello.agent, **facts)
        self.agent, self.boot = hello.agent, hello.boot
        self._reader.bytes_max = FRAME_BYTES_MAX
        assert self._timer is not None, "a greeting is waited for"
        self._timer.cancel()
        self._watch()
        self._owner.greeted(self)
        self.send(Welcome(proof))
        self._gather()

    def _beat(self, frame: Heartbeat) -> None:
        missed, self._seq = frame.seq - self._seq - 1, frame.seq
        if missed < 0:
            raise MalformedFrame(f"heartbeat {frame.seq} after {frame.seq - missed - 1}")
        for beat in frame.engines:
            engine = self.engines.get(beat.engine)
            if engine is None:
                continue  # refused
            if engine.is_removed:
                self._owner.removed(self, engine)
                continue
            if missed:
                engine.link.tally.agent_gaps.add(missed)
            engine.beat(beat, frame.seq, self._owner.gathering.waited_s)
        self.send(Ack(frame.seq))

    def _engine(self, number: int) -> AttendedEngine:
        engine = self.engines.get(number)
        if engine is None:
            raise MalformedFrame(f"engine {number} has not been announced")
        return engine
