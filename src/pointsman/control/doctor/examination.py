"""A whole cluster examined: everything looked at, at once, within a minute; then judged."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from pointsman.collectors.client import EngineClient, new_session
from pointsman.collectors.event_socket import event_sockets
from pointsman.control.doctor import probes
from pointsman.control.doctor.engine_findings import engine_findings
from pointsman.control.doctor.engine_look import EngineLooker
from pointsman.control.doctor.event_findings import event_findings
from pointsman.control.doctor.finding import Diagnosis, EngineSummary, Finding, worst_first
from pointsman.control.doctor.fleet_findings import fleet_findings, same_peer, suspects
from pointsman.control.doctor.gateway_findings import gateway_findings
from pointsman.control.doctor.gateway_look import look_at_admin, look_at_gateway
from pointsman.control.doctor.seen import EngineSeen, GatewaySeen, ProbeSeen, StateSeen, Target
from pointsman.engines.adapters import EngineKeys, EngineTrouble
from pointsman.engines.tokenizer import ModelTokenizer

RUN_S_MAX = 50.0
"""For all looks together; what is not done by then is told as not reached."""

AT_ONCE_MAX = 96
"""Engines under examination: descriptors and CPU of this machine."""

SUSPECTS_MAX = 64
"""Pairs of engines that are asked whether they are one."""

Progress = Callable[[int, int], None]
"""Engines done, of how many."""


NO_KEYS = EngineKeys()


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be examined. Empty URLs are not looked at; without `targets` the engines are
    those that the admin plane names.

    `tokenizers` by model: None asks the engine. `wanted` models must be served by someone.
    """

    targets: tuple[Target, ...] = ()
    tokenizers: Mapping[str, ModelTokenizer | None] = {}
    wanted: tuple[str, ...] = ()
    gateway_url: str = ""
    gateway_key: str = ""
    engine_keys: EngineKeys = NO_KEYS
    admin_url: str = ""
    probing: bool = True
    run_s_max: float = RUN_S_MAX

    def __repr__(self) -> str:
        """Without the key."""
        return f"<Scope of {len(self.targets)} engines>"


async def examine(scope: Scope, on_progress: Progress | None = None) -> Diagnosis:
    """Look at everything and judge it. Takes `run_s_max` at most, and a moment."""
    deadline_s = asyncio.get_running_loop().time() + scope.run_s_max
    async with _looker(scope) as looker, new_session(scope.engine_keys) as session:
        admin = await _look_at_admin(session, scope, deadline_s)
        if not scope.targets and admin.state is not None:
            scope = msgspec.structs.replace(scope, targets=_targets_of(admin.state))
        async with asyncio.TaskGroup() as tasks:
            through = tasks.create_task(_look_at_gateway(scope, admin, deadline_s))
            engines = await _look_at_all(looker, scope, deadline_s, on_progress)
        same = await _same(session, engines, deadline_s, probing=scope.probing)
    return diagnose(scope, engines, through.result(), same)


def diagnose(
    scope: Scope,
    engines: Sequence[EngineSeen],
    gateway: GatewaySeen,
    same: Sequence[tuple[int, int]],
) -> Diagnosis:
    """The judgement alone."""
    findings: list[Finding] = []
    for engine in engines:
        findings += [*engine_findings(engine), *event_findings(engine)]
    findings += fleet_findings(engines, same, scope.wanted)
    findings += gateway_findings(gateway, [engine.target for engine in engines], scope.wanted)
    return Diagnosis(tuple(map(_summary, engines)), worst_first(findings))


@asynccontextmanager
async def _looker(scope: Scope) -> AsyncIterator[EngineLooker]:
    keys = scope.engine_keys
    async with (
        event_sockets() as sockets,
        new_session(keys) as session,
        new_session(keys, reuses=False) as fresh,
    ):
        yield EngineLooker(
            session=session,
            fresh=fresh,
            sockets=sockets,
            tokenizers=scope.tokenizers,
            probing=scope.probing,
        )


