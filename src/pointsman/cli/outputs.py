"""Where measurements go: the terminal, a JSON file, a page."""

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from pointsman.cli.messages import fail
from pointsman.report.plots import PlotsUnavailableError, require_matplotlib

PIPE_COLUMNS = 200
"""Of tables that go to a file: there is no terminal to be too narrow for them."""


def check_outputs(json_file: str | None, html_file: Path | None) -> None:
    """Find out before the run, not after it, that a report cannot be written.

    The folder of a report is made if only the folder is missing.
    """
    if html_file:
        try:
            require_matplotlib()
        except PlotsUnavailableError as error:
            raise click.UsageError(f"--html: {error}") from None
    for path in (html_file, Path(json_file) if json_file and json_file != "-" else None):
        if path is None or _is_device(path):
            continue
        if path.is_dir():
            raise click.UsageError(f"{path} is a folder. Remedy: name a file in it.")
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
        if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise click.UsageError(
                f"{path}: {path.parent} is no folder that can be written to. Remedy: make it, or "
                "name another."
            )


def write_outputs(
    show: Callable[[Console], None],
    encode: Callable[[], bytes],
    render: Callable[[], str],
    *,
    json_file: str | None,
    html_file: Path | None,
) -> None:
    """`show` tables on stdout, or `encode` JSON to it or to a file; `render` a page."""
    if json_file == "-":
        sys.stdout.buffer.write(encode())
        sys.stdout.buffer.flush()
    else:
        show(Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS))
        if json_file:
            _write(Path(json_file), encode())
    if html_file:
        _write(html_file, render().encode())
        if sys.stderr.isatty():
            click.echo(f"wrote {html_file}", err=True)


def _write(path: Path, data: bytes) -> None:
    """Leaves with the cause if that cannot be done."""
    try:
        if _is_device(path):
            path.write_bytes(data)
        else:
            _replace_file(path.resolve(), data)  # where it is a link, that stays one
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")


def _is_device(path: Path) -> bool:
    """Whether it is there and no file that can be replaced: /dev/null, a shell's >(…)."""
    return path.exists() and not (path.is_file() or path.is_dir())


def _replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as part:
        try:
            part.write(data)
            part.flush()
            umask = os.umask(0)
            os.umask(umask)
            Path(part.name).chmod(0o666 & ~umask)  # as open() would have made it
            Path(part.name).replace(path)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
