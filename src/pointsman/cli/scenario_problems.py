"""What is wrong in a scenario that no field shows alone: where in it, and a message."""

from collections.abc import Iterator, Sequence

from pointsman.cli.config import Config
from pointsman.cli.messages import unknown_name
from pointsman.cli.scenario_case import Case, Variant
from pointsman.core.limits import NODES_MAX
from pointsman.engines.compute_model.profiles import PROFILES
from pointsman.report.replay.expectation import Expectation
from pointsman.report.replay.measure import METRICS, Measure
from pointsman.traffic.mix import PARTS_MAX, Part, mix_problems
from pointsman.traffic.source import Source, problems

Path = tuple[str | int, ...]
Found = Iterator[tuple[Path, str]]

UNHEARD = ("listen", "admin", "policy", "engines", "keys", "models", "log")
"""Sections of a configuration that no simulated scheduler goes by."""


def case_problems(case: Case, cases: Sequence[Case], policies: Sequence[str]) -> Found:
    """All of one case, each with its path in it. `cases` are those of its file, `policies` those
    that can be chosen."""
    yield from _of_the_fleet(case)
    yield from _of_the_policies(case, policies)
    yield from _of_the_traffic(case)
    yield from _of_the_windows(case)
    yield from _unknown_nodes(case)
    yield from _of_config(case.config, ("config",))
    for place, expectation in enumerate(case.expect):
        for path, message in _of_expectation(expectation, case, cases):
            yield ("expect", place, *path), message


def _of_the_fleet(case: Case) -> Found:
    if not case.fleet:
        yield ("fleet",), "fleet: there is no node"
    if case.nodes > NODES_MAX:
        yield ("fleet",), f"fleet: {case.nodes} nodes; a cluster has {NODES_MAX} at most"
    for place, group in enumerate(case.fleet):
        if isinstance(group.profile, str) and group.profile not in PROFILES:
            message = f"profile: {unknown_name(group.profile, list(PROFILES))}"
            yield ("fleet", place, "profile"), message


def _of_the_windows(case: Case) -> Found:
    for name, span in case.windows.items():
        if span.end_s <= span.start_s:
            yield ("windows", name), f"windows.{name}: it ends before it starts"


def _of_the_policies(case: Case, policies: Sequence[str]) -> Found:
    named: dict[str, str | Variant] = {}
    for place, entry in enumerate(case.policies):
        variant = entry if isinstance(entry, str) else entry.name
        if named.setdefault(variant, entry) != entry:
            yield ("policies", place), f"policies: '{variant}' names another one already"
        name = entry if isinstance(entry, str) else entry.policy
        if name not in policies:
            yield ("policies", place), f"policies: {unknown_name(name, policies)}"
        if isinstance(entry, Variant) and entry.config is not None:
            yield from _of_config(entry.config, ("policies", place, "config"))


def _of_config(config: Config, path: Path) -> Found:
    empty = Config()
    for section in UNHEARD:
        if getattr(config, section) != getattr(empty, section):
            yield (*path, section), f"config.{section}: nothing in a simulation goes by it"


def _of_the_traffic(case: Case) -> Found:
    if isinstance(case.traffic, Source):
        for problem in problems(case.traffic):
            yield ("traffic", problem.field), f"traffic: {problem.message}"
        parts: tuple[Part, ...] = ()
    else:
        parts = case.traffic
        yield from _of_the_parts(parts)
    named = [part.name for part in parts]
    for name in case.clients_by_part:
        if name not in named:
            message = f"clients_by_part: {unknown_name(name, named)}"
            yield ("clients_by_part", name), message


def _of_the_parts(parts: Sequence[Part]) -> Found:
    if not 1 <= len(parts) <= PARTS_MAX:
        yield ("traffic",), f"traffic: {len(parts)} parts; 1 to {PARTS_MAX} can be mixed"
    for place, part in enumerate(parts):
        for problem in problems(part):
            yield ("traffic", place, problem.field), f"traffic[{place}]: {problem.message}"
    for place, problem in mix_problems(parts):
        yield ("traffic", place, problem.field), f"traffic[{place}]: {problem.message}"


def _unknown_nodes(case: Case) -> Found:
    for fault in case.faults:
        for message in _of_nodes(fault.nodes, case):
            yield ("faults",), f"faults: {message}"
    prior = case.knowledge.prior
    for message in _of_nodes(() if prior is None else prior.nodes, case):
        yield ("knowledge", "prior", "nodes"), f"knowledge.prior: {message}"


def _of_nodes(named: Sequence[str], case: Case) -> Iterator[str]:
    """A message for each that is none of the case's; that it has none is told elsewhere."""
    known = case.node_names
    for name in named if known else ():
        if name not in known:
            yield f"'{name}' is none of {known[0]} to {known[-1]}"


def _of_expectation(expectation: Expectation, case: Case, cases: Sequence[Case]) -> Found:
    if expectation.at_most is None and expectation.at_least is None:
        yield (), "expect: there is no bar; give at_most or at_least"
    yield from _of_policy(expectation.policy, case, ("policy",))
    yield from _of_measure(expectation.measure, case, ())
    times = expectation.times
    if times is None:
        return
    other = case
    if times.scenario is not None:
        named = {each.name: each for each in cases}
        if times.scenario not in named:
            message = f"scenario: {unknown_name(times.scenario, list(named))}"
            yield ("times", "scenario"), message
            return
        other = named[times.scenario]
    yield from _of_policy(times.policy, other, ("times", "policy"))
    if expectation.reference is not None:
        yield from _of_measure(expectation.reference, other, ("times",))


def _of_policy(policy: str | None, case: Case, path: Path) -> Found:
    """Of a case that names none, the command's are run."""
    names = [variant.name for variant in case.variants]
    if policy is not None and names and policy not in names:
        yield path, f"policy: {unknown_name(policy, names)}"


def _of_measure(measure: Measure, case: Case, path: Path) -> Found:
    if measure.metric not in METRICS:
        yield (*path, "metric"), f"metric: {unknown_name(measure.metric, list(METRICS))}"
    of, windows = measure.of, case.spans_s
    if of.window is not None and of.window not in windows:
        known = list(windows)
        message = unknown_name(of.window, known) if known else f"'{of.window}': there is none"
        yield (*path, "of", "window"), f"window: {message}"
    parts = [part.name for part in case.traffic] if isinstance(case.traffic, tuple) else []
    if of.part is not None and of.part not in parts:
        message = unknown_name(of.part, parts) if parts else f"'{of.part}': there is none"
        yield (*path, "of", "part"), f"part: {message}"
    for message in _of_nodes(of.nodes, case):
        yield (*path, "of", "nodes"), f"nodes: {message}"
