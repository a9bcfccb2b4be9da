"""Streams with a reader, such as a pipe or a terminal: whoever writes must not wait for it."""

import logging
import os
import select
import stat
from typing import IO, TextIO


def poll_of(stream: IO[bytes] | IO[str]) -> "select.poll | None":
    """Its `poll(0)` tells whether PIPE_BUF bytes can be written without waiting for a reader.
    None for a file, which has none."""
    try:
        descriptor = stream.fileno()
    except OSError:  # in memory
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return poll


class MessageHandler(logging.StreamHandler[TextIO]):
    """Messages for people. Those that the stream has no room for are lost: the log driver that
    reads no access log reads no messages, either."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._poll = poll_of(stream)

    def emit(self, record: logging.LogRecord) -> None:
        if self._poll is None or self._poll.poll(0):
            super().emit(record)
