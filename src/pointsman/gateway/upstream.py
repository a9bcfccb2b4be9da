"""A connection to an engine, and the pool that keeps it for its node: newest first out.

An idle connection is kept for less time than engines keep theirs, and watched: what it
receives or loses while idle closes it. Between our look and their close a race remains; the
handler retries once, on a fresh connection, when a reused one dies before a byte.
"""

import asyncio
import logging
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from pointsman.core.ids import NodeId
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway.chunks import payload
from pointsman.gateway.heads import Header
from pointsman.gateway.relay import Relay

REPLY_HEAD_BYTES_MAX: Final = 64 * 1024
"""Header bytes of an engine's reply; what is larger is broken, not a reply."""

BODY_JOIN_BYTES_MAX: Final = 16 * 1024
"""Up to here a copy into one buffer is cheaper than a second entry in the write call."""

log = logging.getLogger(__name__)


class Caller(Protocol):
    """Who waits for a connection or a reply: told on the loop's thread, never after its end."""

    def dialled(self, upstream: "UpstreamConnection") -> None:
        """The connection asked for is there and is the caller's."""
        ...

    def unreachable(self, *, is_ours: bool) -> None:
        """No connection can be had; `is_ours` if this process has no descriptor left for one."""
        ...

    def reply_progressed(self, upstream: "UpstreamConnection") -> None:
        """Bytes came in: look at `status`, `pieces`, `complete`."""
        ...

    def reply_lost(self, upstream: "UpstreamConnection", *, is_http: bool) -> None:
        """The connection ended, or what came is no HTTP, before the reply was complete."""
        ...

    def crashed(self) -> None:
        """One of these calls raised: a bug. End whatever is under way."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine, and the reply that it carries.

    `pieces` are body bytes not taken yet; `take` empties them. `length` is the reply's own
    content-length, None where it is chunked or ends with the connection.
    """

    transport: asyncio.Transport

    def __init__(self, pool: "NodePool") -> None:
        self.pool = pool
        self.is_reused = False
        self.idle_since_s = 0.0
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # the parser calls the list itself: no frame a chunk
        self._caller: Caller | None = None
        self._is_made = False
        self._is_lost = False
        self._framing_bytes = 0  # since the last byte of a body
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.length: int | None = None
        self.content_type = b""
        self.is_chunked = False
        self.is_encoded = False
        self.has_head = False
        self.has_bytes = False
        self.complete = False
        self._relay: Relay | None = None
        self._is_between_chunks = False
        self._head_bytes = 0
        self._stays_open = False

    # --- the caller's side --------------------------------------------------------------

    def send(self, caller: Caller, head: bytes, body: bytes) -> None:
        """Write a request; `caller` hears of the reply."""
        assert self._caller is None, "one request at a time"
        self._caller = caller
        self._framing_bytes = 0
        if len(body) <= BODY_JOIN_BYTES_MAX:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def passes_chunks_to(self, relay: Relay) -> None:
        """Chunks that come one at a time go straight there; its caller hears of all else."""
        self._relay = relay

    def take(self) -> bytes:
        """The body bytes that came in since the last call."""
        pieces = self.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body

    def release(self, now_s: float) -> None:
        """The reply is taken whole: back to the pool, if both sides keep it open."""
        assert self.complete, "only a whole reply leaves a clean connection"
        self._caller = None
        if self._is_lost or not self._stays_open or self.transport.get_write_buffer_size():
            self.close()
            return
        self.transport.resume_reading()
        self._reset()
        self.is_reused = True
        self.idle_since_s = now_s
        self.pool.put(self)

    def abort(self) -> None:
        """Drop it now, with whatever is under way: the engine sees the client leave."""
        self._caller = None
        if not self._is_lost:
            self.transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        self._caller = None
        if not self._is_lost:
            self.transport.close()

    def forsake(self) -> None:
        """The dial did not come to its end. uvloop then closes the transport, if there is one,
        without a word to its protocol."""
        if self._is_made:
            self.connection_lost(None)

    @property
    def is_usable(self) -> bool:
        """Nothing says that it is closed."""
        return not (self._is_lost or self.transport.is_closing())

    # --- the transport's side -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport = transport = cast("asyncio.Transport", transport)
        self._is_made = True
        self.pool.opened()

    def data_received(self, data: bytes) -> None:
        caller = self._caller
        if caller is None:  # idle, or left behind: nothing is due
            self.pool.remove(self)
            self.abort()
            return
        try:
            relay = self._relay
            if relay is not None and self._is_between_chunks and (body := payload(data)):
                relay.pass_on_chunk(data, body)  # a parser between chunks does not miss one
            elif self._parsed(data):
                caller.reply_progressed(self)
            else:
                self._lose(caller, is_http=False)
        except Exception:  # the driver's outermost loop: one request must not take others along
            log.exception("a reply could not be handled")
            self.abort()
            caller.crashed()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.pool.lost(self)
        caller = self._caller
        if caller is None:
            return
        if exc is None and self.has_head and self.length is None and not self.is_chunked:
            self.complete = True  # this reply ends with its connection
            caller.reply_progressed(self)
        else:
            self._lose(caller, is_http=True)

    def _lose(self, caller: Caller, *, is_http: bool) -> None:
        self.abort()
        caller.reply_lost(self, is_http=is_http)

    def _parsed(self, data: bytes) -> bool:
        """Whether it is the reply's, up to its end."""
        self.has_bytes = True
        self._is_between_chunks = False
        taken = len(self.pieces)
        try:
            self._parser.feed_data(data)
            self._count_framing(0 if len(self.pieces) > taken else len(data))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._stays_open = False
            return self.complete  # what follows a whole reply is not ours to judge
        if not data.endswith(b"\r\n"):
            self._is_between_chunks = False  # the next one's size may have begun
        return True

    def _count_framing(self, read_bytes: int) -> None:
        """Bound what comes without a byte of the body: the parser keeps a field until it is whole,
        and hints, trailers and a chunk's extension may go on for ever."""
        self._framing_bytes = self._framing_bytes + read_bytes if read_bytes else 0
        if self._framing_bytes > REPLY_HEAD_BYTES_MAX:
            raise httptools.HttpParserError("the reply's framing is too large")

    # --- the parser's side --------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:  # its first byte already: the next client must not get its rest
            raise httptools.HttpParserError("a second reply to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.has_head:
            return  # a trailer
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > REPLY_HEAD_BYTES_MAX:
            raise httptools.HttpParserError("the reply's head is too large")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 100:
            raise httptools.HttpParserError("a status that is none")
        self.has_head = True
        for name, value in self.headers:
            size = len(name)
            if size == 12 and name.lower() == b"content-type":
                self.content_type = value
            elif size == 14 and name.lower() == b"content-length":
                self.length = int(value)
            elif size == 17 and name.lower() == b"transfer-encoding":
                if value.lower() != b"chunked":  # nobody has asked for another, or would decode it
                    raise httptools.HttpParserError("another transfer encoding than chunked")
                self.is_chunked = True
            elif size == 16 and name.lower() == b"content-encoding":
                self.is_encoded = True

    def on_chunk_header(self) -> None:
        self._is_between_chunks = False

    def on_chunk_complete(self) -> None:
        self._is_between_chunks = True

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100, 102, 103: hints about a reply, not the reply
            self._reset()
            self.has_bytes = True
            return
        self.complete = True
        self._stays_open = self._parser.should_keep_alive()


class AllPools:
    """What each pool is told of all pools of its gateway; `alias` is what that is called in the
    Via headers of its requests."""

    def __init__(
        self, *, idle_s: float, idle_max: int, engine_keys: EngineKeys, alias: str
    ) -> None:
        self.idle_s = idle_s
        self.idle_max = idle_max
        self.engine_keys = engine_keys
        self.alias = alias
        self.is_closed = False
        self.open_count = 0  # those to forgotten nodes too


class NodePool:
    """The connections to one incarnation of a node. Its URL is http and has no path; a fragment is
    the data-parallel rank that requests are for."""

    def __init__(self, pools: AllPools, node_id: NodeId, url: str) -> None:
        parts = urlsplit(url)
        self.node_id = node_id
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        authority = f"[{self.host}]" if ":" in self.host else self.host
        if parts.port is not None:
            authority += f":{parts.port}"
        self.has_rank = bool(parts.fragment)
        rank_line = f"x-data-parallel-rank: {parts.fragment}\r\n" if self.has_rank else ""
        self.own_lines = f"host: {authority}\r\n{rank_line}".encode()
        self.via_line = f"via: 1.1 {pools.alias}\r\n".encode()
        self.used_s = 0.0
        self.idle: list[UpstreamConnection] = []
        self.open_count = 0
        self.is_forgotten = False
        self._pools = pools

    @property
    def key_line(self) -> bytes:
        """The key that the engine asks for; empty without one."""
        value = self._pools.engine_keys.authorization(self.host, self.port)
        return f"authorization: {value}\r\n".encode() if value else b""

    def take(self, now_s: float) -> UpstreamConnection | None:
        """The connection that was idle for the shortest time, None if none is fresh."""
        self.used_s = now_s
        while self.idle:
            upstream = self.idle.pop()
            if upstream.is_usable and now_s - upstream.idle_since_s < self._pools.idle_s:
                return upstream
            upstream.close()
        return None

    def put(self, upstream: UpstreamConnection) -> None:
        self.used_s = upstream.idle_since_s
        if self.is_forgotten or self._pools.is_closed or len(self.idle) >= self._pools.idle_max:
            upstream.close()
        else:
            self.idle.append(upstream)

    def remove(self, upstream: UpstreamConnection) -> None:
        if upstream in self.idle:
            self.idle.remove(upstream)

    def opened(self) -> None:
        self.open_count += 1
        self._pools.open_count += 1

    def lost(self, upstream: UpstreamConnection) -> None:
        self.open_count -= 1
        self._pools.open_count -= 1
        self.remove(upstream)

    def expire(self, before_s: float) -> None:
        """Close what has been idle since before `before_s`: the oldest are in front."""
        stale = 0
        while stale < len(self.idle) and self.idle[stale].idle_since_s < before_s:
            stale += 1
        expired, self.idle[:stale] = self.idle[:stale], []
        for upstream in expired:
            upstream.close()
