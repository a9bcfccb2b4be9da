"""What commands say to people: on stderr, since stdout is for results and for the access log."""

import difflib
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from pointsman.telemetry.reader import MessageHandler

NAME_RULE = "letters, digits, '.', '_', '-'; 63 at most"
"""`core.ids.NAME_PATTERN` in words."""


def say(text: str) -> None:
    """One line, or several. A disk that is full of messages keeps no gateway from starting."""
    with suppress(OSError):
        click.echo(text, err=True)


def fail(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong and leave; by default as for wrong usage."""
    say(f"pointsman: {message}")
    sys.exit(code)


def reject(lines: Sequence[str]) -> NoReturn:
    """Say line by line what is wrong in a file, and leave as for wrong usage."""
    say("\n".join(lines))
    sys.exit(2)


def unknown_name(name: str, known: Sequence[str]) -> str:
    """A sentence about a name that is none of `known`."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return f"'{name}' is none of {', '.join(known)}{hint}"


def printable_host(host: str) -> str:
    """As it stands in a URL that works from here."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - shown, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def set_up_logging(level: str) -> None:
    """Log messages to stderr."""
    logging.basicConfig(
        handlers=[MessageHandler(sys.stderr)],
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
    )
