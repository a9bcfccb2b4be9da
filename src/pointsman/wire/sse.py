"""What a relayed event stream says about itself, without touching a byte of it.

The relay feeds every chunk as it comes, cut anywhere. Only lines that carry a mark (`"usage"`,
`"error"`, a finish reason, an end) are decoded. A mark cannot occur inside generated text:
there its quotes are escaped, and line feeds too. Lines end in LF or CRLF.

Chunks of one stream differ in their text alone, so the frame around the text of the last
plain one is remembered: a chunk with the same frame is plain too, at a third of the cost.
"""

import re
from typing import Final

from msgspec import Raw

from pointsman.decoding import decoded_or_none
from pointsman.wire.answers import over, response_id, usage_of
from pointsman.wire.sse_events import (
    Frame,
    StreamError,
    StreamSummary,
    aborted,
    decode_frame,
    decode_inner,
    decode_usage,
    stream_error,
)
from pointsman.wire.usage import Usage, UsageFields

LINE_BYTES_MAX = 1024 * 1024
"""Longest line that is looked into and the most that is kept of one that is not yet whole.
What a longer one says (its usage, its error) stays unknown; it is still counted."""


class SseScanner:
    """Follows one stream: `feed` each chunk, `close` at its end.

    Holds at most LINE_BYTES_MAX of an unfinished line. Results do not depend on how the
    stream is cut into chunks.
    """

    __slots__ = (
        "_at_edge",
        "_events",
        "_frame",
        "_pending",
        "_usage",
        "done",
        "error",
        "finished",
        "response_id",
    )

    def __init__(self) -> None:
        self._events = 0
        self._frame = _TextFrame()
        self._pending = bytearray()  # a line that is not yet whole
        self._at_edge = True  # between lines: nothing pending, no long line being skipped
        self._usage: UsageFields | None = None
        self.error: StreamError | None = None
        self.finished = False
        self.done = False
        self.response_id = ""  # of the Responses API

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        # Engines write whole events, so nearly every chunk starts and ends at a line's edge.
        if self._at_edge:
            if self._frame.fits(chunk):
                self._events += 1
                return
            if chunk.endswith(b"\n"):
                self._scan(chunk)
                return
        self._feed_cut(chunk)

    def close(self) -> StreamSummary:
        """What the stream said. Its last line counts even without a line feed."""
        if self._pending:
            self._scan(bytes(self._pending))
            self._pending.clear()
        return self.summary()

    def summary(self) -> StreamSummary:
        """What the stream has said so far, in whole lines."""
        return StreamSummary(self._events, self.usage, self.error, self.finished, self.done)

    @property
    def events(self) -> int:
        """Data lines so far, without `[DONE]`."""
        return self._events

    @property
    def usage(self) -> Usage | None:
        """The last usage so far; None if there was none."""
        return None if self._usage is None else usage_of(self._usage)

    def _feed_cut(self, chunk: bytes) -> None:
        cut = chunk.rfind(b"\n") + 1
        if not self._at_edge and not self._pending:  # inside a line longer than the limit
            start = chunk.find(b"\n") + 1
            if not start:
                return
            chunk, cut = chunk[start:], cut - start
        if cut:
            self._scan(bytes(self._pending) + chunk[:cut])
            self._pending.clear()
        self._pending += memoryview(chunk)[cut:]
        self._at_edge = not self._pending
        if len(self._pending) > LINE_BYTES_MAX:
            self._events += self._pending.startswith(b"data:")
            self._pending.clear()

    def _scan(self, lines: bytes) -> None:
        events = lines.count(b"\ndata:") + lines.startswith(b"data:")
        self._events += events
        if not _has_mark(lines):
            if events == 1:
                self._frame.learn(lines, self._events)
            return
        for line in lines.split(b"\n"):
            if line.startswith(b"data:") and len(line) <= LINE_BYTES_MAX:
                self._look(line[5:].strip())

    def _look(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._events -= 1
            self.done = True
        elif (frame := decoded_or_none(decode_frame, data)) is not None:
            self._note_usage(frame)
            self._note_end(frame)
            if self.error is None:
                self.error = stream_error(frame)

    def _note_usage(self, frame: Frame) -> None:
        # Anthropic's message_start and the Responses API have it one level down.
        if (message := decoded_or_none(decode_inner, frame.message)) is not None:
            self._take_usage(message.usage)
        if (response := decoded_or_none(decode_inner, frame.response)) is not None:
            self._take_usage(response.usage)
            self.response_id = response_id(response.id)
        self._take_usage(frame.usage)

    def _take_usage(self, raw: Raw) -> None:
        if (fields := decoded_or_none(decode_usage, raw)) is not None:
            self._usage = over(fields, self._usage)

    def _note_end(self, frame: Frame) -> None:
        if frame.type in _LAST_EVENTS:
            self.finished = self.finished or frame.type in _GOOD_ENDS
            self.done = True
        elif frame.choices and any(choice.finish_reason for choice in frame.choices):
            self.finished = True
            if self.error is None:
                self.error = aborted(frame)


class _TextFrame:
    """What stands around the text of a stream's plain chunks."""

    __slots__ = ("_frame_bytes", "_head", "_head_bytes", "_learned", "_tail", "_tail_bytes")

    def __init__(self) -> None:
        self._head = self._tail = b""
        self._head_bytes = self._tail_bytes = 0
        self._frame_bytes = 1 << 60  # so nothing fits
        self._learned = 0

    def fits(self, chunk: bytes) -> bool:
        """Whether `chunk` is one event that differs from the learned one in its text alone.

        The tail begins with the quote that ends the text: there must be none before it, and no
        line may end there. So no mark can hide in the text.
        """
        size = len(chunk)
        if size < self._frame_bytes:
            return False
        if not (chunk.startswith(self._head) and chunk.endswith(self._tail)):
            return False
        text = chunk[self._head_bytes : size - self._tail_bytes]
        return _QUOTE not in text and _LINE_FEED not in text

    def learn(self, chunk: bytes, events: int) -> None:
        """Remember the frame of a plain chunk of one event, if that has a text.

        At most once in sixteen of the stream's `events`: some number theirs, and never fit.
        """
        if self._learned * 16 > events + 64:
            return
        self._learned += 1
        text = _TEXT.search(chunk)
        if text is None or b"\n" in text.group(1):
            return
        line_end = chunk.find(b"\n", text.end(1))
        if chunk[line_end:].strip():
            return
        self._head, self._tail = chunk[: text.start(1)], chunk[text.end(1) :]
        self._head_bytes, self._tail_bytes = len(self._head), len(self._tail)
        self._frame_bytes = self._head_bytes + self._tail_bytes


# Numbers: bytes are found in bytes at three times the cost.
_QUOTE: Final = ord(b'"')
_LINE_FEED: Final = ord(b"\n")
_TEXT: Final = re.compile(
    rb'"(?:content|text|delta|reasoning|reasoning_content|thinking)": ?"((?:[^"\\]|\\.)*)"'
)


def _has_mark(lines: bytes) -> bool:
    return (
        b'"usage"' in lines
        or b'finish_reason":"' in lines
        or b'finish_reason": "' in lines
        or b"[DONE]" in lines
        or b'"error"' in lines
        or b'"message_stop"' in lines
    )


# Responses API and Anthropic messages: their last events stand for [DONE].
_GOOD_ENDS: Final = frozenset({"response.completed", "response.incomplete", "message_stop"})
_LAST_EVENTS: Final = _GOOD_ENDS | {"response.failed"}
