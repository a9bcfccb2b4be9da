"""The engine's answer on its way to the client: framing re-made, payload untouched.

It watches the bytes as they pass: events are scanned for usage, errors and the end; a JSON answer's
usage is read at its end. Nothing is held back and nothing is changed.
"""

import asyncio
import socket
import struct
from enum import Enum
from typing import Final

from pointsman.gateway.chunks import CHUNK_JOIN_BYTES_MAX, LAST_CHUNK, framed
from pointsman.wire.answers import read_answer
from pointsman.wire.sse import SseScanner
from pointsman.wire.usage import Said

USAGE_BODY_BYTES_MAX: Final = 1024 * 1024
"""A longer JSON answer is not parsed for its usage: it would keep the loop for over 1 ms."""

EVENT_STREAM: Final = b"text/event-stream"
KEEP_ALIVE_COMMENT: Final = b": keep-alive\n\n"
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Framing(Enum):
    """How the client learns where the answer ends."""

    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"  # HTTP/1.0 without a length


_LENGTH: Final = Framing.LENGTH  # members are slow to look up in Python 3.11
_CHUNKED: Final = Framing.CHUNKED


class Relay:
    """One answer. `open` it, `pass_on` its parts, then `finish` or break off."""

    def __init__(self, transport: asyncio.Transport, framing: Framing) -> None:
        self._transport = transport
        self.framing = framing
        self.is_stream = False
        self.scanner: SseScanner | None = None
        self.bytes_out = 0
        self.first_events = 0  # that came together, before any other
        self._kept: list[bytes] | None = None
        self._kept_bytes = 0
        self._last = b"\n\n"

    def scan_events(self) -> None:
        """What passes is an event stream."""
        self.is_stream = True
        self.scanner = SseScanner()

    def keep_for_usage(self) -> None:
        """What passes is JSON."""
        self._kept = []

    def open(self, head: bytes, body: bytes, *, is_whole: bool) -> None:
        """Send head and first bytes, and the end too if `is_whole`: all in one write."""
        if body:
            self._note(body)
        if self.framing is not _CHUNKED:
            self._transport.write(head + body)
            return
        end = LAST_CHUNK if is_whole else b""
        chunk = framed(body) if body else b""
        self._transport.write(b"%b%b%b" % (head, chunk, end))

    def pass_on(self, body: bytes) -> None:
        """Send further bytes."""
        self._note(body)
        if self.framing is not _CHUNKED:
            self._transport.write(body)
        elif len(body) <= CHUNK_JOIN_BYTES_MAX:
            self._transport.write(framed(body))
        else:
            self._transport.writelines((b"%x\r\n" % len(body), body, b"\r\n"))

    def pass_on_chunk(self, chunk: bytes, body: bytes) -> None:
        """Send further bytes, which came as a chunk that is framed as we would frame it."""
        self._note(body)
        self._transport.write(chunk if self.framing is _CHUNKED else body)

    def finish(self, body: bytes) -> None:
        """Send the last bytes, if any, and the end."""
        if body:
            self._note(body)
        if self.framing is not _CHUNKED:
            self._transport.write(body)
        else:
            self._transport.write(framed(body) + LAST_CHUNK if body else LAST_CHUNK)

    def comment(self) -> None:
        """Send a comment, unless an event is under way."""
        if self.at_event_end:
            self._write_framed(KEEP_ALIVE_COMMENT)

    def fail(self, events: bytes) -> None:
        """Send error events; there is no end after them. The caller closes the connection."""
        self._write_framed(events if self.at_event_end else b"\n\n" + events)

    @property
    def at_event_end(self) -> bool:
        return self._last.endswith((b"\n\n", b"\n\r\n", b"\r\r"))

    def said(self) -> Said:
        """What the answer said about itself; complete once the answer is."""
        if self.scanner is not None:
            return Said(self.scanner.usage, self.scanner.response_id)
        return read_answer(b"".join(self._kept)) if self._kept else Said()

    def _note(self, body: bytes) -> None:
        self.bytes_out += len(body)
        if self.scanner is not None:
            self.scanner.feed(body)
            if not self.first_events:
                self.first_events = self.scanner.events
            self._last = body
        elif self._kept is not None:
            self._kept_bytes += len(body)
            if self._kept_bytes <= USAGE_BODY_BYTES_MAX:
                self._kept.append(body)
            else:
                self._kept = None

    def _write_framed(self, data: bytes) -> None:
        if self.framing is _CHUNKED:
            data = framed(data)
        self._transport.write(data)


def framing_line(framing: Framing, length: int) -> bytes:
    """The framing's header line; none where the end of the connection is the answer's."""
    if framing is _CHUNKED:
        return b"transfer-encoding: chunked\r\n"
    return b"content-length: %d\r\n" % length if framing is _LENGTH else b""


def is_event_stream(content_type: bytes) -> bool:
    """Whether the answer is server-sent events."""
    return content_type[:17].lower() == EVENT_STREAM


def reset(transport: asyncio.Transport) -> None:
    """Drop the connection so that the client sees an error, not an end.

    An answer that ends with its connection would pass for whole if it were closed cleanly.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
