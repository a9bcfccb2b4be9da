"""The live part of `pointsman bench`: one run a policy, on uvloop, stopped by Ctrl-C."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime

import msgspec

from pointsman.cli.messages import unknown_name
from pointsman.cli.shared_options import ADMIN_PORT
from pointsman.cli.signals import on_signals
from pointsman.decoding import decoded_or_none
from pointsman.loadgen.client import ClientLimits, LoadClient, Target
from pointsman.loadgen.runner import Endpoint, LoadOptions, LoadRun
from pointsman.report.run import Load, Run, Workload
from pointsman.traffic.outcome import RequestRecord
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.slo import Slo

POLICY_PATH = "/pointsman/v1/policy"

ASK_S_MAX = 30.0
"""For what is asked before and between the runs; a busy engine takes its time to list models."""


class SessionError(Exception):
    """The server or its admin port did not do what the bench needs. `runs` are those before."""

    runs: tuple[Run, ...] = ()


class UnknownPolicyError(SessionError):
    """The server has no policy of that name."""


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to send where. `policies` empty: one run under whatever policy is in force."""

    target: Target
    admin: Target | None
    requests: tuple[TrafficRequest, ...]
    workload: Workload
    load: Load
    policies: tuple[str, ...]
    label: str
    model: str | None
    api_key: str | None
    endpoint: Endpoint
    limits: ClientLimits
    slo: Slo


OnRecord = Callable[[RequestRecord], None]


async def run_plan(plan: BenchPlan, *, begin: Callable[[str], OnRecord]) -> list[Run]:
    """Run once for each policy; `begin` is told each run's label. Raises SessionError, and that
    before the first run where it can be known.

    The policy that was in force before is put back at the end. After Ctrl-C the runs so far are
    returned, the last one marked as interrupted.
    """
    model = plan.model or await _first_model(plan)
    if not plan.policies:
        return [await _run(plan, model, policy=None, number=0, on_record=begin(plan.label))]
    assert plan.admin is not None, "policies without an admin URL"
    runs: list[Run] = []
    with closing(LoadClient(plan.admin, limits=_asking())) as admin:
        try:
            async with _policy_put_back(admin, plan.policies):
                await _run_policies(plan, model, admin, begin, runs)
        except SessionError as error:
            error.runs = tuple(runs)
            raise
    return runs


async def _run_policies(
    plan: BenchPlan,
    model: str,
    admin: LoadClient,
    begin: Callable[[str], OnRecord],
    runs: list[Run],
) -> None:
    """One run a policy, each added to `runs` once it is over."""
    for number, policy in enumerate(plan.policies):
        await _choose_policy(admin, policy)
        on_record = begin(policy)
        runs.append(await _run(plan, model, policy=policy, number=number, on_record=on_record))
        if runs[-1].interrupted:
            break


async def _run(
    plan: BenchPlan, model: str, *, policy: str | None, number: int, on_record: OnRecord
) -> Run:
    """Each run has its own salt: its prompts do not find the caches that another one filled, be
    it of this command or of one before. Lengths and shared parts stay as the seed says.
    """
    run_id = f"bench-{secrets.token_hex(3)}-{number}"
    client = LoadClient(plan.target, api_key=plan.api_key, limits=plan.limits)
    options = LoadOptions(
        model=model,
        endpoint=plan.endpoint,
        concurrency=plan.load.concurrency,
        salt=run_id,
        run_id=run_id,
    )
    load = LoadRun(client, plan.requests, options, on_record=on_record)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with closing(client):
        async with _stopped_by_interrupt(load) as stopped:
            records = await load.run()
    return Run(
        label=policy or plan.label,
        target=f"{plan.target.scheme}://{plan.target.authority}{plan.target.base_path}",
        model=model,
        policy=policy,
        started_at=started_at,
        duration_s=load.duration_s,
        slo=plan.slo,
        workload=plan.workload,
        load=plan.load,
        records=tuple(records),
        interrupted=stopped.is_set(),
        reconnects=client.reconnects,
    )


@asynccontextmanager
async def _stopped_by_interrupt(load: LoadRun) -> AsyncIterator[asyncio.Event]:
    """The first Ctrl-C ends the run in order; a second one, while that hangs, ends the program."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stopped.set()
        load.stop()

    with on_signals({signal.SIGINT: stop}):
        yield stopped


def _asking() -> ClientLimits:
    return ClientLimits(timeout_s=ASK_S_MAX)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Policy(msgspec.Struct):
    policy: str
    policies: list[str] = []


async def _first_model(plan: BenchPlan) -> str:
    with closing(LoadClient(plan.target, api_key=plan.api_key, limits=_asking())) as client:
        try:
            status, body = await client.fetch("GET", "/v1/models")
        except ConnectionError as error:
            raise SessionError(
                f"{plan.target.authority}: {error}. Remedy: start the server, or mend the URL."
            ) from None
    where = f"{plan.target.authority}{plan.target.base_path}/v1/models"
    if status == 401:
        raise SessionError(f"{where} answers 401. Remedy: give --api-key, or POINTSMAN_API_KEY.")
    listed = decoded_or_none(msgspec.json.Decoder(_Models).decode, body)
    if listed is None or not listed.data:
        raise SessionError(
            f"{where} lists no model. Remedy: give the URL of an OpenAI-compatible API, or --model."
        )
    return listed.data[0].id


@asynccontextmanager
async def _policy_put_back(admin: LoadClient, wanted: Sequence[str]) -> AsyncIterator[None]:
    """Raises UnknownPolicyError if there is none of a name in `wanted`."""
    before = await _policy_in_force(admin, wanted)
    try:
        yield
    finally:
        await _choose_policy(admin, before)


async def _policy_in_force(admin: LoadClient, wanted: Sequence[str]) -> str:
    """The policy there is. Raises UnknownPolicyError if there is none of a name in `wanted`."""
    status, body = await _ask_admin(admin, "GET", b"")
    found = decoded_or_none(msgspec.json.Decoder(_Policy).decode, body)
    if found is None:
        raise SessionError(
            f"{admin.target.authority}{POLICY_PATH} answers {status} and no policy. "
            f"Remedy: --admin-url must name the admin port of Pointsman (by default {ADMIN_PORT})."
        )
    for name in wanted:
        if found.policies and name not in found.policies:
            raise UnknownPolicyError(f"--policy: {unknown_name(name, found.policies)}")
    return found.policy


async def _choose_policy(admin: LoadClient, policy: str) -> None:
    status, body = await _ask_admin(admin, "PUT", msgspec.json.encode({"policy": policy}))
    if status >= 300:
        said = body[:300].decode(errors="replace")
        raise SessionError(f"policy {policy}: the admin port answers {status}: {said}")


async def _ask_admin(admin: LoadClient, method: str, body: bytes) -> tuple[int, bytes]:
    try:
        return await admin.fetch(method, POLICY_PATH, body)
    except ConnectionError as error:
        raise SessionError(
            f"admin port {admin.target.authority}: {error}. "
            "Remedy: start the server, or mend --admin-url."
        ) from None
