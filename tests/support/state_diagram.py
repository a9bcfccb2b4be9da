"""The diagrams of docs/: transition tables of the core, drawn."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

State = TypeVar("State", bound=StrEnum)
Step = TypeVar("Step", bound=StrEnum)

DOCS = Path(__file__).parents[2] / "docs"


def expect_drawn(
    document: str, table: Mapping[State, Mapping[Step, State]], first: State, last: State
) -> None:
    """The document in docs/ shows the table, as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    for state, steps in table.items():
        for following in dict.fromkeys(steps.values()):
            names = ", ".join(step for step, target in steps.items() if target is following)
            lines.append(f"    {state} --> {following}: {names}")
    drawn = "\n".join([*lines, f"    {last} --> [*]"])
    assert f"```mermaid\n{drawn}\n```\n" in (DOCS / document).read_text(), (
        f"put this between the fences of docs/{document}:\n{drawn}"
    )
