"""A scenario file: clusters, their traffic, and what befalls them, in YAML; read strictly.

One scenario is the file itself; several stand under `scenarios:`, and `policies` and `seeds`
beside it hold for those that say nothing of their own. Where there are `circumstances` beside it,
each scenario comes once under each of them. The path of a trace is relative to the file. Fields
are those of `sim.scenario.Scenario`, `traffic` those of `traffic.source.Source`, or a list of
parts (`traffic.mix.Part`) that come together. `scenario_problems` finds what is wrong between
fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

from pointsman.cli.scenario_case import Case, Circumstance, Seed, Variant
from pointsman.cli.scenario_problems import case_problems
from pointsman.cli.yaml_reader import Document, Position, Problem, Rejected, read, read_text

_Path = tuple[str | int, ...]


class _Matrix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scenarios: tuple[Case, ...]
    policies: tuple[str | Variant, ...] = ()
    seeds: tuple[Seed, ...] = ()
    circumstances: dict[str, Circumstance] = {}

    @property
    def placed(self) -> Iterator["_Placed"]:
        """Every scenario, as often as there are circumstances to try it under."""
        for place, written in enumerate(self.scenarios):
            at: _Path = ("scenarios", place)
            case = msgspec.structs.replace(
                written,
                policies=written.policies or self.policies,
                seeds=written.seeds or self.seeds,
            )
            if not self.circumstances:
                yield _Placed(case, at)
            for name, circumstance in self.circumstances.items():
                yield _Placed(case.under(name, circumstance), at, ("circumstances", name))


class _Placed(NamedTuple):
    """A case, and where it stands in the document: itself, and what it is tried under."""

    case: Case
    at: _Path = ()
    under: _Path = ()

    def position(self, document: Document, *path: str | int) -> Position:
        """Of something in the case, where it is given."""
        is_of_circumstance = self.under and (*self.under, *path[:1]) in document.positions
        return document.nearest(*(self.under if is_of_circumstance else self.at), *path)


def load_cases(
    path: Path, environment: Mapping[str, str], policies: Sequence[str]
) -> tuple[Case, ...]:
    """The scenarios of a file, traces as paths that can be opened. Raises Rejected.

    `policies` are those that can be chosen.
    """
    placed, document = _read(read_text(path), environment)
    if found := set(_inconsistencies(placed, document, policies)):
        raise Rejected(list(found))
    return tuple(_with_trace_beside(each.case, path.parent) for each in placed)


def _read(text: str, environment: Mapping[str, str]) -> tuple[list[_Placed], Document]:
    """The cases, and the document in which each stands."""
    if not _has_scenarios(text):
        case, document = read(text, Case, environment)
        return [_Placed(case)], document
    matrix, document = read(text, _Matrix, environment)
    if not matrix.scenarios:
        raise Rejected([Problem(*document.positions["scenarios",], "scenarios: there is none")])
    return list(matrix.placed), document


def _has_scenarios(text: str) -> bool:
    """Whether the root has that key; what is not YAML is complained of by the reader."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return False
    return isinstance(root, yaml.MappingNode) and any(
        key.value == "scenarios" for key, _ in root.value
    )


def _inconsistencies(
    placed: Sequence[_Placed], document: Document, policies: Sequence[str]
) -> Iterator[Problem]:
    """What no field shows alone."""
    names: dict[str, int] = {}
    cases = [each.case for each in placed]
    for each in placed:
        name, named = each.case.name, each.position(document, "name")
        if (first := names.setdefault(name, named.line)) != named.line:
            yield Problem(*named, f"name: '{name}' is taken in line {first} already")
        for path, message in case_problems(each.case, cases, policies):
            yield Problem(*each.position(document, *path), message)


def _with_trace_beside(case: Case, folder: Path) -> Case:
    return case.with_sources(lambda source: {"trace": source.trace and str(folder / source.trace)})
