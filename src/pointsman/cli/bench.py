"""`pointsman bench` and `pointsman compare`: load a live server, report, compare reports."""

import resource
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pointsman.cli.bench_session import (
    BenchPlan,
    OnRecord,
    SessionError,
    UnknownPolicyError,
    run_plan,
)
from pointsman.cli.messages import say
from pointsman.cli.outputs import check_outputs, write_outputs
from pointsman.cli.shared_options import (
    ABOVE_ZERO,
    POSITIVE,
    admin_url_option,
    html_option,
    json_option,
    limit_option,
    names_in,
    slo_options,
    window_option,
    workload_option,
)
from pointsman.cli.sources import check_source, read_trace_file, window_of
from pointsman.engines.adapters.keys import key_problem
from pointsman.loadgen.client import ClientLimits, parse_target
from pointsman.loadgen.runner import Endpoint
from pointsman.report.page import render_page
from pointsman.report.run import (
    Load,
    LoadMode,
    Run,
    RunFileError,
    Workload,
    decode_runs,
    encode_runs,
)
from pointsman.report.table import print_comparison, print_run
from pointsman.traffic.ideal import ideal_hit_ratio
from pointsman.traffic.outcome import RequestRecord
from pointsman.traffic.request import TrafficRequest, summarize
from pointsman.traffic.slo import Slo
from pointsman.traffic.source import WORKLOADS, Source, stream

REQUESTS_DEFAULT = 200
WORKLOAD_DEFAULT = "shared-prefix"
CONCURRENCY_DEFAULT = 16
FILES_SPARE = 64
"""Descriptors left for everything but connections."""


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command's options as given."""

    url: str
    trace_file: Path | None
    workload: str | None
    limit: int | None
    window_s: tuple[float, float] | None
    concurrency: int | None
    rate_rps: float | None
    speed: float
    policies: str | None
    admin_url: str
    api_key: str | None
    model: str | None
    endpoint: str
    seed: int
    timeout_s: float
    connections: int
    slo: Slo
    label: str | None
    json_file: str | None
    html_file: Path | None


@click.command(
    epilog="""\b
Try it:
  pointsman bench localhost:8080 --workload chat --concurrency 32
  pointsman bench localhost:8080 --trace trace.jsonl.gz --limit 600 --speed 4 --html run.html
  pointsman bench localhost:8080 --workload shared-prefix --rate 8 \\
      --policy round_robin,marginal_cost --json runs.json --html runs.html
  pointsman compare monday.json runs.json

Exit codes: 0 done, 1 a request failed or the server cannot be used, 2 wrong usage.
"""
)
@click.argument("url")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Replay this trace: JSON lines, Mooncake's or Azure's format; gzipped or not.",
)
@workload_option(WORKLOADS, otherwise=f"  [default: {WORKLOAD_DEFAULT}]")
@limit_option(REQUESTS_DEFAULT, "--requests")
@window_option
@click.option(
    "--concurrency", type=POSITIVE, metavar="N", help="Closed loop of so many conversations."
)
@click.option(
    "--rate", "rate_rps", type=ABOVE_ZERO, metavar="X", help="Open loop, Poisson, per second."
)
@click.option(
    "--speed",
    type=ABOVE_ZERO,
    metavar="X",
    default=1.0,
    help="Arrivals and thinking X times faster.",
)
@click.option(
    "--policy",
    "policies",
    metavar="NAME[,NAME…]",
    help="One run under each, set at the admin plane; then the old one is put back.",
)
@admin_url_option("The admin plane, for --policy.")
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="POINTSMAN_API_KEY",
    show_envvar=True,
    help="Sent as a bearer token.",
)
@click.option(
    "--model", metavar="NAME", help="The model to ask for.  [default: the first of /v1/models]"
)
@click.option(
    "--endpoint",
    type=click.Choice([e.value for e in Endpoint]),
    default="chat",
    help="Which API is spoken.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Of arrivals and lengths; from 1 on it also moves a trace's arrivals a little.",
)
@click.option(
    "--timeout-s",
    type=ABOVE_ZERO,
    metavar="SECONDS",
    default=600.0,
    help="A request that takes longer has failed.",
)
@click.option(
    "--connections",
    type=POSITIVE,
    metavar="N",
    default=4096,
    help="At once, at most.",
)
@slo_options
@click.option(
    "--label", metavar="TEXT", help="Name of the run.  [default: the policy, or what is sent]"
)
@json_option
@html_option
def bench(**given: Any) -> None:
    """Send a stream of requests to an OpenAI-compatible server and report.

    A trace arrives by its own clock unless --rate or --concurrency says otherwise; made-up
    requests run as a closed loop of 16 conversations. A chat at a --rate has turns that follow
    from answers at 50 tokens/s; with --concurrency they follow from the real ones. Ctrl-C ends
    the run and reports what there is.
    """
    options = BenchOptions(**given)
    plan = _plan(options)
    check_outputs(options.json_file, options.html_file)
    runs, problem = _run(plan)
    if problem:
        say(f"pointsman: {problem}")
    if runs:
        _write(runs, options.json_file, options.html_file)
    failed = any(run.interrupted or any(r.failed for r in run.records) for run in runs)
    sys.exit(bool(problem) or failed)


