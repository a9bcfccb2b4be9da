"""docs/ARCHITECTURE.md: the files that it names exist, and so does what it names in them."""

import ast
import re
from pathlib import Path

from tests.tidy.source_tree import PACKAGE, ROOT, expect_none, tree

DOCUMENT = ROOT / "docs" / "ARCHITECTURE.md"
FILE = r"`([\w/]+/\w+\.py)`"
NAMED_FILE = re.compile(FILE)
NAMED_PLACE = re.compile(FILE + r" `(\w+)`")  # a file, and a function or value in it


def test_every_named_file_exists() -> None:
    paths = NAMED_FILE.findall(DOCUMENT.read_text())
    assert len(paths) > 60
    expect_none(f"{DOCUMENT.name}: there is no {path}" for path in paths if _found(path) is None)


def test_every_named_place_exists() -> None:
    places = NAMED_PLACE.findall(DOCUMENT.read_text())
    assert len(places) > 15
    expect_none(
        f"{DOCUMENT.name}: {path} has no {name}"
        for path, name in places
        if (file := _found(path)) is not None and name not in _names_in(file)
    )


def _found(path: str) -> Path | None:
    """The file, written from the package's or the core's folder, or from the project's."""
    folders = (PACKAGE, PACKAGE / "core", ROOT)
    return next((folder / path for folder in folders if (folder / path).is_file()), None)


def _names_in(file: Path) -> set[str]:
    """What is defined or assigned in `file`, on any level."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    nodes = list(ast.walk(tree(file)))
    defined = {node.name for node in nodes if isinstance(node, definitions)}
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return defined | stored
