"""docs/CONFIGURATION.md: every field with its default, bounds and meaning, from the structs."""

from collections.abc import Iterator

import msgspec
from msgspec import inspect

from pointsman.cli.config import Config
from pointsman.cli.config_change import is_live
from pointsman.cli.config_example import bare, description

_HEAD = """\
# Configuration

Every field of the file, made by `pointsman init --reference` from the code that reads it.
`pointsman init FILE` writes the same as a commented example, `pointsman check FILE` checks one.
`${NAME}` is read from the environment, `${NAME:-VALUE}` has a default, `$$` is a dollar sign.

## Reload

A running `pointsman serve -c FILE` reads the file again when it changes, on SIGHUP, and on
`POST /pointsman/v1/reload`. What has ● in its last column changes at once; the rest waits for the
next start, and the log says so. What the command line says keeps winning. A file that cannot be
used changes nothing: the last good configuration stays, and the problems are in the log, under
`configuration` of `/pointsman/v1/state`, and in `pointsman_config_reloads_total`.

An engine that is new joins. One that is gone stays until the new ones are up, then takes nothing
new, finishes what runs there and leaves. One whose address stays keeps its cache and its requests,
whatever else is said of it. One whose address or event source changes under its name is replaced
at once: give it a new name to have the old one drained. Nodes that were added or removed over the
admin plane are left alone, and so is a policy that was chosen there, until the file's own changes.
"""


def reference() -> str:
    """The document."""
    root = inspect.type_info(Config)
    assert isinstance(root, inspect.StructType)
    plain = [field for field in root.fields if _struct(field.type) is None]
    lines = [_HEAD]
    lines += ["## The top level", "", *_table(plain, "")]
    for field in root.fields:
        kind = _struct(field.type)
        if kind is not None:
            entry = isinstance(bare(field.type), inspect.VarTupleType)
            lines += ["", f"## {field.name}", "", description(field.type), ""]
            lines += _table(kind.fields, f"{field.name}[]" if entry else field.name)
    return "\n".join(lines) + "\n"


def _struct(kind: inspect.Type) -> inspect.StructType | None:
    """The struct that a section or a list's entries are."""
    kind = bare(kind)
    if isinstance(kind, inspect.VarTupleType):
        kind = bare(kind.item_type)
    return kind if isinstance(kind, inspect.StructType) else None


def _table(fields: tuple[inspect.Field, ...] | list[inspect.Field], section: str) -> Iterator[str]:
    yield "| field | default | value | meaning | |"
    yield "|---|---|---|---|:-:|"
    for field in fields:
        path = f"{section}.{field.name}" if section else field.name
        live = "●" if is_live(path) else ""
        meaning = description(field.type).replace("|", "\\|")
        yield f"| `{field.name}` | {_default(field)} | {_kind(field.type)} | {meaning} | {live} |"


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if callable(field.default_factory) else field.default
    return "none" if value is None else f"`{msgspec.json.encode(value).decode()}`"


def _kind(kind: inspect.Type) -> str:
    """What may be written, for people."""
    match bare(kind):
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() as number:
            return _bounds("integer", number)
        case inspect.FloatType() as number:
            return _bounds("number", number)
        case inspect.VarTupleType(item_type=item):
            return f"list of {_kind(item)}"
        case inspect.DictType():
            return "mapping"
        case inspect.LiteralType(values=values):
            return ", ".join(map(str, values))
        case inspect.UnionType(types=types):
            rest = [_kind(each) for each in types if not isinstance(each, inspect.NoneType)]
            return " or ".join(rest)
        case _:
            return "text"


def _bounds(name: str, kind: inspect.IntType | inspect.FloatType) -> str:
    bounds = (("≥", kind.ge), (">", kind.gt), ("≤", kind.le))
    return ", ".join([name, *(f"{sign} {bound}" for sign, bound in bounds if bound is not None)])
