"""`pointsman keys`: make an API key, or the hash of one that exists."""

import re
import secrets
import sys

import click

from pointsman.cli.config_checks import HASH_PREFIX
from pointsman.cli.messages import NAME_RULE
from pointsman.core.ids import NAME_PATTERN
from pointsman.gateway import key_digest

KEY_BYTES = 32
"""Random bytes of a key: nobody guesses them, so that one plain SHA-256 protects them."""

KEY_CHARS_MIN = 20
"""A key of one's own that is shorter can be found from its hash by trying."""


@click.group()
def keys() -> None:
    """API keys: made here, kept only as hashes in the configuration."""


@keys.command(epilog="Exit codes: 0 made, 2 wrong usage.")
@click.argument("name")
def new(name: str) -> None:
    """Make a key for NAME.

    The key is shown once, on stdout; nothing keeps it. The entry for the configuration is
    printed below it.
    """
    _check(name)
    key = "pm-" + secrets.token_urlsafe(KEY_BYTES)
    click.echo(key)
    click.echo("\nThat is the key, for its owner; it is not shown again. For the file:\n", err=True)
    _show_entry(name, key)


@keys.command("hash", epilog="Exit codes: 0 hashed, 2 wrong usage.")
@click.argument("name")
def hash_(name: str) -> None:
    """The entry of a key that exists, which is read from stdin.

    It is never an argument: those are seen by every user of the machine.
    """
    _check(name)
    key = _asked_for() if _is_terminal() else sys.stdin.readline().strip()
    if len(key) < KEY_CHARS_MIN:
        raise click.UsageError(
            f"A key of {len(key)} characters can be guessed; {KEY_CHARS_MIN} random ones are "
            "needed. Remedy: pointsman keys new NAME."
        )
    if not key.isprintable():
        raise click.UsageError("The key holds what no header can carry.")
    _show_entry(name, key)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _asked_for() -> str:
    """A key that somebody types, which is not shown."""
    return str(click.prompt("The key", hide_input=True, err=True)).strip()


def _check(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise click.UsageError(f"'{name}' is no name: {NAME_RULE}.")


def _show_entry(name: str, key: str) -> None:
    click.echo(f"keys:\n  - name: {name}\n    hash: {HASH_PREFIX}{key_digest(key.encode()).hex()}")
