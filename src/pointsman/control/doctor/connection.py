"""One TCP connection to an engine, watched: round trip, clock, and when it is closed."""

import asyncio
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import msgspec

from pointsman.control.doctor.seen import LinkSeen
from pointsman.engines.adapters import EngineTrouble
from pointsman.engines.adapters.address import PORT_DEFAULT

ANSWER_S_MAX = 5.0
BODY_BYTES_MAX = 1024 * 1024
WATCH_S_MAX = 15.0
"""An idle connection is watched no longer than this, whatever the pool's idle time."""

MARGIN_S = 0.5
"""By which an engine should keep connections longer than we do: a request that is on its way
when the connection closes is lost."""

_DATE_RESOLUTION_S = 1.0


class _Head(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]


async def watch(url: str, *, pool_idle_s: float) -> LinkSeen:
    """Ask /health twice on one connection, then leave it idle. Raises EngineTrouble."""
    try:
        return await _watch(url, min(pool_idle_s + MARGIN_S, WATCH_S_MAX))
    except TimeoutError:
        raise EngineTrouble("no answer to GET /health", timed_out=True) from None
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise EngineTrouble(f"GET /health: {error}") from None


async def _watch(url: str, watch_s: float) -> LinkSeen:
    parts = urlsplit(url)
    async with asyncio.timeout(ANSWER_S_MAX):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or PORT_DEFAULT)
    try:
        peer = writer.get_extra_info("peername")
        if peer is None:
            raise ConnectionResetError("it closes a connection at once")
        async with asyncio.timeout(ANSWER_S_MAX):
            first, first_s = await _ask(reader, writer, parts.netloc)
        reusable = first.headers.get("connection", "").lower() != "close"
        ahead_s = _clock_ahead_s(first.headers.get("date", ""), time.time(), first_s)
        latency_s, closed_after_s = first_s, None
        if reusable:
            async with asyncio.timeout(ANSWER_S_MAX):
                _, latency_s = await _ask(reader, writer, parts.netloc)
            closed_after_s = await _closed_after_s(reader, watch_s)
        return LinkSeen(
            peer=peer[:2],
            latency_s=latency_s,
            health_status=first.status,
            reusable=reusable,
            clock_ahead_s=ahead_s,
            watched_s=watch_s,
            closed_after_s=closed_after_s,
        )
    finally:
        writer.close()


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str
) -> tuple[_Head, float]:
    """Ask once. Returns the answer's head, and how long all of it took; the body is dropped."""
    begun_s = time.monotonic()
    writer.write(f"GET /health HTTP/1.1\r\nHost: {host}\r\nUser-Agent: pointsman\r\n\r\n".encode())
    await writer.drain()
    head = _parse(await reader.readuntil(b"\r\n\r\n"))
    if "chunked" in head.headers.get("transfer-encoding", ""):
        await reader.readuntil(b"0\r\n\r\n")
    else:
        length = int(head.headers.get("content-length", "0"))
        if not 0 <= length <= BODY_BYTES_MAX:
            raise ValueError(f"a body of {length} bytes")
        await reader.readexactly(length)
    return head, time.monotonic() - begun_s


def _parse(data: bytes) -> _Head:
    lines = data.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise ValueError("it does not speak HTTP")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return _Head(int(words[1]), {name.lower(): value.strip() for name, _, value in pairs})


def _clock_ahead_s(date: str, now_s: float, answer_s: float) -> float | None:
    """How far the engine's clock is ahead; a Date is cut to seconds, and `answer_s` old at most."""
    try:
        told = parsedate_to_datetime(date)
    except ValueError:
        return None
    ahead_s = told.replace(tzinfo=told.tzinfo or UTC).timestamp() - now_s
    if -_DATE_RESOLUTION_S - answer_s <= ahead_s <= 0.0:
        return 0.0
    return ahead_s if ahead_s > 0 else ahead_s + _DATE_RESOLUTION_S + answer_s


async def _closed_after_s(reader: asyncio.StreamReader, watch_s: float) -> float | None:
    """When an idle connection was closed, if that was within `watch_s`."""
    begun_s = time.monotonic()
    try:
        async with asyncio.timeout(watch_s):
            await reader.read(1)
    except TimeoutError:
        return None
    except OSError:
        pass  # reset: closed all the same
    return time.monotonic() - begun_s
