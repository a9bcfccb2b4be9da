"""From the driver's tokens to a client: streamed, one chunk a token, or as one answer at the end.

Chunks are written straight to the transport, in HTTP/1.1's chunked framing, from within the step
that produced them: no task wakes per token. Nothing is buffered for a client that does not read:
past HIGH_WATER_BYTES the stream stops writing, and, as a generated text is known from its position
alone, goes on from where it was once the transport has drained.
"""

import asyncio
import socket
import struct

import msgspec
from aiohttp.abc import AbstractStreamWriter

from pointsman.engines.compute_model import EngineSequence
from pointsman.engines.simulated.answers import DEATH, Choice, Dialect
from pointsman.engines.simulated.metrics import EngineStats

HIGH_WATER_BYTES = 128 * 1024  # above the transport's own mark, at which `drain` begins to wait
CATCH_UP_TOKENS = 256  # written at once when a stalled client reads again


class StreamFaults(msgspec.Struct, frozen=True, gc=False):
    """What goes wrong with one answer, and after how many tokens."""

    cut_at: int | None = None
    cut_reset: bool = False
    error_at: int | None = None

    def cuts(self, tokens: int) -> bool:
        return self.cut_at is not None and tokens >= self.cut_at

    def fails(self, tokens: int) -> bool:
        return self.error_at is not None and tokens >= self.error_at

    @property
    def any(self) -> bool:
        return self.cut_at is not None or self.error_at is not None


def break_connection(transport: asyncio.Transport | None, *, reset: bool) -> None:
    """Close without ending the HTTP message; `reset` sends RST in place of FIN."""
    if transport is None or transport.is_closing():
        return
    sock = transport.get_extra_info("socket")
    if reset and sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if transport.get_write_buffer_size() > HIGH_WATER_BYTES:
        transport.abort()  # the client does not read: a close would wait for it
    else:
        transport.close()


class EventStream:
    """One streamed answer. The driver pushes into it; the HTTP handler runs it."""

    def __init__(
        self,
        dialect: Dialect,
        transport: asyncio.Transport,
        *,
        chunked: bool,
        faults: StreamFaults,
        stats: EngineStats,
    ) -> None:
        self._dialect = dialect
        self._transport = transport
        self._chunked = chunked
        self._faults = faults
        self._faulty = faults.any
        self._stats = stats
        self._unfinished = len(dialect.script.choices)
        self._blocked = False
        self._ended = False  # by an error frame or a cut: nothing follows
        self._wake = asyncio.Event()

    def listener(self, choice: Choice) -> "StreamListener":
        """Who takes one choice's tokens from the driver."""
        return StreamListener(self, choice)

    async def run(self, writer: AbstractStreamWriter) -> None:
        """Return when everything is written. Cancelled when the client goes away."""
        while self._unfinished and not self._ended:
            await self._next_wake()
            while self._blocked and not self._ended:
                await writer.drain()
                self._catch_up()
        if not self._ended:
            self._write(self._dialect.closing())

    def advance(self, choice: Choice, generated: int) -> None:
        """Write what is new of a choice, unless the client lags."""
        if self._blocked or self._ended:
            return
        if self._transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            self._blocked = True
            self._wake.set()
            return
        self._send(choice, generated)

    def finish(self, choice: Choice) -> None:
        """All tokens of a choice are generated."""
        self._stats.success(choice.finish_reason)
        self._unfinished -= 1
        if not self._unfinished:
            self._wake.set()

    def cut(self, *, reset: bool = False) -> None:
        """Break the connection; the handler is cancelled when it is gone."""
        self._ended = True
        break_connection(self._transport, reset=reset)

    def fail(self) -> None:
        """End with vLLM's in-band error."""
        self._write(DEATH)
        self._ended = True
        self._wake.set()

    async def _next_wake(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def _send(self, choice: Choice, generated: int) -> None:
        """Write the tokens up to `generated`, each in an HTTP chunk of its own."""
        if self._faulty:
            self._send_until_fault(choice, generated)
            return
        dialect, written = self._dialect, choice.written
        data = b"" if written else self._framed(dialect.opening(choice))
        if self._chunked:
            for index in range(written, generated):
                piece = dialect.piece(choice, index)
                data += b"%x\r\n%b\r\n" % (len(piece), piece)
        else:
            for index in range(written, generated):
                data += dialect.piece(choice, index)
        choice.written = generated
        if not self._transport.is_closing():
            self._transport.write(data)

    def _send_until_fault(self, choice: Choice, generated: int) -> None:
        if not choice.written:
            self._write(self._dialect.opening(choice))
        while True:
            if self._faults.cuts(choice.written):
                self.cut(reset=self._faults.cut_reset)
            elif self._faults.fails(choice.written):
                self.fail()
            if self._ended or choice.written == generated:
                return
            self._write(self._dialect.piece(choice, choice.written))
            choice.written += 1

    def _catch_up(self) -> None:
        """Write one batch for each choice; the stream flows again when none is behind."""
        behind = False
        for choice in self._dialect.script.choices:
            generated = choice.sequence.generated if choice.sequence is not None else 0
            if choice.written < generated:
                self._send(choice, min(generated, choice.written + CATCH_UP_TOKENS))
                behind = behind or choice.written < generated
        full = self._transport.get_write_buffer_size() > HIGH_WATER_BYTES
        self._blocked = behind or full

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._framed(data))

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data


class StreamListener:
    """One choice of a stream, towards the driver."""

    __slots__ = ("_choice", "_stream")
    wants_tokens = True

    def __init__(self, stream: EventStream, choice: Choice) -> None:
        self._stream = stream
        self._choice = choice

    def token(self, sequence: EngineSequence) -> None:
        self._stream.advance(self._choice, sequence.generated)

    def finished(self, _: EngineSequence) -> None:
        self._stream.finish(self._choice)

    def cut(self) -> None:
        self._stream.cut()

    def fail(self) -> None:
        self._stream.fail()


class WholeAnswer:
    """Waits until `jobs` sequences are done: the listener of an answer that does not stream."""

    def __init__(
        self,
        jobs: int,
        transport: asyncio.Transport | None,
        *,
        faults: StreamFaults,
        stats: EngineStats,
        finish_reasons: dict[str, str],
    ) -> None:
        self.wants_tokens = faults.any
        self._unfinished = jobs
        self._transport = transport
        self._faults = faults
        self._stats = stats
        self._finish_reasons = finish_reasons
        self._done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def wait(self) -> bool:
        """False if the engine failed. Cancelled when the client goes away."""
        return await self._done

    def token(self, sequence: EngineSequence) -> None:
        if self._faults.cuts(sequence.generated):
            break_connection(self._transport, reset=self._faults.cut_reset)
        elif self._faults.fails(sequence.generated):
            self.fail()

    def finished(self, sequence: EngineSequence) -> None:
        self._stats.success(self._finish_reasons.get(sequence.job.id, "stop"))
        self._unfinished -= 1
        cut = self._transport is None or self._transport.is_closing()
        if not self._unfinished and not cut and not self._done.done():
            self._done.set_result(True)

    def cut(self) -> None:
        break_connection(self._transport, reset=False)

    def fail(self) -> None:
        if not self._done.done():
            self._done.set_result(False)
