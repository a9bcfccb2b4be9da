"""docs/FAILURES.md: every row names tests that exist, or says that its feature does not."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.tidy.source_tree import ROOT, expect_none, tree

DOCUMENT = ROOT / "docs" / "FAILURES.md"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NOT_BUILT = "not built yet"
COLUMNS = 4


def test_every_named_test_exists() -> None:
    expect_none(
        f"{DOCUMENT.name}:{line}: {path} has no {name}"
        for line, row in _rows()
        for path, name in NAMED_TEST.findall(row[-1])
        if name not in _tests_of(path)
    )


def test_every_row_has_a_test_or_says_what_is_missing() -> None:
    expect_none(
        f"{DOCUMENT.name}:{line}: name a test, or say that it is {NOT_BUILT}"
        for line, row in _rows()
        if len(row) != COLUMNS or not (NAMED_TEST.search(row[-1]) or NOT_BUILT in row[-1])
    )


def test_every_backticked_path_is_read_as_a_test() -> None:
    """A name that the pattern misses would never be looked up."""
    expect_none(
        f"{DOCUMENT.name}:{line}: write `tests/….py::test_…`, not {piece}"
        for line, row in _rows()
        for piece in re.findall(r"`[^`]*`", row[-1])
        if not NAMED_TEST.fullmatch(piece)
    )


def test_rows_are_there_and_numbered_once() -> None:
    numbers = Counter(row[0] for _, row in _rows() if row[0].isdigit())
    assert len(numbers) > 60
    assert [number for number, count in numbers.items() if count > 1] == []


def _rows() -> Iterator[tuple[int, list[str]]]:
    """The cells of each row of each table, without heads and rules."""
    lines = DOCUMENT.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("| ") and not line.startswith("| # "):
            yield number, [cell.strip() for cell in line.strip("|").split(" | ")]


def _tests_of(path: str) -> set[str]:
    if not (ROOT / path).is_file():
        return set()
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {
        node.name
        for node in ast.walk(tree(ROOT / path))
        if isinstance(node, functions) and node.name.startswith("test_")
    }
