"""A scenario file: clusters, their traffic, and what befalls them, in YAML; read strictly.

One scenario is the file itself; several stand under `scenarios:`, and `policies` and `seeds`
beside it hold for those that say nothing of their own. The path of a trace is relative to the
file. Fields are those of `sim.scenario.Scenario`, `traffic` those of `traffic.source.Source`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from pointsman.cli.config_file import unknown_name
from pointsman.cli.yaml_reader import Document, Position, Problem, Rejected, read
from pointsman.engines.compute_model.profiles import PROFILES
from pointsman.sim.scenario import Scenario
from pointsman.traffic.source import Source, problems

Seed = Annotated[int, msgspec.Meta(ge=0)]


class Case(Scenario, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A scenario with its traffic. No `policies` and no `seeds` mean the command's."""

    traffic: Source
    policies: tuple[str, ...] = ()
    seeds: tuple[Seed, ...] = ()

    @property
    def scenario(self) -> Scenario:
        """Without the traffic."""
        fields = Scenario.__struct_fields__
        return Scenario(**{field: getattr(self, field) for field in fields})


class _Matrix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scenarios: tuple[Case, ...]
    policies: tuple[str, ...] = ()
    seeds: tuple[Seed, ...] = ()


def load_cases(
    path: Path, environment: Mapping[str, str], policies: Sequence[str]
) -> tuple[Case, ...]:
    """The scenarios of a file, traces as paths that can be opened. Raises Rejected.

    `policies` are those that can be chosen.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Rejected([Problem(1, 1, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise Rejected([Problem(1, 1, f"is not UTF-8: {error.reason}")]) from None
    cases, prefixes, document = _read(text, environment)
    if found := list(_inconsistencies(cases, prefixes, document, policies)):
        raise Rejected(found)
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
    cases = tuple(
        msgspec.structs.replace(
            case,
            policies=case.policies or matrix.policies,
            seeds=case.seeds or matrix.seeds,
        )
        for case in matrix.scenarios
    )
    return cases, [("scenarios", place) for place in range(len(cases))], document


def _has_scenarios(text: str) -> bool:
    """Whether the root has that key; what is not YAML is complained of by the reader."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
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

        def at(*path: str | int, prefix: tuple[str | int, ...] = prefix) -> Position:
            whole = (*prefix, *path)
            while whole and whole not in document.positions:
                whole = whole[:-1]
            return document.positions.get(whole, Position(1, 1))

        line = at("name").line
        if (first := names.setdefault(case.name, line)) != line:
            yield Problem(*at("name"), f"name: '{case.name}' is taken in line {first} already")
        if not case.fleet:
            yield Problem(*at("fleet"), "fleet: there is no node")
        for place, group in enumerate(case.fleet):
            if isinstance(group.profile, str) and group.profile not in PROFILES:
                message = f"profile: {unknown_name(group.profile, list(PROFILES))}"
                yield Problem(*at("fleet", place, "profile"), message)
        for place, policy in enumerate(case.policies):
            if policy not in policies:
                where = at("policies", place)
                yield Problem(*where, f"policies: {unknown_name(policy, policies)}")
        for problem in problems(case.traffic):
            yield Problem(*at("traffic", problem.field), f"traffic: {problem.message}")
        yield from _unknown_nodes(case, at("faults"))


def _unknown_nodes(case: Case, where: Position) -> Iterator[Problem]:
    known = {f"node-{place}" for place in range(case.nodes)}
    for fault in case.faults:
        for node in fault.nodes:
            if node not in known:
                yield Problem(
                    *where, f"faults: '{node}' is none of node-0 to node-{case.nodes - 1}"
                )


def _with_trace_beside(case: Case, folder: Path) -> Case:
    if case.traffic.trace is None:
        return case
    traffic = msgspec.structs.replace(case.traffic, trace=str(folder / case.traffic.trace))
    return msgspec.structs.replace(case, traffic=traffic)
