"""`pointsman plan`: a model's layers over servers, and what response time that gives."""

import os
import sys
from pathlib import Path

import click
import msgspec

from pointsman.cli.messages import reject
from pointsman.cli.plan_file import Commission, load_plan
from pointsman.cli.yaml_reader import Rejected
from pointsman.planner.model import ServerChain, Stage
from pointsman.planner.plan import Goal, NoPlan, Plan, replicas_for
from pointsman.planner.plan import plan as plan_for


@click.command(
    epilog="""\b
A file:
  model: {layers: 70, layer_gb: 1.32, cache_gb: 0.11}
  servers:
    - {name: large, count: 4, memory_gb: 40, job_s: 0.76, layer_s: 0.109}
    - {name: small, count: 16, memory_gb: 20, job_s: 0.76, layer_s: 0.175}
  demand: {rate_per_s: 0.2, response_s: 12}

\b
layer_gb   weights of a layer     job_s    what a job costs a server, whatever it computes there
cache_gb   a job's cache on one   layer_s  what each layer adds, for a whole job
memory_gb  for both of them       response_s  a mean to keep: how many replicas does that take?

Instead of layer_s: tflops and bandwidth_gb_per_s, with model.gflop_per_token (of a layer) and the
demand's input_tokens and output_tokens. Instead of cache_gb: cache_kb_per_token (on a layer), with
the same tokens. An engine that holds a whole model is a server, its chain has one stage.

Exit codes: 0 planned, 1 the servers cannot carry the demand, 2 the file cannot be used.
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--goal",
    type=click.Choice([goal.value for goal in Goal]),
    default=Goal.LOWER.value,
    help="Which bound of the mean response time is made smallest: simulations have their optimum "
    "at the lower one's, the upper one holds for certain.",
)
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON.")
def plan(file: Path, goal: str, as_json: bool) -> None:
    """Lay a model's layers out over servers.

    For models that one machine cannot hold, and for machines that differ. A job is a request, from
    prompt to last token. Servers that compute all layers between them are a chain; it has slots
    for so many jobs as their memory has room for. The bounds are for random (Poisson) arrivals,
    each sent to the fastest chain with a free slot. Jobs on different slots are taken not to slow
    each other down: give times that were measured at the batch that is meant.
    """
    try:
        commission = load_plan(file, os.environ)
    except Rejected as rejected:
        reject(rejected.lines(file))
    found = plan_for(
        commission.servers, commission.service, rate_per_s=commission.rate_per_s, goal=Goal(goal)
    )
    report = (
        _report(commission, found) if isinstance(found, Plan) else _no_report(commission, found)
    )
    click.echo(_json(report) if as_json else _text(report))
    sys.exit(0 if report.feasible else 1)


COPIES_SERVERS_MAX = 128
"""Servers of all replicas: planning so many takes a second or two, and several counts are tried."""


class StageReport(msgspec.Struct, frozen=True):
    """Layers on a server, counted from 1; both ends are in."""

    server: str
    first_layer: int
    last_layer: int


class ChainReport(msgspec.Struct, frozen=True, kw_only=True):
    job_slots: int
    service_s: float
    rate_per_s: float
    stages: tuple[StageReport, ...]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """None and empty where there is no plan, but for replicas. `replicas` of all servers suffice
    for certain for the response time that is asked for, if they are laid out with the upper goal,
    and fewer than `replicas_min` do not even with the lower one. None: up to `replicas_max` do
    not, or no time is asked for."""

    feasible: bool
    rate_per_s: float
    service_rate_per_s: float
    replicas_max: int
    load: float | None = None
    response_lower_s: float | None = None
    response_upper_s: float | None = None
    response_asked_s: float | None = None
    replicas_min: int | None = None
    replicas: int | None = None
    jobs_reserved: int | None = None
    job_slots: int = 0
    placement: tuple[StageReport, ...] = ()
    chains: tuple[ChainReport, ...] = ()
    unused: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""


def _report(commission: Commission, found: Plan) -> PlanReport:
    used = {stage.server.name for chain in found.chains for stage in chain.stages}
    return PlanReport(
        feasible=True,
        rate_per_s=found.rate_per_s,
        service_rate_per_s=found.service_rate_per_s,
        load=found.load,
        response_lower_s=found.bounds.lower_s,
        response_upper_s=found.bounds.upper_s,
        response_asked_s=commission.response_s,
        replicas_min=_replicas(commission, Goal.LOWER),
        replicas=_replicas(commission, Goal.UPPER),
        replicas_max=_replicas_max(commission),
        jobs_reserved=found.placement.jobs_reserved,
        job_slots=found.job_slots,
        placement=tuple(map(_stage, found.placement.stages)),
        chains=tuple(map(_chain, found.chains)),
        unused=tuple(s.name for s in commission.servers if s.name not in used),
    )


def _no_report(commission: Commission, found: NoPlan) -> PlanReport:
    service, rate_max = commission.service, found.service_rate_per_s
    if rate_max:
        problem = f"the servers carry less than {rate_max:.3g} jobs/s"
        remedy = "add servers, or ask for less: demand.rate_per_s"
    else:
        held = sum(service.layers_held(s.memory_gb, jobs=1) for s in commission.servers)
        problem = f"the servers hold {min(held, service.layers)} of {service.layers} layers"
        problem += " with one job's cache on each"
        remedy = "add servers or memory, or a model with smaller layers (layer_gb, cache_gb)"
    return PlanReport(
        feasible=False,
        rate_per_s=commission.rate_per_s,
        service_rate_per_s=rate_max,
        response_asked_s=commission.response_s,
        replicas_min=_replicas(commission, Goal.LOWER),
        replicas=_replicas(commission, Goal.UPPER),
        replicas_max=_replicas_max(commission),
        problem=problem,
        remedy=remedy,
    )


def _replicas(commission: Commission, goal: Goal) -> int | None:
    if commission.response_s is None:
        return None
    return replicas_for(
        commission.servers,
        commission.service,
        rate_per_s=commission.rate_per_s,
        response_s=commission.response_s,
        goal=goal,
        replicas_max=_replicas_max(commission),
    )


def _replicas_max(commission: Commission) -> int:
    return max(1, COPIES_SERVERS_MAX // len(commission.servers))


def _stage(stage: Stage) -> StageReport:
    return StageReport(stage.server.name, stage.start + 1, stage.stop)


def _chain(chain: ServerChain) -> ChainReport:
    return ChainReport(
        job_slots=chain.job_slots,
        service_s=chain.service_s,
        rate_per_s=chain.job_slots / chain.service_s,
        stages=tuple(map(_stage, chain.stages)),
    )


# --- output -------------------------------------------------------------------------------


def _json(report: PlanReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _text(report: PlanReport) -> str:
    if not report.feasible:
        no_plan = f"no plan for {report.rate_per_s:g} jobs/s: {report.problem}"
        return "\n".join([no_plan, f"→ {report.remedy}", *_replica_lines(report)])
    assert report.load is not None, "a plan has a load"
    all_slots = f"{report.service_rate_per_s:.3g}"
    reserved = f"room reserved for {report.jobs_reserved} on each layer"
    lines = [
        f"demand     {report.rate_per_s:g} jobs/s, {report.load:.0%} of all slots' {all_slots}",
        f"response   {report.response_lower_s:.2f} to {report.response_upper_s:.2f} s on average",
        *_replica_lines(report),
        f"job slots  {report.job_slots} on {len(report.chains)} chains, {reserved}",
        "",
        *_table(("chain", "slots", "a job", "jobs/s", "computes"), _chain_rows(report)),
        "",
        *_table(("server", "holds layers"), _server_rows(report)),
    ]
    return "\n".join(lines)


def _replica_lines(report: PlanReport) -> list[str]:
    if report.response_asked_s is None:
        return []
    asked = f"{report.response_asked_s:g} s on average"
    certain = str(report.replicas or f"not even {report.replicas_max}")
    fewer = ""
    if report.replicas_min not in (None, report.replicas):
        fewer = f"; maybe {report.replicas_min}"
    return [f"replicas   {certain} for {asked}, for certain with --goal upper{fewer}"]


def _chain_rows(report: PlanReport) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            str(chain.job_slots),
            f"{chain.service_s:.2f} s",
            f"{chain.rate_per_s:.3f}",
            ", ".join(f"{s.server} {_layers(s)}" for s in chain.stages),
        )
        for number, chain in enumerate(report.chains, 1)
    ]


def _server_rows(report: PlanReport) -> list[tuple[str, ...]]:
    rows = [(stage.server, _layers(stage)) for stage in report.placement]
    placed = {stage.server for stage in report.placement}
    notes = {name: "in no chain" if name in placed else "none: no room" for name in report.unused}
    rows = [(name, f"{held}, {notes[name]}" if name in notes else held) for name, held in rows]
    return [*rows, *((name, note) for name, note in notes.items() if name not in placed)]


def _layers(stage: StageReport) -> str:
    return f"{stage.first_layer}-{stage.last_layer}"


def _table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headers, *rows)
    ]