async def _look_at_all(
    looker: EngineLooker,
    scope: Scope,
    deadline_s: float,
    on_progress: Progress | None,
) -> list[EngineSeen]:
    free = asyncio.Semaphore(AT_ONCE_MAX)
    done = 0

    async def look_at(target: Target) -> Sequence[EngineSeen]:
        nonlocal done
        try:
            async with asyncio.timeout_at(deadline_s), free:
                seen = await looker.look_at_nodes(target)
        except TimeoutError:
            trouble = f"it could not be examined within {scope.run_s_max:g} s"
            seen = [EngineSeen(target=target, trouble=trouble)]
        done += 1
        if on_progress is not None:
            on_progress(done, len(scope.targets))
        return seen

    async with asyncio.TaskGroup() as tasks:
        looks = [tasks.create_task(look_at(target)) for target in scope.targets]
    return [seen for look in looks for seen in look.result()]


async def _look_at_admin(
    session: aiohttp.ClientSession, scope: Scope, deadline_s: float
) -> GatewaySeen:
    """The gateway as far as its admin plane tells."""
    if not scope.admin_url:
        return GatewaySeen()
    state, trouble = None, ""
    try:
        async with asyncio.timeout_at(deadline_s):
            state = await look_at_admin(session, scope.admin_url)
    except (EngineTrouble, TimeoutError) as error:
        trouble = str(error) or "no answer in time"
    return GatewaySeen(admin_url=scope.admin_url, admin_trouble=trouble, state=state)


def _targets_of(state: StateSeen) -> tuple[Target, ...]:
    """The gateway's engines, each as the gateway has it: ranks that it has not split stay one."""
    return tuple(
        Target(name=node.name, url=node.url.rstrip("/"), ranks="off") for node in state.nodes
    )


async def _look_at_gateway(scope: Scope, admin: GatewaySeen, deadline_s: float) -> GatewaySeen:
    """Look in a session of its own: the key is for the gateway, and engines must not get it."""
    if not scope.gateway_url:
        return admin
    wanted = next(iter(scope.wanted), None)
    headers = {"Authorization": f"Bearer {scope.gateway_key}"} if scope.gateway_key else {}
    try:
        async with (
            asyncio.timeout_at(deadline_s),
            aiohttp.ClientSession(headers=headers) as session,
        ):
            return await look_at_gateway(
                session, admin, scope.gateway_url, probing=scope.probing, wanted=wanted
            )
    except TimeoutError:
        return msgspec.structs.replace(admin, url=scope.gateway_url, trouble="no answers in time")


async def _same(
    session: aiohttp.ClientSession,
    engines: Sequence[EngineSeen],
    deadline_s: float,
    *,
    probing: bool,
) -> list[tuple[int, int]]:
    """The pairs that are one engine."""
    found = []
    for first, second in suspects(engines)[:SUSPECTS_MAX]:
        one, other = engines[first], engines[second]
        if not probing or one.probe is None or not one.probe.cached:
            is_one = same_peer(one, other)
        else:
            is_one = await _has_cached(session, other, one.probe, deadline_s)
        if is_one:
            found.append((first, second))
    return found


async def _has_cached(
    session: aiohttp.ClientSession, engine: EngineSeen, probe: ProbeSeen, deadline_s: float
) -> bool:
    """Whether what another engine was sent is in the cache of this one."""
    client = EngineClient(session, engine.target.url)
    try:
        async with asyncio.timeout_at(deadline_s):
            usage = await probes.once(client, model=probe.model, prompt=probe.prompt)
    except (EngineTrouble, TimeoutError):
        return False
    return bool(usage.cached_tokens)


def _summary(engine: EngineSeen) -> EngineSummary:
    facts = engine.described.facts if engine.described is not None else None
    predicted = engine.probe.predicted(facts.block_tokens) if engine.probe and facts else 0
    cached = engine.probe.cached if engine.probe is not None else None
    return EngineSummary(
        name=engine.target.name,
        url=engine.target.url,
        kind=facts.kind if facts else "unknown",
        version=facts.version if facts else "",
        models=tuple(card.name for card in facts.models) if facts else (),
        block_tokens=facts.block_tokens if facts else None,
        kv_blocks=facts.kv_blocks if facts else None,
        latency_s=engine.link.latency_s if engine.link else None,
        cached_share=cached / predicted if cached is not None and predicted else None,
        events=", ".join(each.source.endpoint for each in engine.events),
    )
