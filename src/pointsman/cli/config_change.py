"""What differs between two configurations, and what of it can be had without a restart."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from pointsman.cli.config import Config, Engine
from pointsman.cli.config_file import engine_name

LIVE = (
    *("policy", "engines", "keys", "listen", "timeouts", "limits", "health", "retries"),
    *("retry_guard", "warm_up", "admission", "hot_prefixes", "marginal_cost", "log.level"),
)
"""What a running process can change; everything else waits for the next start."""

FIXED = ("listen.host", "listen.port", "limits.index_bytes_max", "limits.tokenizer_bytes_max")
"""What of that it cannot: sockets stay where they are, caches keep their memory."""

T = TypeVar("T", bound=msgspec.Struct)

_SECRET = frozenset({"api_key", "api_keys", "hash"})
_MASK = "***"


class Change(msgspec.Struct, frozen=True):
    """One difference, as text; None is "not there". What is `kept` stays as it was until the
    next start."""

    path: str
    before: str | None
    after: str | None
    kept: bool = False

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.path}: new, {self.after}"
        if self.after is None:
            return f"{self.path}: gone"
        rest = " (kept: needs a restart)" if self.kept else ""
        return f"{self.path}: {self.before} → {self.after}{rest}"


def differences(old: Config, new: Config) -> tuple[Change, ...]:
    """Every difference, in the order of the fields. Engines and keys are told apart by name;
    secrets are masked, and that there is none is told."""
    return tuple(_structs(old, new, ""))


def in_force(old: Config, new: Config) -> Config:
    """What of `new` can be had while running; the rest as it was."""
    return _merged(old, new, "")


def with_names(config: Config, before: Sequence[Engine] = ()) -> Config:
    """Every engine with a name. One without keeps what it was called `before` by its address,
    so that leaving one out of the list does not rename those after it."""
    given = {engine.name for engine in config.engines if engine.name is not None}
    earlier = {engine.url: engine.name for engine in before if engine.name not in given}
    taken = {*given, *earlier.values()}
    engines = []
    for index, engine in enumerate(config.engines):
        name = engine.name or earlier.pop(engine.url, None) or _free_name(engine, index, taken)
        taken.add(name)
        engines.append(msgspec.structs.replace(engine, name=name))
    return msgspec.structs.replace(config, engines=tuple(engines))


def _free_name(engine: Engine, index: int, taken: set[str | None]) -> str:
    while (name := engine_name(engine, index)) in taken:
        index += 1
    return name


def is_live(path: str) -> bool:
    """Whether it can change while running."""
    return _is_below(path, LIVE) and not _is_below(path, FIXED)


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith((f"{root}.", f"{root}[")) for root in roots)


def _merged(old: T, new: T, path: str) -> T:
    kept: dict[str, object] = {}
    for here, name, before, after in _fields(old, new, path):
        if isinstance(before, msgspec.Struct):
            kept[name] = _merged(before, after, here)
        elif not is_live(here):
            kept[name] = before
    return msgspec.structs.replace(new, **kept)


def _structs(old: msgspec.Struct, new: msgspec.Struct, path: str) -> Iterator[Change]:
    for here, name, before, after in _fields(old, new, path):
        if before == after:
            continue
        if isinstance(before, msgspec.Struct):
            yield from _structs(before, after, here)
        elif _are_named(before, after):
            yield from _named(before, after, here)
        else:
            yield Change(here, _text(name, before), _text(name, after), kept=not is_live(here))


def _named(
    old: Sequence[msgspec.Struct], new: Sequence[msgspec.Struct], path: str
) -> Iterator[Change]:
    """Entries of a list by their names: gone, changed, new."""
    before, after = _by_name(old), _by_name(new)
    for name, entry in before.items():
        here = f"{path}[{name}]"
        if name in after:
            yield from _structs(entry, after[name], here)
        else:
            yield Change(here, _summary(entry), None, kept=not is_live(path))
    for name, entry in after.items():
        if name not in before:
            yield Change(f"{path}[{name}]", None, _summary(entry), kept=not is_live(path))


def _fields(
    old: msgspec.Struct, new: msgspec.Struct, path: str
) -> Iterator[tuple[str, str, Any, Any]]:
    for name in new.__struct_fields__:
        yield f"{path}.{name}" if path else name, name, getattr(old, name), getattr(new, name)


def _are_named(*lists: object) -> bool:
    entries = [entry for each in lists if isinstance(each, tuple) for entry in each]
    return bool(entries) and all(hasattr(entry, "name") for entry in entries)


def _by_name(entries: Sequence[msgspec.Struct]) -> dict[str, msgspec.Struct]:
    return {getattr(entry, "name"): entry for entry in entries}  # noqa: B009 - a struct's field, by duck type


def _text(name: str, value: object) -> str:
    return _MASK if value and name in _SECRET else msgspec.json.encode(value).decode()


def _summary(entry: msgspec.Struct) -> str:
    """An entry's fields that are not at their defaults, but for its name."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(entry)}
    given = [
        f"{name} {_text(name, value)}"
        for name, value in msgspec.structs.asdict(entry).items()
        if name != "name" and value != defaults[name] and value != {}
    ]
    return ", ".join(given)
