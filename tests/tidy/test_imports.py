"""Who may import whom: the direction between packages, purity, the reading order of the core."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tidy.source_tree import (
    PACKAGE,
    calls,
    dotted,
    expect_none,
    module_name,
    name_of,
    python_files,
    tree,
)

LOWEST = frozenset({"core", "decoding"})
LOW = LOWEST | {"wire", "ports", "descriptors"}
ADAPTERS = frozenset({"engines", "telemetry"})
SHELL = LOW | ADAPTERS
SHELLS = frozenset({"gateway", "control", "agent", "sim", "loadgen", "report"})

# What each package may import of the others: below it, never beside it.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "decoding": frozenset(),
    "core": frozenset(),
    "wire": LOWEST,
    "descriptors": frozenset(),
    "ports": LOWEST | {"wire"},
    "traffic": frozenset({"decoding"}),
    "planner": frozenset(),
    "engines": LOW,
    "telemetry": LOWEST,
    "gateway": LOW | {"engines"},
    "collectors": SHELL,
    "control": SHELL | {"collectors"},
    "agent": SHELL | {"collectors"},
    "sim": LOWEST | {"engines", "traffic"},
    "loadgen": frozenset({"decoding", "traffic"}),
    "report": LOWEST | {"traffic"},
    "__main__": frozenset({"cli"}),
    "cli": SHELL | SHELLS | {"collectors", "traffic", "planner"},
}

PURE_PACKAGES = frozenset({"decoding", "core", "wire", "traffic", "planner", "sim"})
PURE_BELOW = ("engines.compute_model.",)  # a module, or a package with all that is in it

# Without clock, I/O, environment or thread. A module is added here only if that is true of it.
PURE_STDLIB = """
__future__ abc array base64 binascii bisect codecs collections contextlib copy dataclasses decimal
enum fractions functools hashlib heapq hmac itertools json math numbers operator random re
statistics string struct sys types typing unicodedata urllib.parse zlib
"""
IMPURE = """
asyncio socket.socket time.monotonic logging os.environ datetime.datetime random.choice threading
aiohttp.web uvloop zmq urllib.request pathlib
"""
PURE_THIRD_PARTY = frozenset({"msgspec", "mypy_extensions", "numpy", "xxhash"})
READERS_STDLIB = "csv datetime gzip io pathlib"  # trace files, read by `traffic`
PURE_BUILTINS_BANNED = frozenset({"open", "print", "input", "exec", "eval", "__import__"})


class Import(NamedTuple):
    line: int
    target: str  # the full dotted name, e.g. pointsman.core.ids or random.Random


def test_imports_go_one_way() -> None:
    expect_none(
        f"{name_of(path)}:{line}: {importer} must not import {imported}"
        for path in python_files()
        for line, imported in _packages_imported(path)
        if imported not in MAY_IMPORT.get(importer := _package(module_name(path)), frozenset())
    )


def test_every_package_has_a_place_in_the_direction() -> None:
    packages = {_package(module_name(path)) for path in python_files()} - {""}
    assert sorted(packages) == sorted(MAY_IMPORT), (
        "each package has a row in MAY_IMPORT of tests/tidy/test_imports.py, and each row a package"
    )


def test_shells_never_import_each_other() -> None:
    for shell in SHELLS:
        assert not MAY_IMPORT[shell] & (SHELLS | {"cli"}), shell


@pytest.mark.parametrize("path", [p for p in python_files() if module_name(p)], ids=module_name)
def test_pure_code_is_pure(path: Path) -> None:
    name = module_name(path)
    if _package(name) not in PURE_PACKAGES and not f"{name}.".startswith(PURE_BELOW):
        return
    may_read = _package(name) == "traffic"
    stdlib = frozenset((PURE_STDLIB + (READERS_STDLIB if may_read else "")).split())
    expect_none(
        f"{name_of(path)}:{line}: {target} has no place in pure code"
        for line, target in _imports(path)
        if not _is_pure(target, stdlib)
    )
    expect_none(
        f"{name_of(path)}:{line}: {called}(): {why}"
        for line, called, node in calls(path)
        if (why := _impurity(called, node, may_read=may_read))
    )


def test_core_is_read_top_down() -> None:
    order = {place: index for index, place in enumerate(reading_order())}
    expect_none(
        f"{name_of(path)}:{line}: {own} must not import {target}, which stands above it in the "
        "reading order of core/__init__.py"
        for path in python_files(PACKAGE / "core")
        if (own := _place_in_core(path)) in order
        for line, target in _core_targets(path)
        if order.get(target, len(order)) < order[own]
    )


def test_the_reading_order_is_complete() -> None:
    order = reading_order()
    places = [_place_in_core(path) for path in python_files(PACKAGE / "core")]
    expect_none(
        f"core/{place}: a new core file needs a place in the reading order, which is the list in "
        "the docstring of core/__init__.py"
        for place in dict.fromkeys(places)
        if place and place not in order
    )
    expect_none(
        f"{place}: in the reading order, not in core/" for place in order if place not in places
    )


def test_each_package_says_what_is_in_it() -> None:
    """Its docstring names its files, if it has a reading order; `config_*` are several."""
    expect_none(
        f"{name_of(path)}: not in the reading order of its package's docstring"
        for path in python_files()
        if path.name != "__init__.py" and not _is_told_of(path)
    )


def test_no_import_cycles() -> None:
    graph = {module_name(path): set(_modules_imported(path)) for path in python_files()}
    found = _cycle(graph)
    expect_none([f"{' -> '.join([*found, found[0]])}: a cycle"] if found else [])


@pytest.mark.parametrize("target", IMPURE.split())
def test_what_waits_or_looks_around_is_impure(target: str) -> None:
    assert not _is_pure(target, frozenset(PURE_STDLIB.split()))


@pytest.mark.parametrize(
    "call",
    [
        "random.random()",
        "datetime.now()",
        "random.Random()",
        "hash(x)",
        "open(x)",
        "np.random.default_rng()",
    ],
)
def test_impure_calls_are_seen(call: str) -> None:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert _impurity(dotted(node.func), node, may_read=False)


def test_cycles_are_seen() -> None:
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert _cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def reading_order() -> list[str]:
    """The names in the indented list of `core/__init__.py`'s docstring, top-down."""
    docstring = ast.get_docstring(tree(PACKAGE / "core" / "__init__.py"))
    assert docstring is not None
    order = re.findall(r"^    ([a-z_]+)/? ", docstring, re.MULTILINE)
    assert len(order) == len(set(order)) > 1, order
    return order


