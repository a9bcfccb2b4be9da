"""One JSON line a request, and nothing in it that must not be."""

import asyncio
import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pointsman.core.errors import Reason
from pointsman.telemetry import access_log
from pointsman.telemetry.access_log import AccessLog, open_stream
from tests.telemetry.records import STREAMED, refused


def lines(stream: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_a_line_says_where_why_and_how_long() -> None:
    stream = io.BytesIO()
    log = AccessLog(stream, wall_s=lambda: 1_800_000_000.25)
    log.exchange_ended(STREAMED)
    log.close()
    (line,) = lines(stream)
    assert line == {
        "time": "2027-01-15T08:00:00.250Z",
        "id": "r-1",
        "model": "m",
        "endpoint": "chat",
        "status": 200,
        "end": "finished",
        "node": "n1",
        "policy": "marginal_cost",
        "why": "least marginal cost",
        "attempts": 1,
        "streamed": True,
        "queue_ms": 1.0,
        "ttft_ms": 200.0,
        "e2e_ms": 1200.0,
        "prompt_tokens": 100,
        "output_tokens": 11,
        "cached_tokens_predicted": 64,
        "cached_tokens": 48,
        "bytes_in": 400,
        "bytes_out": 900,
    }


async def test_a_stream_that_takes_nothing_is_tried_again() -> None:
    class Reluctant(io.BytesIO):
        takes = False

        def write(self, data: Any, /) -> int:
            return super().write(data) if self.takes else None  # type: ignore[return-value]  # as raw files do

    stream = Reluctant()
    log = AccessLog(stream)
    log.exchange_ended(STREAMED)
    log.flush()
    assert log.state().lines_lost == 0
    stream.takes = True
    log.flush()
    assert len(lines(stream)) == 1


async def test_what_is_not_known_is_left_out() -> None:
    stream = io.BytesIO()
    log = AccessLog(stream)
    log.exchange_ended(refused(Reason.QUEUE_FULL, 429))
    log.close()
    (line,) = lines(stream)
    assert line["reason"] == "queue_full"
    assert "node" not in line
    assert "ttft_ms" not in line
    assert "prompt_tokens" not in line


async def test_lines_are_written_together_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FLUSH_S", 0.01)
    stream = io.BytesIO()
    log = AccessLog(stream)
    log.exchange_ended(STREAMED)
    log.exchange_ended(STREAMED)
    assert stream.getvalue() == b""
    await asyncio.sleep(0.1)
    assert len(lines(stream)) == 2
    log.close()


async def test_a_flood_does_not_become_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "BUFFER_BYTES_MAX", 1_000)
    stream = io.BytesIO()
    log = AccessLog(stream)
    for _ in range(3):
        log.exchange_ended(STREAMED)
    assert len(lines(stream)) == 3
    log.close()


class _Full(io.BytesIO):
    def write(self, _: object) -> int:
        raise OSError(28, "No space left on device")


async def test_a_full_disk_does_not_stop_the_service() -> None:
    log = AccessLog(_Full())
    log.exchange_ended(STREAMED)
    log.exchange_ended(STREAMED)
    log.close()
    log.close()
    assert log.state().lines_lost == 2


class _Small(io.BytesIO):
    """A disk with room for so many bytes, until some are deleted."""

    room = 0

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        written = super().write(bytes(data)[: self.room])
        self.room -= written
        return written


async def test_a_line_that_a_full_disk_cut_spoils_no_other() -> None:
    disk = _Small()
    log = AccessLog(disk)
    disk.room = 40
    for _ in range(3):
        log.exchange_ended(STREAMED)
        log.flush()
    disk.room = 10_000
    log.exchange_ended(STREAMED)
    log.close()
    cut, whole = disk.getvalue().splitlines()
    assert len(cut) == 40
    assert json.loads(whole)["end"] == "finished"
    assert log.state().lines_lost == 3


def pipe() -> tuple[BinaryIO, BinaryIO]:
    reader, writer = os.pipe()
    return open(reader, "rb", buffering=0), open(writer, "wb", buffering=0)


async def test_a_reader_that_stalls_does_not_stop_the_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A paused terminal or a stuck log driver behind stdout: a pipe holds 64 KiB."""
    monkeypatch.setattr(access_log, "BACKLOG_BYTES_MAX", 50_000)
    read, stream = pipe()
    with read, stream:
        log = AccessLog(stream)
        for _ in range(1_000):
            log.exchange_ended(STREAMED)
        log.flush()
        assert log.state().lines_lost > 0
        assert caplog.text.count("lines are lost") == 1
        lost, text = log.state().lines_lost, b""
        while text.count(b"\n") < 1_000 - lost:
            text += read.read(1 << 16)
            log.flush()
        log.close()
    assert text.endswith(b"\n")
    assert all(json.loads(line)["id"] == "r-1" for line in text.splitlines())
    assert len(text.splitlines()) == 1_000 - lost


class _Slow(io.BytesIO):
    def write(self, data: object) -> int:
        assert isinstance(data, memoryview)
        return super().write(data[:7])


async def test_short_writes_lose_nothing() -> None:
    stream = _Slow()
    log = AccessLog(stream)
    log.exchange_ended(STREAMED)
    log.close()
    assert len(lines(stream)) == 1


def test_a_pipe_is_written_to_where_somebody_reads_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        open_stream(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with open_stream(str(pipe)) as stream:
        assert os.get_blocking(stream.fileno())
        stream.write(b"line\n")
        assert os.read(reader, 9) == b"line\n"
    os.close(reader)
