"""Style that a machine can hold: lengths, banned calls, leftovers, docstrings, links, hosts."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.tidy.documents import leads_somewhere, links
from tests.tidy.source_tree import (
    PACKAGE,
    ROOT,
    calls,
    dotted,
    expect_none,
    module_name,
    name_of,
    project_files,
    python_files,
    tree,
)

FUNCTION_LINES_MAX = 70  # what fits on one screen
FILE_LINES_MAX = 400

# Ratchets: what is over a limit, with its size. An entry may shrink or go, never grow.
LONG_FUNCTIONS: dict[str, int] = {}
LONG_FILES: dict[str, int] = {}

BANNED_CALLS = {
    "asyncio.ensure_future": "use a TaskGroup, which awaits what it starts",
    "asyncio.get_event_loop": "use asyncio.get_running_loop",
    "time.sleep": "blocks the loop; use asyncio.sleep",
    "os.system": "use asyncio.create_subprocess_exec",
}
TIME_IS_GIVEN = {"time.time", "time.monotonic", "time.perf_counter", "datetime.now"}

LEFTOVERS = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X]|HAC[K])\b")  # does not match itself
HOSTS = re.compile(  # does not match itself
    r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|crates[.]io|deb[.]debian[.]org"
    r"|proxy[.]golang|--(?:extra-)?index-url|--find-link[s]"
)

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_functions_fit_on_a_screen() -> None:
    expect_none(
        f"{key} has {lines} lines, {allowed} are allowed: split it"
        for path in project_files(".py")
        for key, lines in _function_lengths(path)
        if lines > (allowed := LONG_FUNCTIONS.get(key, FUNCTION_LINES_MAX))
    )


def test_files_are_short() -> None:
    expect_none(
        f"{name_of(path)} has {lines} lines, {allowed} are allowed: split it by noun"
        for path in python_files()
        if (lines := path.read_text().count("\n"))
        > (allowed := LONG_FILES.get(name_of(path), FILE_LINES_MAX))
    )


def test_ratchets_hold_only_what_is_still_long() -> None:
    lengths = {key: n for path in project_files(".py") for key, n in _function_lengths(path)}
    assert all(lengths.get(key, 0) == allowed for key, allowed in LONG_FUNCTIONS.items())
    for name, allowed in LONG_FILES.items():
        assert (ROOT / name).read_text().count("\n") == allowed > FILE_LINES_MAX


def test_banned_calls() -> None:
    expect_none(
        f"{name_of(path)}:{line}: {called}(): {BANNED_CALLS[called]}"
        for path in python_files()
        for line, called, _ in calls(path)
        if called in BANNED_CALLS
    )


def test_started_tasks_have_an_owner() -> None:
    expect_none(
        f"{name_of(path)}:{node.lineno}: create_task(): nobody holds this task: use a TaskGroup, "
        "or keep it with an owner who awaits it"
        for path in python_files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr | ast.Lambda) and _starts_task(node)
    )


@pytest.mark.parametrize(
    ("statement", "orphan"),
    [
        ("asyncio.create_task(x())", True),
        ("self._loop.create_task(x())", True),
        ("asyncio.get_running_loop().create_task(x())", True),
        ("task = asyncio.create_task(x())", False),
        ("group.create_task(x())", False),
    ],
)
def test_orphan_tasks_are_seen(statement: str, orphan: bool) -> None:
    node = ast.parse(statement).body[0]
    assert (isinstance(node, ast.Expr) and _starts_task(node)) is orphan


def test_core_is_told_the_time() -> None:
    expect_none(
        f"{name_of(path)}:{line}: {called}(): take now_s from the caller"
        for path in python_files(PACKAGE / "core")
        for line, called, _ in calls(path)
        if called in TIME_IS_GIVEN
    )


def test_only_the_command_line_prints() -> None:
    expect_none(
        f"{name_of(path)}:{line}: print(): log it, or return it to cli/"
        for path in python_files()
        for line, called, _ in calls(path)
        if called == "print" and not module_name(path).startswith("cli")
    )


def test_sets_are_never_iterated_in_pure_code() -> None:
    pure = [path for name in ("core", "wire", "traffic") for path in python_files(PACKAGE / name)]
    expect_none(
        f"{name_of(path)}:{line}: a set has no order: iterate a sorted list or a dict"
        for path in pure
        for line, iterated in _iterated(path)
        if isinstance(iterated, ast.Set | ast.SetComp)
        or (isinstance(iterated, ast.Call) and dotted(iterated.func) in ("set", "frozenset"))
    )


def test_nothing_is_left_over() -> None:
    expect_none(
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in _text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFTOVERS.search(line)
    )


def test_no_registry_host_is_named() -> None:
    expect_none(
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in _text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if HOSTS.search(line)
    )


def test_checks_check_something() -> None:
    expect_none(
        f"{name_of(path)}:{method.lineno}: {owner.name}.check() is empty"
        for path in python_files()
        for owner in ast.walk(tree(path))
        if isinstance(owner, ast.ClassDef) and "Protocol" not in map(dotted, owner.bases)
        for method in owner.body
        if isinstance(method, type_of_function) and method.name == "check" and _is_empty(method)
    )


def test_packages_explain_themselves() -> None:
    folders = sorted({path.parent for path in python_files()})
    expect_none(
        f"{name_of(folder)}: __init__.py with a docstring: purpose, reading order, ownership, "
        "what it must not import"
        for folder in folders
        if not (init := folder / "__init__.py").is_file() or not ast.get_docstring(tree(init))
    )


@pytest.mark.parametrize("folder", sorted({path.parent for path in python_files()}), ids=name_of)
def test_a_reading_order_leaves_nothing_out(folder: Path) -> None:
    told = ast.get_docstring(tree(folder / "__init__.py")) or ""
    if "reading order" not in told.lower():
        return
    named = set(re.findall(r"[a-z_]+", told))
    groups = tuple(name for name in re.findall(r"([a-z]+_)\*", told))  # `config_*` and the like
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    expect_none(
        f"{name_of(folder)}/__init__.py: {name} has no place in the reading order"
        for name in sorted(modules | packages)
        if name not in named and not name.startswith(groups)
    )


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    words = re.findall(
        r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "GLOSSARY.md").read_text(), re.MULTILINE
    )
    assert len(words) > 1
    expect_none(
        f"docs/GLOSSARY.md: '{word}' belongs before '{before}'"
        for before, word in pairwise(words)
        if word <= before
    )


def test_core_is_documented() -> None:
    expect_none(
        missing for path in python_files(PACKAGE / "core") for missing in _undocumented(path)
    )


def test_links_in_documents_lead_somewhere() -> None:
    expect_none(
        f"{name_of(document)}: {target}"
        for document in project_files(".md")
        for target in links(document)
        if not leads_somewhere(document, target)
    )


def _function_lengths(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, type_of_function):
            assert node.end_lineno is not None
            yield f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1


def _iterated(path: Path) -> Iterator[tuple[int, ast.expr]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.For | ast.comprehension):
            yield node.iter.lineno, node.iter


def _starts_task(node: ast.Expr | ast.Lambda) -> bool:
    """Whether the statement or lambda starts a task on the loop itself and drops it."""
    started = node.value if isinstance(node, ast.Expr) else node.body
    if not isinstance(started, ast.Call):
        return False
    owner, _, called = dotted(started.func).rpartition(".")
    return called == "create_task" and (owner == "asyncio" or owner.endswith(("loop", "loop()")))


def _is_empty(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(
        isinstance(statement, ast.Pass | ast.Return | ast.Raise)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in method.body
    )


def _undocumented(path: Path) -> Iterator[str]:
    """What lacks a docstring; the module's own is enough for the one public thing in it."""
    if not ast.get_docstring(tree(path)):
        yield f"{name_of(path)} has no docstring"
    definitions = [
        node for node in tree(path).body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    public = [node for node in definitions if not node.name.startswith("_")]
    for node in public if len(public) > 1 else []:
        if not ast.get_docstring(node):
            yield f"{name_of(path)}:{node.lineno}: {node.name} has no docstring"


def _text_files() -> list[Path]:
    return [
        path
        for path in project_files()
        if path.suffix in {".py", ".md", ".toml", ".lock", ".txt", ".yaml", ".yml", ".sh", ".html"}
        or path.name in {"Makefile", "run"}
    ]
