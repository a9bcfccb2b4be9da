"""Sources of requests as commands are given them: checked, and their traces read."""

import gzip
import zlib
from pathlib import Path

import click

from pointsman.traffic.source import Source, Window, problems
from pointsman.traffic.trace import Trace, TraceError, read_trace


def check_source(source: Source) -> None:
    """Raises UsageError for the first of its problems."""
    for problem in problems(source):
        raise click.UsageError(f"{problem.message[:1].upper()}{problem.message[1:]}.")


def window_of(span_s: tuple[float, float] | None) -> Window | None:
    """What --window-s gives."""
    return None if span_s is None else Window(start_s=span_s[0], end_s=span_s[1])


def read_trace_file(path: Path) -> Trace:
    """Read a trace, gzipped or not. Usage errors name file, line and remedy."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            return read_trace(gzip.GzipFile(fileobj=raw) if zipped else raw, name=str(path))
    except (OSError, EOFError, zlib.error) as error:
        cause = getattr(error, "strerror", None) or error
        raise click.UsageError(f"{path}: {cause}. Remedy: give a readable, whole file.") from None
    except TraceError as error:
        raise click.UsageError(str(error)) from None
