"""One JSON line for each request: who went where, why, how long, and how it ended.

Never a prompt, an answer, a header or a key; `key` is a key's name. Lines are gathered and
written together, so that a request costs no system call. Nothing waits for who reads them: what
a pipe or a terminal does not take is kept for a while, and then lost and counted.
"""

import asyncio
import logging
import os
import select
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec

from pointsman.core.errors import EndCause, Reason
from pointsman.core.exchange_record import ExchangeRecord
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.telemetry.reader import poll_of

FLUSH_S = 0.2
"""How late a line may be."""

BUFFER_BYTES_MAX = 256 * 1024
"""Written at once beyond this, so that a flood does not become memory."""

BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""Kept for a reader that takes nothing now; a paused terminal, a busy log driver."""

RETRY_S = 0.01
"""Until such a reader is tried again: it may have taken the 64 KiB that a pipe holds."""

log = logging.getLogger(__name__)


class AccessLogState(msgspec.Struct, frozen=True):
    """Lines that could not be written: the disk is full, or nobody reads."""

    lines_lost: int


class AccessLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The line. Times in milliseconds; what is not known is left out."""

    time: str
    id: RequestId
    model: ModelName
    endpoint: str
    status: int | None
    end: EndCause
    reason: Reason | None = None
    key: str = ""
    node: NodeName | None = None
    policy: str = ""
    why: str = ""
    attempts: int = 0
    streamed: bool = False
    queue_ms: float | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens_predicted: int | None = None
    cached_tokens: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0


_NEWLINE = ord("\n")


class AccessLog:
    """Writes to `stream`, which it does not close. `close` writes what is left."""

    def __init__(self, stream: BinaryIO, *, wall_s: Callable[[], float] = time.time) -> None:
        self._stream = stream
        self._wall_s = wall_s
        self._buffer = bytearray()
        self._encode = msgspec.json.Encoder().encode
        self._timer: asyncio.TimerHandle | None = None
        self._second = ("", -1)
        self._lines_lost = 0
        self._loses = False
        self._has_begun_line = False  # a part of the first line is written
        self._is_torn = False  # … of one whose rest is lost
        self._poll = poll_of(stream)

    def state(self) -> AccessLogState:
        return AccessLogState(self._lines_lost)

    def exchange_ended(self, record: ExchangeRecord) -> None:
        """Note a request that is over. Called on the loop's thread."""
        self._buffer += self._encode(self._line(record))
        self._buffer += b"\n"
        if len(self._buffer) >= BUFFER_BYTES_MAX:
            self.flush()
        elif self._timer is None:
            self._flush_in(FLUSH_S)

    def flush(self) -> None:
        """Write what the stream takes at once. What it cannot take at all is lost: a full disk
        must not stop the service."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._write()
        except (OSError, ValueError):  # closed pipe, full disk; closed file
            self._lose(0)
        if len(self._buffer) > BACKLOG_BYTES_MAX:
            rest = self._buffer.find(b"\n") + 1 if self._has_begun_line else 0
            self._lose(rest)
        if self._buffer:
            self._flush_in(RETRY_S)

    def close(self) -> None:
        """Write what is left and can be written; a second call changes nothing."""
        if self._buffer or self._timer is not None:
            self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._buffer:
            self._lose(0)

    def _write(self) -> None:
        taken, poll = 0, self._poll
        if poll is not None and not poll.poll(0):
            return
        if self._is_torn:  # the next line begins on its own
            self._stream.write(b"\n")
            self._is_torn = False
        lines = memoryview(bytes(self._buffer))
        try:
            while taken < len(lines) and (poll is None or poll.poll(0)):
                end = len(lines) if poll is None else taken + select.PIPE_BUF
                written = self._stream.write(lines[taken:end])
                if not written:  # not even after it said that there is room
                    return
                taken += written
        finally:
            if taken:
                self._has_begun_line = lines[taken - 1] != _NEWLINE
                self._loses = False
            del self._buffer[:taken]

    def _lose(self, kept: int) -> None:
        """Give up everything behind the first `kept` bytes, and count it."""
        self._lines_lost += self._buffer.count(b"\n", kept)
        del self._buffer[kept:]
        if not kept:
            self._is_torn = self._is_torn or self._has_begun_line
            self._has_begun_line = False
        if not self._loses:
            log.warning("the access log takes nothing: lines are lost")
        self._loses = True

    def _flush_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.flush)

    def _line(self, record: ExchangeRecord) -> AccessLine:
        return AccessLine(
            time=self._timestamp(),
            id=record.request_id,
            model=record.model,
            endpoint=record.endpoint,
            status=record.status,
            end=record.end,
            reason=record.reason,
            key=record.key,
            node=record.node,
            policy=record.policy,
            why=record.why,
            attempts=record.attempts,
            streamed=record.streamed,
            queue_ms=_ms(record.queue_s),
            ttft_ms=_ms(record.ttft_s),
            e2e_ms=_ms(record.e2e_s),
            prompt_tokens=record.prompt_tokens,
            output_tokens=_output_tokens(record),
            cached_tokens_predicted=record.cached_tokens_predicted,
            cached_tokens=record.cached_tokens,
            bytes_in=record.bytes_in,
            bytes_out=record.bytes_out,
        )

    def _timestamp(self) -> str:
        """RFC 3339 in UTC; the date is formatted once a second."""
        now_s = self._wall_s()
        second = int(now_s)
        if second != self._second[1]:
            self._second = (
                datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
                second,
            )
        return f"{self._second[0]}.{int((now_s - second) * 1_000):03d}Z"


def open_stream(target: str) -> BinaryIO:
    """Where lines go: `stdout`, or the path of a file that is appended to. Raises OSError, for a
    pipe without a reader, too: nothing waits for one."""
    if target == "stdout":
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab", buffering=0)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1_000, 3)


def _output_tokens(record: ExchangeRecord) -> int | None:
    """The engine's own count, else what was seen streaming by."""
    return (
        record.output_tokens if record.output_tokens is not None else record.streamed_tokens or None
    )
