"""What a replay is to run: scenarios with their requests, made from options or from a file."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from pointsman.cli.config import Config
from pointsman.cli.messages import unknown_name
from pointsman.cli.scenario_case import Case, Variant
from pointsman.cli.scenario_file import load_cases
from pointsman.cli.shared_options import names_in
from pointsman.cli.sources import check_source, read_trace_file, window_of
from pointsman.cli.wiring import scheduler_options
from pointsman.cli.yaml_reader import Rejected
from pointsman.core.options import SchedulerOptions
from pointsman.core.policies import catalog
from pointsman.report.replay.expectation import Expectation
from pointsman.sim.scenario import Clients, Index, Knowledge, NodeGroup, Scenario
from pointsman.traffic.ideal import ideal_hit_ratio
from pointsman.traffic.mix import mixed, seed_of_part
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.slo import Slo
from pointsman.traffic.source import Source, stream
from pointsman.traffic.trace import Trace

SCENARIO_SUFFIXES = (".yaml", ".yml")
NODES_DEFAULT = 8
RATE_PER_NODE_RPS = 4.0
"""Of a workload when nobody says: busy and not yet saturated on the default profile."""
SPAN_DAYS_MAX = 366
_DAY_S = 86_400.0
POLICIES_DEFAULT = (
    catalog.DEFAULT,
    "round_robin",
    "least_request",
    "lmetric",
    "dynamo",
    "smg_cache_aware",
    "llmd_weighted",
)
"""Those of them that there are: the default, two that see no engine, and what others do."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command's options as given; None is one that was not."""

    traces: tuple[Path, ...]
    workload: str | None
    parameters: tuple[str, ...]
    policies: str | None
    baseline: str | None
    nodes: int | None
    slow: str | None
    profile: str | None
    kv_tokens: int | None
    gateways: int | None
    index: str | None
    closed_loop: bool
    speed: float | None
    rate_rps: float | None
    limit: int | None
    window_s: tuple[float, float] | None
    seed: int | None
    seeds: int | None
    slo: Slo
    oracle: bool
    sweep: bool
    sweep_target: float
    jobs: int | None
    timing: bool
    json_file: str | None
    html_file: Path | None


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """The requests under one seed."""

    seed: int
    requests: tuple[TrafficRequest, ...]
    ideal_hit_ratio: float | None


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, ready to run under every policy and seed. `file` is the one that it is from,
    for the names in its bars; empty where it is of none. `source` and `speed` are for reports."""

    file: str
    scenario: Scenario
    source: str
    speed: float
    policies: tuple[str, ...]
    options: dict[str, SchedulerOptions]
    configs: dict[str, Config]
    baseline: str
    streams: tuple[Stream, ...]
    notes: tuple[str, ...]
    windows: dict[str, tuple[float, float]]
    expect: tuple[Expectation, ...]


def plan(options: ReplayOptions) -> tuple[Planned, ...]:
    """Read and make everything. Raises UsageError; prints a scenario file's problems."""
    files = [path for path in options.traces if path.suffix in SCENARIO_SUFFIXES]
    if files:
        _check_options_beside_files(options, files)
        cases = [(str(path), case) for path in files for case in _cases_of(path)]
    else:
        cases = [("", case) for case in _cases_from_options(options)]
    if not cases:
        raise click.UsageError(
            "Nothing to replay. Remedy: give a trace, a scenario file (.yaml), or --workload NAME."
        )
    policies = _policies(options.policies)
    traces: dict[str, Trace] = {}
    for _, case in cases:
        for path in (source.trace for source in case.sources):
            if path is not None and path not in traces:
                traces[path] = read_trace_file(Path(path))
    return tuple(_planned(case, options, policies, traces, file=file) for file, case in cases)


def _cases_of(path: Path) -> tuple[Case, ...]:
    try:
        return load_cases(path, os.environ, catalog.names())
    except Rejected as rejected:
        raise click.UsageError("\n".join(rejected.lines(path))) from None


