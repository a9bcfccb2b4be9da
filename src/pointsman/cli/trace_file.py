"""A trace file, opened for the pure reader."""

import gzip
from pathlib import Path

import click

from pointsman.traffic.trace import Trace, TraceError, read_trace


def read_trace_file(path: Path) -> Trace:
    """Read a trace, gzipped or not. Usage errors name file, line and remedy."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            return read_trace(gzip.GzipFile(fileobj=raw) if zipped else raw, name=str(path))
    except (OSError, EOFError) as error:
        cause = getattr(error, "strerror", None) or error
        raise click.UsageError(f"{path}: {cause}. Remedy: give a readable, whole file.") from None
    except TraceError as error:
        raise click.UsageError(str(error)) from None
