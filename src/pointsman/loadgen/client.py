"""The load client: a bounded set of connections to one server, and requests as bytes."""

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from pointsman.loadgen.completion import CompletionExchange
from pointsman.loadgen.connection import Connection, Exchange
from pointsman.traffic.outcome import Outcome

E = TypeVar("E", bound=Exchange)

IDLE_S_MAX = 4.0
"""Below the 5 s after which uvicorn, and so vLLM and SGLang, closes an idle connection."""
CONNECT_TIMEOUT_S = 10.0
FETCH_BYTES_MAX = 4 * 1024 * 1024


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is: `base_path` has no slash at its end and no `/v1`."""

    scheme: str
    host: str
    port: int
    base_path: str

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`timeout_s` covers one request from sending to its last byte."""

    connections_max: int = 1024
    timeout_s: float = 600.0


def parse_target(url: str) -> Target:
    """Read `http://host[:port][/path][/v1]`. Raises ValueError with a remedy."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ValueError(
            f"{url}: {error}. Remedy: give an address like http://127.0.0.1:8080."
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is no HTTP address. Remedy: give one like http://127.0.0.1:8080.")
    return Target(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        base_path=quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%"),
    )


class LoadClient:
    """Connections to one target, each used by one exchange at a time, at most `connections_max`.

    Waiting for a free connection is first come, first served. A request that finds its reused
    connection dead before the first byte of an answer is sent once more on a fresh one, as every
    HTTP client does (the server closed it while idle). Used on one event loop only.
    """

    def __init__(
        self, target: Target, *, api_key: str | None = None, limits: ClientLimits | None = None
    ) -> None:
        self.target = target
        self.limits = limits or ClientLimits()
        self.reconnects = 0
        self._api_key = api_key
        self._slots = asyncio.Semaphore(self.limits.connections_max)
        self._idle: list[Connection] = []
        self._running: dict[Exchange, Connection] = {}
        self._addresses: list[tuple[str, int]] = []
        self._tls = ssl.create_default_context() if target.scheme == "https" else None
        self._interrupted = False
        self._loop = asyncio.get_running_loop()

    async def wait_for_slot(self) -> None:
        """Wait until a connection is free and hold it for one `complete`."""
        await self._slots.acquire()

    async def complete(self, request: bytes) -> CompletionExchange:
        """Send and wait for the end. Needs a slot and gives it back. Failures are in the result."""
        try:
            return await self._perform(request, CompletionExchange)
        finally:
            self._slots.release()

    async def fetch(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One plain request: (status, body). Raises ConnectionError with the cause."""
        async with self._slots:
            exchange = await self._perform(self.request(method, path, body), _BodyExchange)
        if exchange.failure is not None:
            raise ConnectionError(exchange.cause)
        return exchange.status, bytes(exchange.body)

    def request(
        self, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> bytes:
        """Bytes of a request. Header values must be free of line ends."""
        lines = [
            f"{method} {self.target.base_path}{path} HTTP/1.1",
            f"host: {self.target.authority}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        if self._api_key:
            lines.append(f"authorization: Bearer {self._api_key}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        assert not any("\n" in line or "\r" in line for line in lines), "line end in a header"
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def interrupt(self) -> None:
        """End every running exchange as interrupted; later ones end at once."""
        self._interrupted = True
        self.close()

    def close(self) -> None:
        """Drop every connection."""
        for connection in [*self._running.values(), *self._idle]:
            connection.abort(Outcome.INTERRUPTED, "interrupted")
        self._idle.clear()

    async def _perform(self, request: bytes, new_exchange: Callable[[], E]) -> E:
        deadline_s = perf_counter() + self.limits.timeout_s
        reused = self._take_idle()
        if reused is not None:
            exchange = new_exchange()
            await self._run(reused, request, exchange, deadline_s)
            if exchange.failure is not Outcome.DISCONNECTED or exchange.answered:
                return exchange
            self.reconnects += 1
        exchange = new_exchange()
        if self._interrupted:
            exchange.fail(Outcome.INTERRUPTED, "interrupted")
            exchange.finish(perf_counter())
            return exchange
        fresh = await self._connect(exchange, deadline_s)
        if fresh is not None:
            await self._run(fresh, request, exchange, deadline_s)
        return exchange

    async def _run(
        self, connection: Connection, request: bytes, exchange: Exchange, deadline_s: float
    ) -> None:
        """Drive one exchange to its end; the connection is idle or closed afterwards."""
        cause = f"not over within {self.limits.timeout_s:g} s"
        timer = self._loop.call_later(
            deadline_s - perf_counter(), connection.abort, Outcome.TIMEOUT, cause
        )
        self._running[exchange] = connection
        connection.start(request, exchange)
        try:
            await exchange.done
        except asyncio.CancelledError:
            connection.abort(Outcome.INTERRUPTED, "cancelled")
            raise
        finally:
            timer.cancel()
            del self._running[exchange]

    def _take_idle(self) -> Connection | None:
        """The connection used last, if the server can be trusted to hold it still."""
        oldest_s = perf_counter() - IDLE_S_MAX
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_s >= oldest_s:
                return connection
            connection.abort(Outcome.INTERRUPTED, "idle for too long")
        return None

    async def _connect(self, exchange: Exchange, deadline_s: float) -> Connection | None:
        """A fresh connection, or None with the cause in `exchange`."""
        left_s = min(deadline_s - perf_counter(), CONNECT_TIMEOUT_S)
        try:
            async with asyncio.timeout(left_s):
                connection = await self._open()
        except TimeoutError:
            exchange.fail(Outcome.CONNECT_ERROR, "connect timed out")
        except (OSError, UnicodeError) as error:
            exchange.fail(Outcome.CONNECT_ERROR, _connect_cause(error), str(error))
        else:
            if not self._interrupted:
                return connection
            connection.abort(Outcome.INTERRUPTED, "interrupted")
        if self._interrupted:
            exchange.failure, exchange.cause = Outcome.INTERRUPTED, "interrupted"
        exchange.finish(perf_counter())
        return None

    async def _open(self) -> Connection:
        """Connect to the first address that takes it; names are resolved once."""
        target, loop = self.target, self._loop
        if not self._addresses:
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            self._addresses = [(str(address[0]), int(address[1])) for *_, address in found]
        failure: OSError | None = None
        for host, port in self._addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(on_idle=self._idle.append),
                    host,
                    port,
                    ssl=self._tls,
                    server_hostname=target.host if self._tls else None,
                )
            except OSError as error:
                failure = failure or error
            else:
                return connection
        assert failure is not None, "a name without an address"
        raise failure


class _BodyExchange(Exchange):
    def __init__(self) -> None:
        super().__init__()
        self.body = bytearray()

    def on_body(self, data: bytes, now_s: float) -> None:
        self.body += data[: max(0, FETCH_BYTES_MAX - len(self.body))]


def _connect_cause(error: OSError | UnicodeError) -> str:
    """A short name that is the same for the same trouble, whichever loop raised it."""
    if isinstance(error, socket.gaierror | UnicodeError):  # the latter for an empty label: a..b
        return "no such host"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate not trusted"
    if isinstance(error, ssl.SSLError):
        return "TLS handshake failed"
    code = error.errno
    if code is None:
        named = re.search(r"\[Errno (\d+)\]", str(error))
        code = int(named[1]) if named else None
    if code == errno.EMFILE:
        return "too many open files (raise `ulimit -n`)"
    return os.strerror(code).lower() if code else "connect failed"
