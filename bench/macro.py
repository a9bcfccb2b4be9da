"""Gateway CPU per request and per streamed chunk: ours beside the field's, in one run.

All gateways stand in front of the same mock engines and are measured in turn. A shared host takes
twice the CPU for the same work for seconds at a time, so that two medians tell more of the seconds
that they fell in than of the gateways. So plain requests come in many turns of a few hundred, and
a ratio to another gateway is the median of those of the turns, each of which both had within
moments. CPU is that of the gateway's process tree, so it does not matter that client and engines
share the cores. Formulas, for a turn of requests and for one of streams:

    request_us = cpu(requests) / requests
    chunk_us   = (cpu(streams) - streams * median request_us) / (streams * chunks)

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
PROMPTS_PER_TURN = 1_000_000
WARM_REQUESTS = 4  # on each connection, before a turn is measured
TURNS_TOLD = 10
TABLE_COLUMNS = 100


class Plan(msgspec.Struct, frozen=True):
    """The load of one turn on one gateway, and how many of them there are."""

    turns: int
    requests: int
    concurrency: int
    stream_turns: int
    streams: int
    stream_concurrency: int
    chunks: int
    interval_s: float
    engines: int


class Measured(msgspec.Struct, frozen=True):
    """One gateway, turn by turn; in the same order for all."""

    request_us: list[float]
    requests_per_s: list[float]
    chunk_us: list[float]
    reads_per_chunk: list[float]
    resident_mib: float


def main() -> None:
    arguments = _arguments()
    plan = msgspec.convert(
        {field: getattr(arguments, field) for field in Plan.__struct_fields__}, Plan
    )
    gateways = _chosen(arguments.only)
    measured = uvloop.run(measure(gateways, plan))
    ratios = {
        kind: ratios_of(measured, gateways, kind) for kind in (Kind.CACHE_AWARE, Kind.ROUND_ROBIN)
    }
    _print(gateways, measured, ratios)
    if arguments.json:
        report = {"plan": plan, "measured": measured, "ratios": ratios}
        Path(arguments.json).write_text(json.dumps(msgspec.to_builtins(report), indent=2) + "\n")


async def measure(gateways: list[Gateway], plan: Plan) -> dict[str, Measured]:
    """All turns on all gateways: A B C, A B C; requests first, then streams."""
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
        measured = {one.gateway.label: Measured([], [], [], [], 0.0) for one in started}
        for turn in range(plan.turns):
            if turn % TURNS_TOLD == 0:
                _say(f"requests: turn {turn + 1} of {plan.turns}")
            for one in started:
                await _requests(one, plan, turn, measured[one.gateway.label])
        for turn in range(plan.turns, plan.turns + plan.stream_turns):
            _say(f"streams: turn {turn - plan.turns + 1} of {plan.stream_turns}")
            for one in started:
                await _streams(one, plan, turn, measured[one.gateway.label])
        return {
            one.gateway.label: msgspec.structs.replace(
                measured[one.gateway.label], resident_mib=resident_bytes(one.pid) / 2**20
            )
            for one in started
        }


async def _requests(one: Running, plan: Plan, turn: int, measured: Measured) -> None:
    first = turn * PROMPTS_PER_TURN
    await _plain(one, plan, first, plan.concurrency * WARM_REQUESTS)  # pools, caches and cores
    before_s = cpu_s(one.pid)
    plain = await _plain(one, plan, first + PROMPTS_PER_TURN // 2, plan.requests)
    request_s = (cpu_s(one.pid) - before_s) / plan.requests
    _expect(one, plain, events=0)
    measured.request_us.append(request_s * 1e6)
    measured.requests_per_s.append(plan.requests / plain.wall_s)


async def _streams(one: Running, plan: Plan, turn: int, measured: Measured) -> None:
    before_s = cpu_s(one.pid)
    streamed = await load(
        one.port,
        requests=plan.streams,
        concurrency=plan.stream_concurrency,
        stream=True,
        first=turn * PROMPTS_PER_TURN,
    )
    all_us = (cpu_s(one.pid) - before_s) * 1e6
    _expect(one, streamed, events=plan.streams * (plan.chunks + EVENTS_AT_END))
    chunks = plan.streams * plan.chunks
    chunks_us = all_us - plan.streams * statistics.median(measured.request_us)
    measured.chunk_us.append(chunks_us / chunks)
    measured.reads_per_chunk.append(streamed.reads / chunks)


async def _plain(one: Running, plan: Plan, first: int, requests: int) -> Load:
    return await load(
        one.port,
        requests=requests,
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


def ratios_of(
    measured: dict[str, Measured], gateways: list[Gateway], kind: Kind
) -> dict[str, float]:
    """Ours to the best router of the same kind, for each quantity with a bar: the median of the
    turns' ratios, to the router to which it is highest."""
    alike = [one for one in gateways if one.kind is kind and one.label in measured]
    ours = [measured[one.label] for one in alike if one.name == OURS]
    theirs = [measured[one.label] for one in alike if one.name != OURS]
    if not ours or not theirs:
        return {}
    return {
        field: max(_ratio(getattr(ours[0], field), getattr(other, field)) for other in theirs)
        for field in BARS
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _print(
    gateways: list[Gateway], measured: dict[str, Measured], ratios: dict[Kind, dict[str, float]]
) -> None:
    table = Table("gateway", "kind", title="Medians; CPU of the gateway's process tree")
    for heading in ("µs/request", "(least)", "µs/chunk", "requests/s", "reads/chunk", "MiB"):
        table.add_column(heading, justify="right")
    for one in gateways:
        if row := measured.get(one.label):
            requests_us, chunks_us = row.request_us, row.chunk_us
            table.add_row(
                one.name,
                one.kind,
                f"{statistics.median(requests_us):.0f}",
                f"({min(requests_us):.0f})",
                f"{statistics.median(chunks_us):.1f}",
                f"{statistics.median(row.requests_per_s):.0f}",
                f"{statistics.median(row.reads_per_chunk):.2f}",
                f"{row.resident_mib:.0f}",
            )
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
    parser.add_argument("--turns", type=int, default=60, help="of plain requests [60]")
    parser.add_argument("--requests", type=int, default=400, help="of a turn [400]")
    parser.add_argument("--concurrency", type=int, default=16, help="of the plain ones [16]")
    parser.add_argument("--stream-turns", type=int, default=15, help="of streams [15]")
    parser.add_argument("--streams", type=int, default=48, help="of a turn [48]")
    parser.add_argument("--stream-concurrency", type=int, default=8, help="of the streams [8]")
    parser.add_argument("--chunks", type=int, default=100, help="chunks of a stream [100]")
    parser.add_argument("--interval-s", type=float, default=0.002, help="between chunks [0.002]")
    parser.add_argument("--engines", type=int, default=2, help="mock engines [2]")
    parser.add_argument("--only", action="append", default=[], help="names begin so; repeatable")
    parser.add_argument("--json", metavar="FILE", help="write plan, turns and ratios")
    return parser.parse_args()


if __name__ == "__main__":
    main()
