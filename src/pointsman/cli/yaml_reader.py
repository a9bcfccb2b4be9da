"""YAML into a struct, strictly, with the line and column of everything that is wrong.

`read` walks the parsed nodes beside the struct's type: an unknown key, a duplicate, a value
of the wrong kind or an unset ${VARIABLE} becomes a `Problem` where it stands, and all of
them are reported at once. A leaf is held to its type's bounds, and to what `checked_by` says.
"""

import difflib
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import yaml
from msgspec import inspect

from pointsman.cli.messages import NAME_RULE

T = TypeVar("T", bound=msgspec.Struct)

FILE_BYTES_MAX = 4 * 1024 * 1024
"""Ten thousand keys and all engines fit in; a running process would read a larger file, or one
without end, for minutes."""

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
"""YAML 1.1 takes 1e9 for text: it wants a dot and a sign."""


class Problem(NamedTuple):
    """Something wrong in a file; lines and columns count from 1."""

    line: int
    column: int
    message: str


class Position(NamedTuple):
    line: int
    column: int


class Document(NamedTuple):
    """What was read: `positions` leads from a path like ("engines", 0, "url") to its place."""

    value: object
    positions: dict[tuple[str | int, ...], Position]

    def nearest(self, *path: str | int) -> Position:
        """The place of `path`, or of the innermost part around it that the file has."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, Position(1, 1))


Check = Callable[[str], str]
"""A text -> what is wrong with it; empty if nothing is."""


def checked_by(check: Check) -> dict[str, object]:
    """The `extra` of a text's Meta that has it checked where it is read."""
    return {_CHECK: check}


_CHECK = "check"


class Rejected(Exception):  # noqa: N818 - it is an outcome, not a fault of ours
    """The file cannot be used; `problems` says why, in the file's order."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = sorted(problems)

    def lines(self, file: Path) -> list[str]:
        """One for each problem, as compilers write them, so that editors can jump there."""
        return [f"{file}:{p.line}:{p.column}: {p.message}" for p in self.problems]


def read_text(path: Path, *, if_missing: str = "", is_kept: bool = False) -> str:
    """The file as it is. Raises Rejected, with `if_missing` instead where there is no file.

    What `is_kept`, to be read again later, has to be a regular file: opening a pipe waits for a
    writer.
    """
    try:
        if is_kept and not stat.S_ISREG(path.stat().st_mode):
            raise Rejected([Problem(1, 1, "is no regular file, which a reload could read again")])
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise Rejected(
                [Problem(1, 1, f"is larger than {FILE_BYTES_MAX} bytes: is it this file?")]
            )
        return data.decode()
    except OSError as error:
        told = if_missing if isinstance(error, FileNotFoundError) else ""
        raise Rejected([Problem(1, 1, told or f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise Rejected([Problem(1, 1, f"is not UTF-8: {error.reason}")]) from None


def read(
    text: str,
    into: type[T],
    environment: Mapping[str, str],
    *,
    further: Callable[[T, Document], Iterable[Problem]] = lambda *_: (),
) -> tuple[T, Document]:
    """The struct that `text` describes. Raises Rejected.

    `further` problems are looked for although something is wrong elsewhere, unless that leaves no
    struct at all.
    """
    root = _compose(text)
    reader = _Reader(environment)
    value = reader.convert(root, inspect.type_info(into), ()) if root is not None else {}
    document = Document(value, reader.positions)
    try:
        found = msgspec.convert(value, into)
    except msgspec.ValidationError as error:  # what only the whole can show, if nothing else
        problems = reader.problems or [_placed(str(error), reader.positions)]
        raise Rejected(problems) from None
    if problems := [*reader.problems, *further(found, document)]:
        raise Rejected(problems)
    return found, document


def _placed(error: str, positions: Mapping[tuple[str | int, ...], Position]) -> Problem:
    """msgspec's complaint, where it belongs."""
    message, _, where = error.partition(" - at `$")
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", where)
    path: _Path = tuple(name or int(index) for name, index in steps)
    position = positions.get(path, Position(1, 1))
    return Problem(*position, f"{_at(path)}{message}")


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = "not YAML: " + ", ".join(filter(None, (error.context, error.problem)))
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if "${" in "".join(text.splitlines()[line - 1 : line]):
            message += '; within [] and {} a variable needs quotes: "${NAME}"'
        if "\\t" in message:
            message += "; indent with spaces, not with tabs"
        raise Rejected([Problem(line, column, message)]) from None
    except yaml.YAMLError as error:
        raise Rejected([Problem(1, 1, f"not YAML: {str(error).splitlines()[0]}")]) from None
    except RecursionError:
        raise Rejected([Problem(1, 1, "nested too deeply for a configuration")]) from None