def _check_options_beside_files(options: ReplayOptions, files: Sequence[Path]) -> None:
    """A scenario file says all of this itself; an option would be silently ignored."""
    if len(files) < len(options.traces):
        raise click.UsageError("Give scenario files (.yaml) or traces, not both at once.")
    given = {
        "--workload": options.workload,
        "--parameter": options.parameters,
        "--nodes": options.nodes,
        "--slow": options.slow,
        "--profile": options.profile,
        "--kv-tokens": options.kv_tokens,
        "--gateways": options.gateways,
        "--index": options.index,
        "--closed-loop": options.closed_loop,
        "--speed": options.speed,
        "--rate": options.rate_rps,
        "--window-s": options.window_s,
    }
    for name, value in given.items():
        if value:
            raise click.UsageError(
                f"{name} does not go with a scenario file, which says it itself."
            )


def _cases_from_options(options: ReplayOptions) -> Iterator[Case]:
    """One case a trace, and one for the workload."""
    if options.traces and options.workload:
        raise click.UsageError("TRACE and --workload exclude each other.")
    nodes = options.nodes or NODES_DEFAULT
    common = Source(
        parameters=_parameters(options.parameters),
        rate_rps=options.rate_rps,
        limit=options.limit,
        speed=options.speed or 1.0,
        window=window_of(options.window_s),
    )
    if options.workload:
        rate_rps = options.rate_rps or RATE_PER_NODE_RPS * nodes
        source = msgspec.structs.replace(common, workload=options.workload, rate_rps=rate_rps)
        yield _case(options, options.workload, source)
    names = Counter(map(_stem, options.traces))
    for path in options.traces:
        source = msgspec.structs.replace(common, trace=str(path))
        name = _stem(path) if names[_stem(path)] == 1 else str(path)
        yield _case(options, name, source)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".csv")


def _parameters(given: Sequence[str]) -> dict[str, float]:
    parameters = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            parameters[name.replace("-", "_")] = float(value)
        except ValueError:
            raise click.UsageError(
                f"--parameter {text}: no number. Remedy: NAME=NUMBER, like tenants=4."
            ) from None
    return parameters


def _case(options: ReplayOptions, name: str, source: Source) -> Case:
    check_source(source)
    index = Knowledge().index if options.index is None else Index(options.index)
    return Case(
        name=name,
        traffic=source,
        fleet=_fleet(options),
        gateways=options.gateways or 1,
        knowledge=Knowledge(index=index),
        clients=Clients(closed_loop=options.closed_loop),
        slo=options.slo,
    )


def _fleet(options: ReplayOptions) -> tuple[NodeGroup, ...]:
    nodes = options.nodes or NODES_DEFAULT
    alike = NodeGroup(count=nodes, kv_tokens=options.kv_tokens)
    if options.profile is not None:
        alike = msgspec.structs.replace(alike, profile=options.profile)
    if options.slow is None:
        return (alike,)
    found = re.fullmatch(r"(\d+)@(\d+(?:\.\d+)?)", options.slow)
    count, slowdown = (int(found[1]), float(found[2])) if found else (0, 0.0)
    if not (1 <= count <= nodes and slowdown > 0):
        raise click.UsageError(
            f"--slow {options.slow}: not K@F with K of the {nodes} nodes. "
            "Remedy: 4@2.5 lets four of them take 2.5 times as long."
        )
    slow = msgspec.structs.replace(alike, count=count, slowdown=slowdown)
    if count == nodes:
        return (slow,)
    return (msgspec.structs.replace(alike, count=nodes - count), slow)


def _policies(given: str | None) -> tuple[str, ...]:
    """None given: no policies, which means the case's own or the default ones."""
    if given is None:
        return ()
    if given.strip() == "all":
        return tuple(catalog.names())
    names = tuple(dict.fromkeys(names_in("--policy", given)))
    for name in names:
        if name not in catalog.names():
            raise click.UsageError(f"--policy: {unknown_name(name, catalog.names())}.")
    return names


