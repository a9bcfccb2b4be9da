"""Gateway CPU per request and per streamed chunk: ours beside the field's, in one run.

All gateways stand in front of the same mock engines and are measured in turn, in many short
rounds; the median of the rounds counts. A shared host takes twice the CPU for the same work for
seconds at a time: a few long rounds would lay that on one gateway and spare the next. CPU is that
of the gateway's process tree, so it does not matter that client and engines share the cores.
Formulas, per round:

    request_us = cpu(requests) / requests
    chunk_us   = (cpu(streams) - streams * request_us) / (streams * chunks)

Like is compared with like: cache-aware placement with cache-aware, round robin with round robin.
Exits 0 whatever the numbers: the bars are ratios to the best router, and are printed beside them.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.peers.client import Load, load
from bench.peers.cpu import cpu_s, resident_bytes
from bench.peers.engines import EVENTS_AT_END
from bench.peers.gateways import (
    Gateway,
    Kind,
    Running,
    known_gateways,
    mock_engines,
    running,
)

OURS = "pointsman"
BARS = {"request_us": 0.75, "chunk_us": 0.85}
PROMPTS_PER_ROUND = 1_000_000
TABLE_COLUMNS = 100


class Plan(msgspec.Struct, frozen=True):
    """The load of one round on one gateway."""

    rounds: int
    requests: int
    concurrency: int
    streams: int
    stream_concurrency: int
    chunks: int
    interval_s: float
    engines: int


class Round(msgspec.Struct, frozen=True):
    """What one round on one gateway came to."""

    request_us: float
    chunk_us: float
    requests_per_s: float
    reads_per_chunk: float
    resident_mib: float


def main() -> None:
    arguments = _arguments()
    plan = msgspec.convert(
        {field: getattr(arguments, field) for field in Plan.__struct_fields__}, Plan
    )
    gateways = _chosen(arguments.only)
    rounds = uvloop.run(measure(gateways, plan))
    medians = {label: _median(done) for label, done in rounds.items()}
    ratios = {
        kind: ratios_of(medians, gateways, kind) for kind in (Kind.CACHE_AWARE, Kind.ROUND_ROBIN)
    }
    _print(gateways, medians, ratios)
    if arguments.json:
        report = {"plan": plan, "rounds": rounds, "medians": medians, "ratios": ratios}
        Path(arguments.json).write_text(json.dumps(msgspec.to_builtins(report), indent=2) + "\n")


async def measure(gateways: list[Gateway], plan: Plan) -> dict[str, list[Round]]:
    """All rounds on all gateways, in turn: A B C, A B C."""
    rounds: dict[str, list[Round]] = {}
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(
            mock_engines(plan.engines, chunks=plan.chunks, interval_s=plan.interval_s)
        )
        started = []
        for gateway in gateways:
            try:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                server = running(gateway, engines, folder)
                started.append(await stack.enter_async_context(server))
            except RuntimeError as error:
                _say(f"LEFT OUT: {error}")
        for number in range(1, plan.rounds + 1):
            for one in started:
                _say(f"round {number}/{plan.rounds}: {one.gateway.label}")
                rounds.setdefault(one.gateway.label, []).append(await _round(one, plan, number))
    return rounds


async def _round(one: Running, plan: Plan, number: int) -> Round:
    first = number * PROMPTS_PER_ROUND
    await _plain(one, plan, first)  # warms pools and caches
    before_s = cpu_s(one.pid)
    plain = await _plain(one, plan, first + plan.requests)
    between_s = cpu_s(one.pid)
    streamed = await load(
        one.port,
        requests=plan.streams,
        concurrency=plan.stream_concurrency,
        stream=True,
        first=first + 2 * plan.requests,
    )
    after_s = cpu_s(one.pid)
    _expect(one, plain, events=0)
    events = plan.streams * (plan.chunks + EVENTS_AT_END)
    _expect(one, streamed, events=events)
    request_s = (between_s - before_s) / plan.requests
    chunks_s = (after_s - between_s) - plan.streams * request_s
    return Round(
        request_us=request_s * 1e6,
        chunk_us=chunks_s / (plan.streams * plan.chunks) * 1e6,
        requests_per_s=plan.requests / plain.wall_s,
        reads_per_chunk=streamed.reads / (plan.streams * plan.chunks),
        resident_mib=resident_bytes(one.pid) / 2**20,
    )


async def _plain(one: Running, plan: Plan, first: int) -> Load:
    return await load(
        one.port,
        requests=plan.requests,
        concurrency=plan.concurrency,
        stream=False,
        first=first,
    )


def _expect(one: Running, seen: Load, *, events: int) -> None:
    """A gateway that fails or loses chunks is cheap: such a number is worth nothing."""
    if seen.errors or seen.events != events:
        _say(
            f"INVALID: {one.gateway.label}: {seen.errors} of {seen.requests} requests failed, "
            f"{seen.events} of {events} events arrived"
        )


def _median(rounds: list[Round]) -> Round:
    return Round(
        *(
            statistics.median(getattr(done, field) for done in rounds)
            for field in Round.__struct_fields__
        )
    )


def ratios_of(medians: dict[str, Round], gateways: list[Gateway], kind: Kind) -> dict[str, float]:
    """Ours over the best router of the same kind, for each quantity with a bar."""
    alike = [one for one in gateways if one.kind is kind and one.label in medians]
    ours = [medians[one.label] for one in alike if one.name == OURS]
    theirs = [medians[one.label] for one in alike if one.name != OURS]
    if not ours or not theirs:
        return {}
    return {
        field: getattr(ours[0], field) / min(getattr(other, field) for other in theirs)
        for field in BARS
    }


def _print(
    gateways: list[Gateway], medians: dict[str, Round], ratios: dict[Kind, dict[str, float]]
) -> None:
    table = Table("gateway", "kind", title="Medians; CPU of the gateway's process tree")
    for heading in ("µs/request", "µs/chunk", "requests/s", "reads/chunk", "MiB"):
        table.add_column(heading, justify="right")
    for one in gateways:
        if row := medians.get(one.label):
            costs = (f"{row.request_us:.0f}", f"{row.chunk_us:.1f}", f"{row.requests_per_s:.0f}")
            others = (f"{row.reads_per_chunk:.2f}", f"{row.resident_mib:.0f}")
            table.add_row(one.name, one.kind, *costs, *others)
    console = Console(width=TABLE_COLUMNS)
    console.print(table)
    for kind, found in ratios.items():
        for field, ratio in found.items():
            verdict = f"{'within' if ratio <= BARS[field] else 'OVER'} the bar {BARS[field]}"
            console.print(f"{kind} {field}: {ratio:.2f} of the best router, {verdict}")


def _chosen(only: list[str]) -> list[Gateway]:
    """The installed gateways whose names begin with one of `only`; says what is left out."""
    chosen = []
    for gateway in known_gateways():
        if only and not gateway.label.startswith(tuple(only)):
            continue
        if gateway.program.exists():
            chosen.append(gateway)
        else:
            _say(f"LEFT OUT: {gateway.label}: no {gateway.program}; bench/README.md says how")
    return chosen


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each gateway [15]")
    parser.add_argument("--requests", type=int, default=1500, help="plain requests a round [1500]")
    parser.add_argument("--concurrency", type=int, default=16, help="of the plain ones [16]")
    parser.add_argument("--streams", type=int, default=48, help="streams a round [48]")
    parser.add_argument("--stream-concurrency", type=int, default=8, help="of the streams [8]")
    parser.add_argument("--chunks", type=int, default=100, help="chunks of a stream [100]")
    parser.add_argument("--interval-s", type=float, default=0.002, help="between chunks [0.002]")
    parser.add_argument("--engines", type=int, default=2, help="mock engines [2]")
    parser.add_argument("--only", action="append", default=[], help="names begin so; repeatable")
    parser.add_argument("--json", metavar="FILE", help="write plan, rounds, medians and ratios")
    return parser.parse_args()


if __name__ == "__main__":
    main()