_Path = tuple[str | int, ...]


class _Reader:
    """Collects problems and positions on the way down."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self.positions: dict[_Path, Position] = {}
        self._environment = environment
        self._resolver = yaml.SafeLoader("")

    def convert(self, node: yaml.Node, kind: inspect.Type, path: _Path) -> object:
        """The plain value of `node`, which is to be of `kind`; None after a problem."""
        self.positions[path] = Position(node.start_mark.line + 1, node.start_mark.column + 1)
        check, kind = _check_of(kind), _bare(kind, node)
        match kind:
            case inspect.StructType():
                return self._struct(node, kind, path)
            case inspect.DictType():
                return self._dict(node, kind, path)
            case inspect.VarTupleType():
                return self._list(node, kind, path)
            case _:
                return self._leaf(node, kind, path, check)

    def _struct(self, node: yaml.Node, kind: inspect.StructType, path: _Path) -> object:
        fields = {field.encode_name: field for field in kind.fields}
        value = {}
        for key, name, child in self._pairs(node, path):
            if name in fields:
                value[name] = self.convert(child, fields[name].type, (*path, name))
            else:
                self._complain(key, f"{_at(path)}unknown key '{name}'{_hint(name, fields)}")
        missing = [name for name, field in fields.items() if field.required and name not in value]
        if missing and isinstance(node, yaml.MappingNode):
            self._complain(node, f"{_at(path)}'{missing[0]}' is missing")
        return value

    def _dict(self, node: yaml.Node, kind: inspect.DictType, path: _Path) -> object:
        return {
            name: self.convert(child, kind.value_type, (*path, name))
            for _, name, child in self._pairs(node, path)
        }

    def _pairs(self, node: yaml.Node, path: _Path) -> Iterator[tuple[yaml.Node, str, yaml.Node]]:
        if node.tag.endswith(":null"):
            return  # `section:` with nothing below it, as in an example that is commented out
        if not isinstance(node, yaml.MappingNode):
            self._complain(node, f"{_name(path)} is to be a mapping of keys to values")
            return
        seen: dict[str, int] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._complain(key, f"{_at(path)}a key is to be a single word")
                continue
            name = str(key.value)
            if name in seen:
                self._complain(
                    key, f"{_at(path)}'{name}' is given twice, first in line {seen[name]}"
                )
                continue
            seen[name] = key.start_mark.line + 1
            yield key, name, child

    def _list(self, node: yaml.Node, kind: inspect.VarTupleType, path: _Path) -> object:
        if node.tag.endswith(":null"):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self._complain(node, f"{_name(path)} is to be a list")
            return []
        return [
            self.convert(child, kind.item_type, (*path, index))
            for index, child in enumerate(node.value)
        ]

    def _leaf(self, node: yaml.Node, kind: inspect.Type, path: _Path, check: Check) -> object:
        if not isinstance(node, yaml.ScalarNode):
            self._complain(node, f"{_name(path)} is to be a single value")
            return None
        if unset := self._unset(node):
            self._complain(
                node, f"the variable {unset} is not set; ${{{unset}:-VALUE}} defaults it"
            )
            return None
        value = self._scalar(node, kind)
        if problem := _violation(value, kind) or check(str(value)):
            self._complain(node, f"{_name(path)}: {problem}")
        return value

    def _scalar(self, node: yaml.ScalarNode, kind: inspect.Type) -> object:
        text = _VARIABLE.sub(self._variable, str(node.value))
        tag = node.tag
        resolve: Callable[..., object] = self._resolver.resolve
        if text != node.value and node.style is None:  # ${PORT} may stand for a number
            tag = str(resolve(yaml.ScalarNode, text, (True, False)))
        plain = yaml.ScalarNode(tag, text, node.start_mark, node.end_mark)
        if _is_text(text, tag, kind):
            return text
        try:
            value: object = self._resolver.construct_object(plain)
        except (yaml.YAMLError, ValueError):
            return text
        if isinstance(kind, inspect.FloatType) and _EXPONENT.fullmatch(text):
            return float(text)
        return value

    def _unset(self, node: yaml.ScalarNode) -> str:
        """The first variable that has neither a value nor a default, or an empty string."""
        for found in _VARIABLE.finditer(str(node.value)):
            name, default = found[1], found[2]
            if name is not None and default is None and name not in self._environment:
                return str(name)
        return ""

    def _variable(self, found: re.Match[str]) -> str:
        return "$" if found[1] is None else self._environment.get(found[1], found[2]) or ""

    def _complain(self, node: yaml.Node, message: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(mark.line + 1, mark.column + 1, message))


def _bare(kind: inspect.Type, node: yaml.Node) -> inspect.Type:
    """`kind` without metadata; of a union what `node` can be: null, a mapping's struct, a leaf."""
    if isinstance(kind, inspect.Metadata):
        return _bare(kind.type, node)
    if isinstance(kind, inspect.UnionType) and not node.tag.endswith(":null"):
        structs = isinstance(node, yaml.MappingNode)
        rest = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        fitting = [each for each in rest if isinstance(each, inspect.StructType) is structs]
        return _bare((fitting or rest)[0], node) if len(fitting or rest) == 1 else kind
    return kind


