"""Server-sent events from bytes, across any split (WHATWG HTML, section 9.2).

Bytes in, bytes out: an event is cut at its blank line before anybody decodes it, so a character or
a number split between two reads is whole again.
"""

EVENT_BYTES_MAX = 16 * 1024 * 1024
"""Engines send images and whole reasoning traces in one event (1.5 MB seen); more is a fault."""


class EventTooLargeError(Exception):
    """An event is longer than EVENT_BYTES_MAX."""


class EventReader:
    """Feed it bytes as they come; it gives the data of each event that is complete."""

    __slots__ = ("_after_cr", "_pending", "_searched")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._searched = 0  # bytes of _pending known to hold no blank line
        self._after_cr = False  # the last byte was a CR, taken as an end of line already

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that `data` completes. Raises EventTooLargeError."""
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        if not self._pending and data.endswith(b"\n\n"):
            return _payloads(data)
        return self._feed_slowly(data)

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Turn CRLF and CR into LF, also where a CRLF is split between two reads."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _feed_slowly(self, data: bytes) -> list[bytes]:
        self._pending += data
        end = self._pending.rfind(b"\n\n", max(0, self._searched - 1))
        if end < 0:
            self._searched = len(self._pending)
            if self._searched > EVENT_BYTES_MAX:
                raise EventTooLargeError
            return []
        complete = bytes(self._pending[: end + 2])
        del self._pending[: end + 2]
        self._searched = len(self._pending)
        return _payloads(complete)


def _payloads(complete: bytes) -> list[bytes]:
    """Data of each event in bytes that end with a blank line; comments give nothing."""
    payloads = []
    for block in complete.split(b"\n\n"):
        if block.startswith(b"data: ") and b"\n" not in block:
            payloads.append(block[6:])
        elif block:
            data = _data_lines(block)
            if data is not None:
                payloads.append(data)
    return payloads


def _data_lines(block: bytes) -> bytes | None:
    lines = [
        line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
