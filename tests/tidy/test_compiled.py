"""What mypyc may compile: it would quietly make other things of some classes."""

import ast
import tomllib

from tests.tidy.source_tree import PACKAGE, ROOT, dotted, expect_none, tree

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