def _planned(
    case: Case,
    options: ReplayOptions,
    policies: tuple[str, ...],
    traces: Mapping[str, Trace],
    *,
    file: str,
) -> Planned:
    known = catalog.names()
    defaults = tuple(name for name in POLICIES_DEFAULT if name in known)
    variants = case.variants or tuple(Variant(name=name, policy=name) for name in defaults)
    if policies:
        variants = tuple(Variant(name=name, policy=name) for name in policies)
    if options.limit is not None:
        case = case.with_sources(lambda _: {"limit": options.limit})
    names = tuple(variant.name for variant in variants)
    seeds = _seeds(case, options)
    return Planned(
        file=file,
        scenario=case.scenario,
        source=" + ".join(source.name for source in case.sources),
        speed=case.traffic.speed if isinstance(case.traffic, Source) else 1.0,
        policies=names,
        options={variant.name: _options(case, variant) for variant in variants},
        configs={variant.name: variant.config or case.config for variant in variants},
        baseline=_baseline(options.baseline, names),
        streams=tuple(_streams(case, seeds, traces)),
        notes=tuple(
            note
            for source in case.sources
            if source.trace is not None
            for note in _notes(source, seeds, traces[source.trace])
        ),
        windows=case.spans_s,
        expect=case.expect,
    )


def _options(case: Case, variant: Variant) -> SchedulerOptions:
    options = scheduler_options(variant.config or case.config)
    return msgspec.structs.replace(options, policy=variant.policy)


def _notes(source: Source, seeds: Sequence[int], trace: Trace) -> Iterator[str]:
    """What the trace's reader changed, and what the seeds do to it."""
    yield from trace.notes
    if source.rate_rps is not None:
        yield f"arrivals made anew: Poisson, {source.rate_rps:g} a second before speed"
    elif any(seeds):
        extent = "a mean gap" if trace.tick_s is None else f"their tick of {trace.tick_s:g} s"
        yield f"seeds above 0 move arrivals at random within {extent}"


def _baseline(given: str | None, chosen: Sequence[str]) -> str:
    if given is None:
        return catalog.DEFAULT if catalog.DEFAULT in chosen else chosen[0]
    if given not in chosen:
        raise click.UsageError(f"--baseline: {unknown_name(given, chosen)}.")
    return given


def _seeds(case: Case, options: ReplayOptions) -> tuple[int, ...]:
    if options.seed is None and options.seeds is None and case.seeds:
        return tuple(dict.fromkeys(case.seeds))
    first = options.seed or 0
    return tuple(range(first, first + (options.seeds or 1)))


def _streams(case: Case, seeds: Sequence[int], traces: Mapping[str, Trace]) -> Iterator[Stream]:
    for seed in seeds:
        try:
            requests = _requests(case, seed, traces)
        except ValueError as error:
            raise click.UsageError(f"{case.name}: {error}.") from None
        _check_span(case, requests)
        yield Stream(seed=seed, requests=requests, ideal_hit_ratio=ideal_hit_ratio(requests))


def _check_span(case: Case, requests: Sequence[TrafficRequest]) -> None:
    """Stamps of two kinds in one trace are decades apart, and each day of them takes seconds."""
    pause_s = max(request.think_s for request in requests)
    longest_s = max(requests[-1].at_s, pause_s)
    if not longest_s <= SPAN_DAYS_MAX * _DAY_S:
        raise click.UsageError(
            f"{case.name}: its arrivals or pauses take {longest_s / _DAY_S:.3g} days; "
            f"{SPAN_DAYS_MAX} can be replayed. Remedy: mend its times, or cut it with --window-s."
        )


def _requests(case: Case, seed: int, traces: Mapping[str, Trace]) -> tuple[TrafficRequest, ...]:
    def of(source: Source, seed: int) -> tuple[TrafficRequest, ...]:
        return stream(source, seed=seed, trace=traces.get(source.trace or ""))

    traffic = case.traffic
    if isinstance(traffic, Source):
        return of(traffic, seed)
    parts = [(part, of(part, seed_of_part(seed, place))) for place, part in enumerate(traffic)]
    return mixed(parts)
