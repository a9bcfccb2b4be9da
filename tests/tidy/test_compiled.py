"""What mypyc may compile: it would quietly make other things of some classes."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source_tree import (
    PACKAGE,
    ROOT,
    dotted,
    expect_none,
    module_name,
    name_of,
    python_files,
    tree,
)

LISTED: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pointsman"][
    "compiled"
]


def test_compiled_modules_exist_and_define_no_structs() -> None:
    expect_none(
        f"{module}: {owner.name} would be neither frozen nor hashable: keep it in another module"
        for module in LISTED
        for owner in ast.walk(tree((PACKAGE.parent / module.replace(".", "/")).with_suffix(".py")))
        if isinstance(owner, ast.ClassDef) and "msgspec.Struct" in map(dotted, owner.bases)
    )


def test_a_value_says_its_fields_once_and_is_compiled() -> None:
    """What `Value` compares and shows are the fields that its constructor takes, all of them."""
    expect_none(
        problem
        for path in python_files()
        for owner in ast.walk(tree(path))
        if isinstance(owner, ast.ClassDef) and "Value" in map(dotted, owner.bases)
        for problem in _problems_of_a_value(path, owner)
    )


def _problems_of_a_value(path: Path, owner: ast.ClassDef) -> Iterator[str]:
    assigned = {
        ast.unparse(target): ast.unparse(node.value)
        for node in owner.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    [init] = [
        node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    taken = [one.arg for one in (*init.args.args[1:], *init.args.kwonlyargs)]
    where = f"{name_of(path)}:{owner.lineno}: {owner.name}"
    if ast.literal_eval(assigned.get("__match_args__", "()")) != tuple(taken):
        yield f"{where}: __match_args__ are not its constructor's parameters: {taken}"
    if assigned.get("__slots__") != "__match_args__":
        yield f"{where}: __slots__ are not its __match_args__"
    final = [f"self.{n}: Final = {n}" for n in taken]
    said = [ast.unparse(line) for line in init.body]
    if owner.name == "Row":  # written to until one is chosen
        final = [line.replace(": Final", "") for line in final]
        said = [line.replace(": Final", "") for line in said]
    if said != final:
        yield f"{where}: its constructor does not assign each parameter, in order, as Final"
    if f"{PACKAGE.name}.{module_name(path)}" not in LISTED:
        yield f"{where}: its module is not compiled: make it a msgspec.Struct"
