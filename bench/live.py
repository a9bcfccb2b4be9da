"""A real trace live through Pointsman and its peers, and through the simulator: one run.

    python -m bench.live [--trace FILE] [--requests 600] [--contender smg:cache_aware …]

Each router in turn stands in front of fresh simulated engines (`pointsman engine`) and gets the
same requests at the same times, `--turns` times; what is measured is measured by the client, or
said by the engines in `usage`. Then the simulator does the same for the policies that it knows.
Engines and arrivals may be sped up together (`--speed`), so that the load stays `--load` times the
trace's own; what the routers and the client cost is not sped up, so 1 is nearest to life.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvloop

from bench.live_table import OURS, Contender, Cores, Simulated, Turn, show
from bench.live_twin import (
    SLO,
    network,
    prefill_load,
    scenario,
    simulated,
    ttft_s_without_delays,
)
from bench.peers.cpu import cpu_s, machine_busy_s
from bench.peers.engines import MODEL
from bench.peers.fleet import Fleet, FleetPlan, simulated_engines
from bench.peers.gateways import TOKEN_IDS, Gateway, Running, router, running
from pointsman.cli.sources import read_trace_file
from pointsman.loadgen.client import LoadClient, parse_target
from pointsman.loadgen.runner import LoadOptions, LoadRun
from pointsman.report.page import render_page
from pointsman.report.run import Load, LoadMode, Run, Workload, encode_runs
from pointsman.traffic.arrivals import accelerate
from pointsman.traffic.ideal import bounded_hit_ratio, ideal_hit_ratio
from pointsman.traffic.request import TrafficRequest, summarize

TRACE = Path(__file__).parents[2] / "shared/traces/mooncake_conversation.jsonl.gz"
CONTENDERS = (
    "pointsman:marginal_cost",
    "vllm-router:cache_aware",
    "smg:cache_aware",
    "pointsman:marginal_cost+token-ids",
    "vllm-router:kv_aware",
    "vllm-router:power_of_two",
    "smg:power_of_two",
    "pointsman:lmetric",
    "pointsman:round_robin",
)
BLOCK_TOKENS = 16
SETTLE_S = 2.0
"""For a router to have found every engine."""

PROBES = 10


class Slice(msgspec.Struct, frozen=True):
    """The requests, and what is said of them in a report."""

    requests: tuple[TrafficRequest, ...]
    workload: Workload
    load: Load


def main() -> None:
    options = _options()
    fleet = FleetPlan(
        engines=options.engines,
        profile=options.profile,
        kv_blocks=options.kv_tokens // BLOCK_TOKENS,
        speed=options.speed,
    )
    traffic = _slice(options)
    _introduce(traffic, fleet)
    found = uvloop.run(_contest(_contenders(options), traffic, fleet, turns=options.turns))
    _write(options, found)
    show(found, _simulated(found, traffic, fleet, runs=options.twins))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, default=TRACE, help="Mooncake's conversations")
    parser.add_argument("--requests", type=int, default=600, help="the first N [600]")
    parser.add_argument("--engines", type=int, default=8, help="[8]")
    parser.add_argument("--profile", default="8b-h100", help="of the engines [8b-h100]")
    parser.add_argument("--kv-tokens", type=int, default=1_000_000, help="of each [1,000,000]")
    parser.add_argument("--speed", type=float, default=2.0, help="of engines and arrivals [2]")
    parser.add_argument("--load", type=float, default=2.6, help="arrivals, to the trace's [2.6]")
    parser.add_argument(
        "--contender",
        action="append",
        metavar="ROUTER:POLICY",
        help=f"repeatable; ours may have {TOKEN_IDS} behind it; the first of ours is judged "
        f"[{' '.join(CONTENDERS)}]",
    )
    parser.add_argument("--turns", type=int, default=3, help="of each; one scatters by 15 % [3]")
    parser.add_argument("--twins", type=int, default=3, help="simulations of each policy; 0: none")
    parser.add_argument("--json", type=Path, help="write the runs, for `pointsman compare`")
    parser.add_argument("--html", type=Path, help="write a page with plots of the first turns")
    return parser.parse_args()


def _slice(options: argparse.Namespace) -> Slice:
    trace = read_trace_file(options.trace)
    speed = options.speed * options.load
    requests = accelerate(trace.requests[: options.requests], speed=speed)
    workload = Workload(
        name=options.trace.name,
        seed=0,
        traffic=summarize(requests),
        ideal_hit_ratio=ideal_hit_ratio(requests),
        notes=trace.notes,
    )
    return Slice(requests, workload, Load(mode=LoadMode.OPEN, speed=speed))


def _introduce(traffic: Slice, fleet: FleetPlan) -> None:
    seen = traffic.workload.traffic
    kv_tokens = fleet.kv_blocks * BLOCK_TOKENS
    pooled = bounded_hit_ratio(traffic.requests, capacity_tokens=fleet.engines * kv_tokens)
    _say(
        f"{seen.requests} requests in {seen.span_s:.0f} s ({seen.rate_rps:.2f}/s), "
        f"{seen.input_tokens_mean:,.0f} tokens in and {seen.output_tokens_mean:,.0f} out, "
        f"to {fleet.engines} engines {fleet.profile} at {fleet.speed:g} times their speed, "
        f"{kv_tokens:,} KV tokens each"
    )
    _say(f"uncached, the prompts take {prefill_load(fleet, traffic.requests):.0%} of their time")
    if pooled is not None:
        _say(f"one pooled LRU cache of all their size would hit {pooled:.1%}")


def _contenders(options: argparse.Namespace) -> list[Gateway]:
    """Those that are installed; says what is left out."""
    chosen = []
    for name in options.contender or CONTENDERS:
        gateway = router(*name.split(":"))
        if gateway.program.exists():
            chosen.append(gateway)
        else:
            _say(f"LEFT OUT: {gateway.label}: no {gateway.program}; bench/README.md says how")
    return chosen


async def _contest(
    gateways: Sequence[Gateway], traffic: Slice, fleet: FleetPlan, *, turns: int
) -> list[Contender]:
    """All of them once, and again: so whatever else the machine does meets all alike."""
    taken: dict[Gateway, list[Turn]] = {gateway: [] for gateway in gateways}
    for number in range(1, turns + 1):
        for gateway in gateways:
            _say(f"turn {number} of {turns}: {gateway.label}")
            try:
                with tempfile.TemporaryDirectory() as folder:
                    taken[gateway].append(await _turn(gateway, Path(folder), traffic, fleet))
            except RuntimeError as error:
                _say(f"LEFT OUT: {error}")
    return [
        Contender(router=gateway.name, kind=gateway.kind, turns=tuple(of_one))
        for gateway, of_one in taken.items()
        if of_one
    ]


async def _turn(gateway: Gateway, folder: Path, traffic: Slice, fleet: FleetPlan) -> Turn:
    """In front of engines that nobody used before."""
    async with (
        simulated_engines(fleet, folder) as engines,
        running(gateway, engines.urls, folder, kv_events=engines.kv_events) as one,
    ):
        await asyncio.sleep(SETTLE_S)
        return await _measure(one, engines, traffic, fleet)


async def _measure(one: Running, engines: Fleet, traffic: Slice, fleet: FleetPlan) -> Turn:
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    before = _used(one, engines)
    client = LoadClient(parse_target(f"http://127.0.0.1:{one.port}"))
    load = LoadRun(client, traffic.requests, LoadOptions(model=MODEL))
    records = await load.run()
    client.close()
    after = _used(one, engines)
    client_cores, router_cores, engine_cores, busy_cores = (
        (end - begin) / load.duration_s for begin, end in zip(before, after, strict=True)
    )
    run = Run(
        label=one.gateway.label,
        target=f"http://127.0.0.1:{one.port}",
        model=MODEL,
        policy=one.gateway.kind,
        started_at=started_at,
        duration_s=load.duration_s,
        slo=SLO,
        workload=traffic.workload,
        load=traffic.load,
        records=tuple(records),
    )
    return Turn(
        run=run,
        summary=run.summary(),
        cores=Cores(
            cores=os.cpu_count() or 1,
            client=client_cores,
            router=router_cores,
            engines=engine_cores,
            machine=busy_cores,
        ),
        overhead_s=await _overhead_s(one, traffic, fleet),
    )


def _used(one: Running, engines: Fleet) -> tuple[float, ...]:
    """CPU seconds so far: client, router, engines, machine."""
    return time.process_time(), cpu_s(one.pid), sum(map(cpu_s, engines.pids)), machine_busy_s()


async def _overhead_s(one: Running, traffic: Slice, fleet: FleetPlan) -> float:
    """What client, router and engine's front end add to the first token of a request of mean
    length that is alone: nothing that grows with load."""
    tokens = round(traffic.workload.traffic.input_tokens_mean)
    probe = TrafficRequest(at_s=0.0, input_tokens=tokens, output_tokens=1)
    alike = [msgspec.structs.replace(probe, input_tokens=tokens - n) for n in range(PROBES)]
    client = LoadClient(parse_target(f"http://127.0.0.1:{one.port}"))
    options = LoadOptions(model=MODEL, concurrency=1, salt="probe")
    records = await LoadRun(client, alike, options).run()
    client.close()
    expected_s = ttft_s_without_delays(fleet, probe)
    measured = [record.ttft_s for record in records if record.ttft_s is not None]
    return statistics.median(measured) - expected_s if measured else 0.0


def _simulated(
    found: Sequence[Contender], traffic: Slice, fleet: FleetPlan, *, runs: int
) -> Simulated:
    """Under the delays that our own gateway was seen to have."""
    if not found or not runs:
        return {}
    _say("the simulator ...")
    delays = network(next((one for one in found if one.router == OURS), found[0]).overhead_s)
    twins = [one.twin for one in found]
    return simulated(scenario(fleet, delays), traffic.requests, twins, runs=runs)


def _write(options: argparse.Namespace, found: Sequence[Contender]) -> None:
    if not found:
        return
    if options.json:
        turns = tuple(turn.run for one in found for turn in one.turns)
        options.json.write_bytes(encode_runs(turns))
    if options.html:
        options.html.write_text(render_page(tuple(one.turns[0].run for one in found)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
