"""`pointsman replay`: traffic through a simulated cluster, policy by policy, on virtual time."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pointsman.cli.messages import fail
from pointsman.cli.outputs import check_outputs, write_outputs
from pointsman.cli.replay_jobs import Job, Result, SimulationFailed, run_jobs
from pointsman.cli.replay_plan import NODES_DEFAULT, RATE_PER_NODE_RPS, ReplayOptions, plan
from pointsman.cli.replay_study import Extras, all_jobs, study_of
from pointsman.cli.shared_options import (
    ABOVE_ZERO,
    POSITIVE,
    Number,
    html_option,
    json_option,
    limit_option,
    slo_options,
    window_option,
    workload_option,
)
from pointsman.core.limits import NODES_MAX
from pointsman.core.policies import catalog
from pointsman.engines.compute_model import PROFILE_DEFAULT, PROFILES
from pointsman.report.replay.document import encode_study
from pointsman.report.replay.page import render_study
from pointsman.report.replay.table import print_study
from pointsman.sim.scenario import Index
from pointsman.traffic.source import REQUESTS_DEFAULT, WORKLOADS


@click.command(
    epilog="""\b
Try it:
  pointsman replay --workload chat --nodes 4
  pointsman replay access.log --nodes 8 --speed 2 --html replay.html
  pointsman replay conversation.jsonl.gz --policy marginal_cost,lmetric --slow 4@2.5 --seeds 5
  pointsman replay trace.jsonl --sweep --policy all --json sweep.json
  pointsman replay matrix.yaml --html matrix.html

\b
A trace of your own has a line for each request; hash_ids name its blocks, if beginnings repeat.
  {"t_ms": 0, "input_tokens": 1200, "output_tokens": 80, "hash_ids": [7, 8], "block_tokens": 512}

\b
A scenario file has the fleet, the traffic and the faults in YAML; several go under `scenarios:`.
  name: half of the nodes are slow
  traffic: {trace: conversation.jsonl.gz, speed: 1.5, limit: 2000}
  fleet: [{count: 4}, {count: 4, slowdown: 2.5, kv_tokens: 200000}]
  faults: [{kind: crash, at_s: 60, duration_s: 30, nodes: [node-0]}]

Exit codes: 0 done, 1 a simulation broke one of its own checks or a scenario missed a bar, 2 wrong
usage.
"""
)
@click.argument("traces", metavar="[TRACE]...", type=click.Path(path_type=Path), nargs=-1)
@workload_option(WORKLOADS)
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Of the workload, like tenants=4. A wrong name lists them.",
)
@click.option(
    "--policy",
    "policies",
    metavar="NAME[,NAME…]",
    help="Which to compare; `all` for all.  [default: the default and the usual peers]",
)
@click.option(
    "--baseline", metavar="NAME", help=f"Ratios are to this one.  [default: {catalog.DEFAULT}]"
)
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    metavar="N",
    help=f"Engines.  [default: {NODES_DEFAULT}]",
)
@click.option("--slow", metavar="K@F", help="K of them take F times as long, like 4@2.5.")
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    metavar="NAME",
    help=f"Model and GPU: {', '.join(PROFILES)}.  [default: {PROFILE_DEFAULT}]",
)
@click.option(
    "--kv-tokens", type=POSITIVE, metavar="N", help="KV cache of each.  [default: the profile's]"
)
@click.option(
    "--gateways",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Schedulers that do not know of each other's work.  [default: 1]",
)
@click.option(
    "--index",
    type=click.Choice([index.value for index in Index]),
    metavar="KIND",
    help="precise: engines tell what they cache. approximate: it is inferred.  "
    "[default: approximate]",
)
@click.option(
    "--closed-loop", is_flag=True, help="A session's next turn waits for the answer to its last."
)
@click.option("--speed", type=ABOVE_ZERO, metavar="X", help="Arrivals X times faster.")
@click.option(
    "--rate",
    "rate_rps",
    type=ABOVE_ZERO,
    metavar="X",
    help="Poisson arrivals, per second.  [default: a trace's own; of a workload "
    f"{RATE_PER_NODE_RPS:g} a node]",
)
@limit_option(REQUESTS_DEFAULT)
@window_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="S",
    help="Of everything; from 1 on it also moves a trace's arrivals a little.  [default: 0]",
)
@click.option("--seeds", type=POSITIVE, metavar="N", help="S to S+N-1, with confidence intervals.")
@slo_options
@click.option(
    "--oracle/--no-oracle",
    default=True,
    help="Also one pooled engine with everybody's speed and memory, to measure against.",
)
@click.option("--sweep", is_flag=True, help="Find the highest speed at which the SLO holds.")
@click.option(
    "--sweep-target",
    type=Number(0, 1, min_open=True),
    metavar="SHARE",
    default=0.9,
    help="Of the requests, to be within the SLO.",
)
@click.option("--jobs", type=POSITIVE, metavar="N", help="Processes.  [default: one a CPU]")
@json_option
@click.option(
    "--timing", is_flag=True, help="Real times in the JSON too, which differ from run to run."
)
@html_option
def replay(**given: Any) -> None:
    """Replay traffic through a simulated cluster and compare policies.

    TRACE is a file of requests: JSON lines, Mooncake's or Azure's format, or Pointsman's own
    access log, gzipped or not; or a scenario file (.yaml). The scheduler is the one that serves;
    engines are simulated by their step times. Nothing is sent anywhere, time is virtual, and the
    same seed gives the same numbers.
    """
    options = ReplayOptions(**given)
    check_outputs(options.json_file, options.html_file)
    planned = plan(options)
    extras = Extras(
        oracle=options.oracle,
        series=options.html_file is not None,
        timing=options.timing or options.json_file != "-",
        sweep_target=options.sweep_target if options.sweep else None,
    )
    jobs = all_jobs(planned, extras)
    results = _simulated(jobs, options.jobs or _cpus())
    study = study_of(planned, results, extras)
    write_outputs(
        lambda console: print_study(console, study),
        lambda: encode_study(study, timing=options.timing),
        lambda: render_study(study),
        json_file=options.json_file,
        html_file=options.html_file,
    )
    if any(not verdict.kept for verdict in study.verdicts):
        sys.exit(1)


def _cpus() -> int:
    """Those that this process may use; macOS tells only how many there are."""
    may_use = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if may_use is None else len(may_use(0))


def _simulated(jobs: Sequence[Job], processes: int) -> list[Result]:
    """Progress goes to stderr, and only to a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    shown = console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not shown) as bar:
        task = bar.add_task("simulating", total=len(jobs))

        def on_progress(shares: Sequence[float]) -> None:
            done = sum(share >= 1 for share in shares)
            label = f"{done} of {len(jobs)} simulations"
            bar.update(task, completed=sum(shares), description=label)

        try:
            return run_jobs(jobs, processes=processes, on_progress=on_progress)
        except ValueError as error:
            bar.stop()
            raise click.UsageError(str(error)) from None
        except SimulationFailed as error:
            bar.stop()
            fail(str(error), code=1)
