"""Traffic of a scenario, sent for real to a live bed, and what came of it as a replayed run."""

import asyncio
from collections.abc import Sequence
from time import perf_counter

from msgspec.structs import replace

from pointsman.cli.config import Config
from pointsman.loadgen.client import ClientLimits, LoadClient, parse_target
from pointsman.loadgen.completion import CompletionExchange
from pointsman.loadgen.runner import Endpoint, LoadOptions, LoadRun
from pointsman.sim.scenario import Backoff, Scenario
from pointsman.traffic.outcome import RequestRecord
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.slo import Slo
from tests.support.live_bed import LiveBed, live_bed

TIMEOUT_S = 120.0
CONNECTIONS_MAX = 4_096
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})


class Persistent(LoadRun):
    """Clients that send what went wrong again, at once, as often as they are that way."""

    tries_max = 1
    slo: Slo | None = None

    def _payload(self, index: int, request: TrafficRequest) -> bytes:
        payload = super()._payload(index, request)
        if self.slo is None:
            return payload
        due_ms = round(self.slo.ttft_due_s(request.input_tokens) * 1_000)
        header = f"\r\nx-pointsman-slo-ttft-ms: {due_ms}\r\nhost:".encode()
        return payload.replace(b"\r\nhost:", header, 1)

    async def _exchange(
        self, index: int, request: TrafficRequest, payload: bytes, *, due_s: float
    ) -> None:
        sent_s = perf_counter() - self._started_s
        exchange = await self._client.complete(payload)
        tries = 1
        while tries < self.tries_max and _may_be_retried(exchange):
            await self._client.wait_for_slot()
            exchange = await self._client.complete(payload)
            tries += 1
        record = self._record(index, request, exchange, due_s=due_s, sent_s=sent_s)
        self.records.append(replace(record, tries=tries))


def _may_be_retried(exchange: CompletionExchange) -> bool:
    return exchange.failure is not None and (not exchange.status or exchange.status in _RETRIED)


async def play(
    scenario: Scenario,
    requests: Sequence[TrafficRequest],
    *,
    policy: str,
    config: Config | None = None,
    name: str = "",
    seed: int = 0,
) -> tuple[ReplayedRun, LiveBed]:
    """Send everything when it is due, and wait for the last answer. Each part of the traffic has
    a key of its own: to the gateway it is one client. `seed` is the one that drew the requests."""
    parts = {request.part: [r for r in requests if r.part == request.part] for request in requests}
    keys = tuple(map(_key, parts))
    async with live_bed(scenario, policy=policy, config=config, keys=keys) as bed:
        runs = [_run(bed, part, own, scenario) for part, own in parts.items()]
        began_s = perf_counter()
        sampling = asyncio.create_task(bed.sample(began_s))
        befalling = asyncio.create_task(bed.befall(scenario, began_s))
        try:
            async with asyncio.TaskGroup() as tasks:
                for run, _ in runs:
                    tasks.create_task(run.run())
            await befalling
        finally:
            for task in (sampling, befalling):
                task.cancel()
            await asyncio.wait((sampling, befalling))
            for _, client in runs:
                client.close()
        bed.scheduler.check()
        sent = [run for run, _ in runs]
        return _replayed(scenario, name or policy, bed, sent, began_s, seed=seed), bed


def _run(
    bed: LiveBed, part: str, requests: Sequence[TrafficRequest], scenario: Scenario
) -> tuple[LoadRun, LoadClient]:
    clients = scenario.clients_by_part.get(part, scenario.clients)
    assert not clients.retries_max or clients.backoff is Backoff.NONE, "only retries at once"
    timeout_s = clients.timeout_s or TIMEOUT_S
    limits = ClientLimits(connections_max=CONNECTIONS_MAX, timeout_s=timeout_s)
    client = LoadClient(parse_target(bed.api), api_key=_key(part), limits=limits)
    sessions = {request.session for request in requests if request.session}
    options = LoadOptions(
        model="sim",
        endpoint=Endpoint.COMPLETIONS,
        concurrency=len(sessions) if clients.closed_loop else None,
        run_id=part or "all",
        salt=part,  # each run counts its own prompts from 0: without it parts would share them
    )
    run = Persistent(client, requests, options)
    run.tries_max = 1 + clients.retries_max
    run.slo = scenario.slo if clients.tells_slo else None
    return run, client


def _key(part: str) -> str:
    return f"key-of-{part or 'all'}"


def _replayed(
    scenario: Scenario,
    name: str,
    bed: LiveBed,
    runs: Sequence[LoadRun],
    began_s: float,
    *,
    seed: int,
) -> ReplayedRun:
    """Of all parts together, in order of when they were due."""
    records = sorted((r for run in runs for r in _placed(run, bed)), key=lambda r: r.due_s)
    return ReplayedRun(
        scenario=scenario.name,
        policy=name,
        seed=seed,
        duration_s=perf_counter() - began_s,
        records=tuple(replace(record, index=place) for place, record in enumerate(records)),
        series=bed.series(),
        attempts=sum(record.tries for record in records),
        held=bed.scheduler.stats.held,
    )


def _placed(run: LoadRun, bed: LiveBed) -> list[RequestRecord]:
    """The records, each with how often engines got it, and causes as the simulator has them."""
    run_id = run._options.run_id
    return [
        replace(
            record,
            placements=bed.jobs[f"{run_id}-{record.index}"],
            cause=record.cause.removeprefix(f"{record.http_status} "),
        )
        for record in run.records
    ]
