"""The commands of a Markdown document, and how each is to be run.

A fenced block whose language is `bash` holds commands, and is run unless it says otherwise. What
follows the language is not shown to a reader:

    ```bash                    run to its end; must exit 0
    ```bash server             started, and left running for the blocks after it, until the next
                               server; it is up when /ready on port 8080 says so
    ```bash server port=9000   the same, on another port
    ```bash skip: REASON       not run here, for the reason given
"""

import re
from enum import StrEnum

import msgspec

FENCE = re.compile(r"^```bash(?P<how>[^\n]*)\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL)
PORT_DEFAULT = 8080


class How(StrEnum):
    """How a block is run."""

    RUN = "run"
    SERVER = "server"
    SKIP = "skip"


class Block(msgspec.Struct, frozen=True):
    """One block of commands."""

    line: int
    commands: str
    how: How = How.RUN
    port: int = 0
    reason: str = ""


def blocks(document: str) -> list[Block]:
    """The bash blocks of `document`, in order. ValueError if one says what cannot be understood."""
    return [
        _block(document.count("\n", 0, found.start()) + 1, found["how"].strip(), found["commands"])
        for found in FENCE.finditer(document)
    ]


def _block(line: int, how: str, commands: str) -> Block:
    if not how:
        return Block(line, commands)
    if server := re.fullmatch(r"server(?: port=(\d+))?", how):
        return Block(line, commands, How.SERVER, port=int(server[1] or PORT_DEFAULT))
    if skipped := re.fullmatch(r"skip: (.+)", how):
        return Block(line, commands, How.SKIP, reason=skipped[1])
    raise ValueError(f"line {line}: cannot understand a bash block that says {how!r}")
