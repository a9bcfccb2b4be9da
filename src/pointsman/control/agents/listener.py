"""Where agents connect, and what becomes of engines whose agent is gone."""

import asyncio
import logging
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pointsman.collectors.link import NodeLink
from pointsman.control.agents.attended import AttendedEngine
from pointsman.control.agents.gathering import Gathering
from pointsman.control.agents.session import AgentSession
from pointsman.control.fleet import Fleet, NodeRefused
from pointsman.control.listed import FORGET_S
from pointsman.control.service import SchedulerService
from pointsman.core.events import NodeFacts
from pointsman.core.ids import NAME_PATTERN, NodeName
from pointsman.core.limits import BLOCK_TOKENS_MAX, CONCURRENCY_MAX, KV_BLOCKS_MAX, NODES_MAX
from pointsman.engines.adapters.address import one_spelling, url_problem
from pointsman.wire.control import Announce, ControlAddress, Farewell

SESSIONS_MAX = NODES_MAX
"""Connections at once, greeted or not. Beyond them who has kept us waiting for a greeting for
longest makes way: an agent greets at once, and a flood of strangers must not keep it out."""

STRANGERS_LOGGED_S = 1.0
"""Between two lines of the log about them: whoever reaches the port could fill the disk."""

GRACE_S = 5.0
"""For an agent to come back, before the collectors take over: a connection that breaks is
there again within a second or two."""

RETIRE_S = 30.0
"""For requests on an engine that its agent has ended to finish."""

log = logging.getLogger(__name__)


class ListenerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Without a `secret` whoever reaches the address may add engines, to which prompts are then
    sent."""

    address: ControlAddress = ControlAddress()
    secret: bytes | None = None
    forget_s: float = FORGET_S

    def __repr__(self) -> str:
        """Without the secret: it must not get into a log."""
        return f"<ListenerOptions: listen on {self.address}>"


class _Known(msgspec.Struct):
    """What is remembered of an engine beyond a connection."""

    boot: int
    incarnation: int


class AgentListener:
    """All agents. Owns their sessions; the fleet owns the nodes."""

    def __init__(self, service: SchedulerService, fleet: Fleet, options: ListenerOptions) -> None:
        self.secret = options.secret
        self.gathering = Gathering()
        self.port = 0
        self._service = service
        self._fleet = fleet
        self._options = options
        self._server: asyncio.Server | None = None
        self._socket_file: tuple[int, int] | None = None
        self._quiet_until_s = 0.0
        self._sessions: list[AgentSession] = []
        self._by_agent: dict[str, AgentSession] = {}
        self._known: dict[NodeName, _Known] = {}
        self._graces: dict[NodeName, asyncio.TimerHandle] = {}

    async def start(self) -> None:
        """Listen. Raises OSError."""
        loop, address = asyncio.get_running_loop(), self._options.address
        if address.path:  # a socket that is there already goes: an earlier process has left it
            mask = os.umask(0o177)  # for this user alone, from the first moment on
            try:
                self._server = await loop.create_unix_server(
                    lambda: AgentSession(self), address.path
                )
            finally:
                os.umask(mask)
            self._socket_file = _file_at(address.path)
            return
        self._server = await loop.create_server(
            lambda: AgentSession(self), address.host, address.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection; a second call changes nothing."""
        for timer in self._graces.values():
            timer.cancel()
        self._graces.clear()
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for session in list(self._sessions):
            session.close()
        self.gathering.close()
        await server.wait_closed()
        if self._socket_file is not None:
            _forget_socket(self._options.address.path, self._socket_file)

    # --- for sessions: Owner ------------------------------------------------------------

    def begin(self, session: AgentSession) -> bool:
        if self._server is None:
            return False
        if len(self._sessions) >= SESSIONS_MAX:
            stranger = next((each for each in self._sessions if each.is_stranger), None)
            if stranger is None:
                return False
            stranger.refuse("others have come who may greet sooner")
        self._sessions.append(session)
        return True

    def tells_of_strangers(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._quiet_until_s:
            return False
        self._quiet_until_s = now_s + STRANGERS_LOGGED_S
        return True

    def greeted(self, session: AgentSession) -> None:
        before = self._by_agent.get(session.agent)
        self._by_agent[session.agent] = session
        if before is not None:
            before.refuse("another connection of the same agent replaces this one")
            for engine in before.engines.values():  # which it may not have any more
                self._lost(engine, None)
        log.info("agent %s is connected", session.agent)

    def announced(self, session: AgentSession, frame: Announce) -> str:
        frame = replace(frame, spec=replace(frame.spec, url=one_spelling(frame.spec.url)))
        engine = session.engines.get(frame.engine)
        if engine is None:
            problem = _problem(frame) or _namesake(frame, session)
            if problem:
                return problem
            try:
                engine = self._attend(session, frame)
            except NodeRefused as refused:
                return str(refused)
        elif frame.facts is not None and (problem := _facts_problem(frame.facts)):
            return problem
        name = engine.link.spec.name
        known = self._known.get(name)
        same_boot = known is not None and known.boot == session.boot
        engine.announce(frame, known=known.incarnation if known and same_boot else None)
        self._known[name] = _Known(session.boot, frame.incarnation)
        return ""

    def removed(self, session: AgentSession, engine: AttendedEngine) -> None:
        frame = engine.announcement
        if frame is not None and self._fleet.has_url(frame.spec.url):
            del session.engines[engine.number]
            self.announced(session, frame)

    def ended(self, session: AgentSession, farewell: Farewell | None) -> None:
        self._sessions.remove(session)
        if self._by_agent.get(session.agent) is not session:
            return  # replaced, or never greeted: its engines are another's
        del self._by_agent[session.agent]
        if farewell is None:
            log.warning("agent %s is lost", session.agent)
        else:
            log.info("agent %s has ended", session.agent)
        for engine in session.engines.values():
            self._lost(engine, farewell)

    # --- engines ------------------------------------------------------------------------

    def _attend(self, session: AgentSession, frame: Announce) -> AttendedEngine:
        names = self._fleet.names
        if len(self._known) > NODES_MAX:  # those that operators have removed
            self._known = {name: self._known[name] for name in names if name in self._known}
        link = self._fleet.attend(frame.spec, session.agent)
        if link.spec.name not in names:
            link.added_by_agent = True
        if (grace := self._graces.pop(link.spec.name, None)) is not None:
            grace.cancel()
        engine = AttendedEngine(frame.engine, link, self._service, session.send)
        session.engines[frame.engine] = engine
        return engine

    def _lost(self, engine: AttendedEngine, farewell: Farewell | None) -> None:
        if self._server is None:
            return  # the process ends, and its nodes with it
        name = engine.link.spec.name
        engine.lost()
        if engine.is_removed:
            return  # whoever has its name now is somebody else's
        if farewell is not None and farewell.gone and engine.link.added_by_agent:
            self._part_with(name)
        elif farewell is not None:
            self._give_up(engine)
        else:
            engine.link.attended_by = ""  # it may come back under another name
            self._later(GRACE_S, name, partial(self._give_up, engine))

    def _give_up(self, engine: AttendedEngine) -> None:
        engine.give_up(self._fleet)
        name = engine.link.spec.name
        if engine.link.added_by_agent:
            self._later(self._options.forget_s, name, partial(self._forget, engine.link))

    def _forget(self, link: NodeLink) -> None:
        """Take out an engine that nobody has configured or tells of, once it does not answer
        either: with its machine gone, nobody would."""
        name, forget_s = link.spec.name, self._options.forget_s
        quiet_s = self._service.now_s() - link.answered_at_s
        if link.node_id is None:
            return  # an operator was faster
        if quiet_s < forget_s:
            self._later(forget_s - quiet_s, name, partial(self._forget, link))
            return
        log.warning("engine %s is dropped: no agent and no answer for %g s", name, forget_s)
        self._part_with(name)

    def _part_with(self, name: NodeName) -> None:
        self._known.pop(name, None)
        self._fleet.retire(name, within_s=RETIRE_S)

    def _later(self, after_s: float, name: NodeName, act: Callable[[], None]) -> None:
        """Do it unless an agent attends to the engine before."""

        def begin() -> None:
            del self._graces[name]
            act()

        self._graces[name] = asyncio.get_running_loop().call_later(after_s, begin)


def _problem(frame: Announce) -> str:
    """What is wrong with an engine that is announced; else empty."""
    spec = frame.spec
    if not re.fullmatch(NAME_PATTERN, spec.name):
        return f"{spec.name[:80]!r} is no name for an engine: letters, digits and ._- are"
    if not spec.url.isascii():
        return f"{spec.url[:80]!r} is no URL"
    if problem := url_problem(spec.url):
        return problem
    if spec.concurrency_max is not None and not 1 <= spec.concurrency_max <= CONCURRENCY_MAX:
        return f"{spec.concurrency_max} requests at once are none"
    return _facts_problem(frame.facts) if frame.facts is not None else ""


def _namesake(frame: Announce, session: AgentSession) -> str:
    """Why it is not another engine of the agent's; else empty."""
    for engine in session.engines.values():
        if engine.link.spec.url == frame.spec.url and not engine.is_removed:
            return f"{frame.spec.url} is its engine {engine.number} already"
    return ""


def _facts_problem(facts: NodeFacts) -> str:
    if facts.block_tokens is not None and not 0 < facts.block_tokens <= BLOCK_TOKENS_MAX:
        return f"blocks of {facts.block_tokens} tokens are none"
    if facts.kv_blocks is not None and not 0 <= facts.kv_blocks <= KV_BLOCKS_MAX:
        return f"{facts.kv_blocks} KV blocks are none"
    if facts.running_max is not None and facts.running_max < 1:
        return f"{facts.running_max} requests at once are none"
    contexts = [card.context_tokens_max for card in facts.models]
    if any(tokens is not None and tokens < 1 for tokens in contexts):
        return "a context of less than a token is none"
    return ""


def _forget_socket(path: str, file: tuple[int, int]) -> None:
    """Remove it, unless another process listens there by now."""
    if _file_at(path) == file:
        Path(path).unlink()


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file is there; None without one."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