def _check_of(kind: inspect.Type) -> Check:
    """What a text of that kind is checked by."""
    extra = kind.extra if isinstance(kind, inspect.Metadata) else None
    check: Check = (extra or {}).get(_CHECK, _nothing_wrong)
    return check


def _nothing_wrong(_: str) -> str:
    return ""


def _is_text(text: str, tag: str, kind: inspect.Type) -> bool:
    """Whether a leaf is meant as it is written: a name may look like a number (7, 1e5,
    2024-01-01), and one of several words like a truth value (off)."""
    match kind:
        case inspect.LiteralType(values=values):
            return text in values
        case inspect.EnumType(cls=cls):
            return text in [each.value for each in cls]
        case inspect.StrType():
            return not tag.endswith((":bool", ":null"))
        case _:
            return False


def _violation(value: object, kind: inspect.Type) -> str:
    """What is wrong with a leaf, or an empty string."""
    match kind:
        case inspect.LiteralType(values=values):
            return "" if value in values else f"{value!r} is none of {', '.join(map(str, values))}"
        case inspect.EnumType(cls=cls):
            known = [each.value for each in cls]
            return "" if value in known else f"{value!r} is none of {', '.join(map(str, known))}"
        case inspect.BoolType():
            return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
        case inspect.IntType():
            wrong = isinstance(value, bool) or not isinstance(value, int)
            return f"{value!r} is not a whole number" if wrong else _out_of_range(value, kind)
        case inspect.FloatType():
            wrong = isinstance(value, bool) or not isinstance(value, int | float)
            return f"{value!r} is not a number" if wrong else _out_of_range(value, kind)
        case inspect.StrType(pattern=pattern):
            if not isinstance(value, str):
                return f"{value!r} is not text; put it in quotes if it is meant as such"
            fits = pattern is None or re.search(pattern, value)
            return "" if fits else f"{value!r} does not fit: {NAME_RULE}"
        case _:
            return ""


def _out_of_range(value: object, kind: inspect.IntType | inspect.FloatType) -> str:
    assert isinstance(value, int | float)
    if kind.ge is not None and not value >= kind.ge:
        return f"{value} is below {kind.ge}"
    if kind.gt is not None and not value > kind.gt:
        return f"{value} is not above {kind.gt}"
    if kind.le is not None and not value <= kind.le:
        return f"{value} is above {kind.le}"
    return ""


def _hint(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"


def _at(path: _Path) -> str:
    return f"{_name(path)}: " if path else ""


def _name(path: _Path) -> str:
    """A path as people write it: engines[0].url."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the file"
