"""The commented configuration that `pointsman init` writes, from the structs that read it."""

import textwrap
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec import inspect

from pointsman.cli.config import Config
from pointsman.cli.config_checks import HASH_PREFIX

_NOTHING: Mapping[str, str] = MappingProxyType({})

_EXAMPLE_ENGINE = {"url": "http://127.0.0.1:8000"}
_EXAMPLE_ITEMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "keys": {"name": "team-a", "hash": HASH_PREFIX + 64 * "0"},
        "models": {"name": "my-model", "tokenizer": "/models/my-model"},
    }
)


def example() -> str:
    """A commented file with every field; what is not commented out is what must be given."""
    lines = [
        "# Pointsman. Uncomment what is to differ from its default; then: pointsman check FILE",
        "",
    ]
    root = inspect.type_info(Config)
    assert isinstance(root, inspect.StructType)
    for field in root.fields:
        lines += [*_comment(description(field.type), 0)]
        lines += _section(field)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _section(field: inspect.Field) -> list[str]:
    kind = bare(field.type)
    if isinstance(kind, inspect.StructType):
        return [f"{field.name}:", *_fields(kind, indent=2)]
    if isinstance(kind, inspect.VarTupleType):
        item = bare(kind.item_type)
        assert isinstance(item, inspect.StructType)
        if field.name == "engines":
            return ["engines:", *_fields(item, indent=4, first="  - ", given=_EXAMPLE_ENGINE)]
        lines = _fields(item, indent=4, first="  - ", given=_EXAMPLE_ITEMS[field.name])
        return [f"{field.name}:", *(f"  # {line[2:]}" for line in lines)]
    return [f"{field.name}: {_yaml(field.default)}"]


def _fields(
    kind: inspect.StructType, *, indent: int, first: str = "", given: Mapping[str, str] = _NOTHING
) -> list[str]:
    lines: list[str] = []
    for number, field in enumerate(kind.fields):
        value = given.get(field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        lines += _comment(description(field.type), indent)
        lead = first if first and number == 0 else " " * indent
        text = _yaml(default if value is None else value)
        lines.append(f"{lead}{'' if value else '# '}{field.name}: {text}")
    return lines


def _comment(text: str, indent: int) -> list[str]:
    lead = f"{' ' * indent}# "
    return textwrap.wrap(text, 96, initial_indent=lead, subsequent_indent=lead)


def description(kind: inspect.Type) -> str:
    """What a field's annotation says of it."""
    extra = kind.extra_json_schema if isinstance(kind, inspect.Metadata) else None
    return str((extra or {}).get("description", ""))


def bare(kind: inspect.Type) -> inspect.Type:
    """The type without its annotations."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return kind


def _yaml(value: object) -> str:
    return msgspec.json.encode(value).decode()