def _is_told_of(path: Path) -> bool:
    docstring = ast.get_docstring(tree(path.parent / "__init__.py")) or ""
    names = re.findall(r"[a-z_]+\*?", docstring)
    return "eading order" not in docstring or any(fnmatch(path.stem, name) for name in names)


def _packages_imported(path: Path) -> Iterator[tuple[int, str]]:
    own = _package(module_name(path))
    for line, target in _imports(path):
        head, _, rest = target.partition(".")
        package = _package(rest)
        if head == "pointsman" and package not in ("", own) and _is_module(package):
            yield line, package


def _is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def _core_targets(path: Path) -> Iterator[tuple[int, str]]:
    for line, target in _imports(path):
        parts = target.split(".")
        if parts[:2] == ["pointsman", "core"] and len(parts) > 2:
            yield line, parts[2]


def _place_in_core(path: Path) -> str:
    """The file's name in the reading order; a folder's files share the folder's place.

    `core/__init__.py` itself has none: empty.
    """
    return module_name(path).partition(".")[2].partition(".")[0]


def _modules_imported(path: Path) -> Iterator[str]:
    known = {module_name(other) for other in python_files()}
    for _, target in _imports(path):
        if target.startswith("pointsman."):
            name = target.removeprefix("pointsman.")
            found = name if name in known else name.rpartition(".")[0]
            if found in known and found != module_name(path):
                yield found


def _imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_base(node, path)
            yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _absolute_base(node: ast.ImportFrom, path: Path) -> str:
    if node.level == 0:
        assert node.module is not None
        return node.module
    package = path.parent.relative_to(PACKAGE.parent).parts
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_pure(target: str, stdlib: frozenset[str]) -> bool:
    head = target.partition(".")[0]
    if head == "pointsman":
        return True  # the direction between packages is another test's matter
    if head == "random":
        return target in ("random", "random.Random")
    return (
        head in PURE_THIRD_PARTY
        or head in stdlib
        or any(target == name or target.startswith(f"{name}.") for name in stdlib)
    )


def _impurity(called: str, node: ast.Call, *, may_read: bool) -> str:
    """Why this call makes its module impure; empty if it does not."""
    if called == "random.Random" and not node.args:
        return "seeds itself from the system: pass a seed"
    if called.startswith("random.") and called != "random.Random":
        return "the global generator: take a random.Random from the caller"
    if called.startswith(("numpy.random.", "np.random.")):
        return "" if node.args else "a global or unseeded generator: pass a seed"
    if called.endswith((".now", ".utcnow", ".today")):
        return "the clock: take now_s from the caller"
    if called.startswith("sys.") and called not in ("sys.getsizeof", "sys.intern"):
        return "the process: take what it says from the caller"
    if called == "hash":
        return "differs between processes for strings: use xxhash"
    if called in PURE_BUILTINS_BANNED and not (called == "open" and may_read):
        return "I/O"
    return ""


def _cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """One cycle of `graph` as the list of its modules, or None."""
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str] | None:
        if module in trail:
            return trail[trail.index(module) :]
        if module in done:
            return None
        for target in sorted(graph[module]):
            if found := visit(target, [*trail, module]):
                return found
        done.add(module)
        return None

    return next((found for module in graph if (found := visit(module, []))), None)
