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

import msgspec
import yaml

from pointsman.cli.scenario_case import Case, Circumstance, Seed, Variant
from pointsman.cli.scenario_problems import case_problems
from pointsman.cli.yaml_reader import Document, Problem, Rejected, read, read_text


class _Matrix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scenarios: tuple[Case, ...]
    policies: tuple[str | Variant, ...] = ()
    seeds: tuple[Seed, ...] = ()
    circumstances: dict[str, Circumstance] = {}

    def under_each(self, case: Case) -> tuple[Case, ...]:
        """The scenario, as often as there are circumstances to try it under."""
        shared = msgspec.structs.replace(
            case, policies=case.policies or self.policies, seeds=case.seeds or self.seeds
        )
        return tuple(shared.under(*each) for each in self.circumstances.items()) or (shared,)


def load_cases(
    path: Path, environment: Mapping[str, str], policies: Sequence[str]
) -> tuple[Case, ...]:
    """The scenarios of a file, traces as paths that can be opened. Raises Rejected.

    `policies` are those that can be chosen.
    """
    cases, prefixes, document = _read(read_text(path), environment)
    if found := set(_inconsistencies(cases, prefixes, document, policies)):
        raise Rejected(list(found))
    return tuple(_with_trace_beside(case, path.parent) for case in cases)


def _read(
    text: str, environment: Mapping[str, str]
) -> tuple[tuple[Case, ...], list[tuple[str | int, ...]], Document]:
    """The cases, where in the document each stands, and the document."""
    if not _has_scenarios(text):
        case, document = read(text, Case, environment)
        return (case,), [()], document
    matrix, document = read(text, _Matrix, environment)
    if not matrix.scenarios:
        raise Rejected([Problem(*document.positions["scenarios",], "scenarios: there is none")])
    placed = [
        (case, ("scenarios", place))
        for place, written in enumerate(matrix.scenarios)
        for case in matrix.under_each(written)
    ]
    return tuple(case for case, _ in placed), [prefix for _, prefix in placed], document


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
    cases: Sequence[Case],
    prefixes: Sequence[tuple[str | int, ...]],
    document: Document,
    policies: Sequence[str],
) -> Iterator[Problem]:
    """What no field shows alone."""
    names: dict[str, int] = {}
    for case, prefix in zip(cases, prefixes, strict=True):
        named = document.nearest(*prefix, "name")
        if (first := names.setdefault(case.name, named.line)) != named.line:
            yield Problem(*named, f"name: '{case.name}' is taken in line {first} already")
        for path, message in case_problems(case, cases, policies):
            yield Problem(*document.nearest(*prefix, *path), message)


def _with_trace_beside(case: Case, folder: Path) -> Case:
    return case.with_sources(lambda source: {"trace": source.trace and str(folder / source.trace)})
