"""Chunked framing (RFC 9112 section 7.1) as it is written here, and known when it comes in.

Engines write an event as one chunk, framed as we would frame it, and it mostly arrives alone:
such bytes go on as they are, without parser and framing. The one form is told by the length
of what arrived, so nothing is believed that a parser would read in another way.
"""

from typing import Final

CHUNK_BYTES_MAX: Final = 2048
"""Above it parser and framing are a small part of what a chunk costs."""

CHUNK_JOIN_BYTES_MAX: Final = 16 * 1024
"""Up to here framing is copied around a chunk; above, a vectored write is cheaper."""

LAST_CHUNK: Final = b"0\r\n\r\n"


def framed(body: bytes) -> bytes:
    """A chunk of these bytes, of which there is at least one."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def payload(data: bytes) -> bytes:
    """What is in `data`, if that is one whole chunk just as `framed` makes it; else nothing."""
    size = len(data)
    if size > CHUNK_BYTES_MAX:
        return b""
    line = _SIZE_LINES[size]
    if data.startswith(line) and data.endswith(b"\r\n"):
        return data[len(line) : -2]
    return b""


def _size_lines() -> list[bytes]:
    """The first line of the chunk that is so many bytes long in all; what fits nothing, where
    there is none."""
    lines = [b"\xff"] * (CHUNK_BYTES_MAX + 1)
    for body_bytes in range(1, CHUNK_BYTES_MAX):
        line = b"%x\r\n" % body_bytes
        if (size := len(line) + body_bytes + 2) <= CHUNK_BYTES_MAX:
            lines[size] = line
    return lines


_SIZE_LINES: Final = _size_lines()
