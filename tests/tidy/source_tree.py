"""The project's own files, as the tidiness tests see them."""

import ast
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "pointsman"
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "dist", "build", "out"})


def project_files(*suffixes: str) -> list[Path]:
    """Every file that belongs to the project, or those with one of `suffixes`.

    Asks git; in an unpacked source archive, where there is none, walks the folder.
    """
    return [path for path in _all_files() if not suffixes or path.suffix in suffixes]


def python_files(folder: Path = PACKAGE) -> list[Path]:
    """The Python files under `folder`, sorted."""
    return [path for path in project_files(".py") if path.is_relative_to(folder)]


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of `path`."""
    return ast.parse(path.read_text(), filename=str(path))


def expect_none(offences: Iterable[str]) -> None:
    """Fails with the whole list, one a line."""
    if found := list(offences):
        pytest.fail("\n".join(found), pytrace=False)


def name_of(path: Path) -> str:
    """`path` as it is written in a message: relative to the project's root."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """The dotted name of a source file, without the leading `pointsman.`.

    A package's `__init__.py` has the package's name; the root's is the empty string.
    """
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dotted(node: ast.expr) -> str:
    """`a.b.c` for a chain of attributes; a call inside it is written `()`; else empty."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{dotted(value)}.{attribute}"
        case ast.Call(func=function):
            return f"{dotted(function)}()"
        case _:
            return ""


def calls(path: Path) -> Iterator[tuple[int, str, ast.Call]]:
    """Every call in `path`: line, dotted name, node."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted(node.func), node


@cache
def _all_files() -> tuple[Path, ...]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = listing.stdout.split("\0") if listing.returncode == 0 else _walked()
    return tuple(sorted(ROOT / name for name in names if name and (ROOT / name).is_file()))


def _walked() -> list[str]:
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [path.as_posix() for path in found if not any(map(_is_skipped, path.parts[:-1]))]


def _is_skipped(folder: str) -> bool:
    return folder in SKIPPED_FOLDERS or (folder.startswith(".") and folder != ".ci")
