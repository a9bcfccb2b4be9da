"""Nobody waits for who reads the messages."""

import logging
import os

from pointsman.telemetry.reader import MessageHandler


def test_messages_are_lost_while_nobody_reads_them() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as read, open(writer, "w") as stream:
        handler = MessageHandler(stream)
        for number in range(10_000):
            handler.emit(message(f"{number:020}"))
        told = read.read(1 << 20)
        assert told.splitlines()[0] == b"0" * 20
        assert 1_000 < told.count(b"\n") < 10_000
        handler.emit(message("and on it goes"))
        assert read.read(1 << 20) == b"and on it goes\n"


def message(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "", 0, text, None, None)