@click.command(
    epilog="""\b
Try it:
  pointsman compare before.json after.json --html compared.html

Exit codes: 0 done, 2 wrong usage or a file that holds no runs.
"""
)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@html_option
def compare(files: tuple[Path, ...], html_file: Path | None) -> None:
    """Compare runs written by `pointsman bench --json`; the first one is the baseline."""
    check_outputs(None, html_file)
    read: list[tuple[Path, Run]] = []
    for path in files:
        try:
            read += [(path, run) for run in decode_runs(path.read_bytes())]
        except OSError as error:
            raise click.UsageError(f"{path}: {error.strerror}.") from None
        except RunFileError as error:
            raise click.UsageError(f"{path}: {error}") from None
    if len(read) < 2:
        raise click.UsageError("One run cannot be compared. Give a second file.")
    _write(_told_apart(read), None, html_file)


def _told_apart(read: Sequence[tuple[Path, Run]]) -> list[Run]:
    """Of runs that have one label, each gets its file's name before it."""
    labels = Counter(run.label for _, run in read)
    return [
        msgspec.structs.replace(run, label=f"{path.stem}: {run.label}")
        if labels[run.label] > 1
        else run
        for path, run in read
    ]


def _plan(options: BenchOptions) -> BenchPlan:
    """Check what excludes what, then make or read the requests."""
    if options.trace_file and options.workload:
        raise click.UsageError("--trace and --workload exclude each other.")
    if options.concurrency and options.rate_rps:
        raise click.UsageError("--concurrency and --rate (open loop) exclude each other.")
    policies = () if options.policies is None else names_in("--policy", options.policies)
    if problem := key_problem(options.api_key or ""):
        raise click.UsageError(f"--api-key: {problem}.")
    try:
        target = parse_target(options.url)
        admin = parse_target(options.admin_url) if policies else None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    name, requests, notes = _requests(options)
    return BenchPlan(
        target=target,
        admin=admin,
        requests=requests,
        workload=Workload(
            name=name,
            seed=options.seed,
            traffic=summarize(requests),
            ideal_hit_ratio=ideal_hit_ratio(requests),
            notes=notes,
        ),
        load=_load(options),
        policies=policies,
        label=options.label or name,
        model=options.model,
        api_key=options.api_key,
        endpoint=Endpoint(options.endpoint),
        limits=ClientLimits(
            connections_max=_connections(options.connections), timeout_s=options.timeout_s
        ),
        slo=options.slo,
    )


def _load(options: BenchOptions) -> Load:
    concurrency = options.concurrency
    if not (options.trace_file or options.rate_rps):
        concurrency = concurrency or CONCURRENCY_DEFAULT
    return Load(
        mode=LoadMode.CLOSED if concurrency else LoadMode.OPEN,
        concurrency=concurrency,
        rate_rps=options.rate_rps,
        speed=options.speed,
    )


def _requests(options: BenchOptions) -> tuple[str, tuple[TrafficRequest, ...], tuple[str, ...]]:
    """What is sent: its name, the requests, and notes on them. As `pointsman replay` makes it."""
    source = Source(
        rate_rps=options.rate_rps,
        window=window_of(options.window_s),
        limit=options.limit,
        speed=options.speed,
    )
    if options.trace_file is None:
        name, trace = options.workload or WORKLOAD_DEFAULT, None
        source = msgspec.structs.replace(
            source,
            workload=name,
            rate_rps=options.rate_rps or _ANY_RATE_RPS,
            limit=options.limit or REQUESTS_DEFAULT,
        )
    else:
        name, trace = options.trace_file.name, read_trace_file(options.trace_file)
        source = msgspec.structs.replace(source, trace=str(options.trace_file))
    check_source(source)
    try:
        requests = stream(source, seed=options.seed, trace=trace)
    except ValueError as error:
        raise click.UsageError(f"{name}: {error}.") from None
    return name, requests, () if trace is None else trace.notes


_ANY_RATE_RPS = 1.0  # of a workload in a closed loop, which takes no notice of arrivals


def _connections(wanted: int) -> int:
    """Raise the soft limit of open files as far as it goes; fewer connections if it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_SPARE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wanted = max(1, min(wanted, soft - FILES_SPARE))
    return wanted


def _run(plan: BenchPlan) -> tuple[tuple[Run, ...], str]:
    """The runs, and what kept it from more of them. Progress goes to stderr, and only to a
    terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    failed = TextColumn("[red]{task.fields[failed]}[/red]")
    shown = console.is_terminal
    with Progress(*columns, failed, TimeElapsedColumn(), console=console, disable=not shown) as bar:

        def begin(label: str) -> OnRecord:
            task = bar.add_task(label, total=len(plan.requests), failed="")
            failures = 0

            def on_record(record: RequestRecord) -> None:
                nonlocal failures
                failures += record.failed
                bar.update(task, advance=1, failed=f"{failures} failed" if failures else "")

            return on_record

        try:
            return tuple(uvloop.run(run_plan(plan, begin=begin))), ""
        except UnknownPolicyError as error:
            bar.stop()
            raise click.UsageError(str(error)) from None
        except SessionError as error:
            return error.runs, str(error)


def _write(runs: Sequence[Run], json_file: str | None, html_file: Path | None) -> None:
    runs = tuple(runs)

    def show(console: Console) -> None:
        if len(runs) == 1:
            print_run(console, runs[0])
        else:
            print_comparison(console, runs)

    write_outputs(
        show,
        lambda: encode_runs(runs),
        lambda: render_page(runs),
        json_file=json_file,
        html_file=html_file,
    )
