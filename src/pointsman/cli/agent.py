"""`pointsman agent`: beside an engine or several, tells the scheduler of them."""

import asyncio
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import click
import uvloop

from pointsman.agent import Agent, AgentOptions, EngineOptions, SchedulerAddress
from pointsman.cli.control_address import UnusableControl, control_address, read_secret
from pointsman.cli.process import set_up_logging
from pointsman.cli.serve import fail
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName
from pointsman.engines.adapters.address import kv_events_problem, url_problem
from pointsman.wire.control import ENGINES_MAX, NAME_PATTERN

_HEARTBEAT_S = click.FloatRange(min=0.05, max=2)


@click.command(
    epilog="""\b
Try it, in three terminals:
  pointsman engine --port 8001 --kv-events-port 5557
  pointsman agent --scheduler 127.0.0.1:8090 --engine http://127.0.0.1:8001
  pointsman serve -c FILE      with these two lines in it:
                                 agents: {listen: "127.0.0.1:8090"}
                                 engines: []

Over a network both sides need one secret (`openssl rand -hex 32 > FILE`): --secret-file here,
agents.secret_file there. It proves who is who; what is sent after that is not encrypted.

Exit codes: 0 stopped by SIGTERM or SIGINT, 2 wrong usage.
"""
)
@click.option(
    "--scheduler",
    metavar="HOST:PORT|PATH",
    required=True,
    help="Where the scheduler listens for agents: its agents.listen.",
)
@click.option(
    "--engine",
    "urls",
    metavar="URL",
    multiple=True,
    required=True,
    help="An engine, as this machine reaches it; repeatable.",
)
@click.option(
    "--advertise",
    metavar="HOST",
    help="Host by which the gateway reaches the engines.  [default: as in --engine]",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The agent's name, and its engines': NAME, or NAME-1, NAME-2 …  [default: the host's]",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    default="",
    help="The secret that the scheduler has, too.  [default: $POINTSMAN_AGENT_SECRET]",
)
@click.option("--pool", metavar="NAME", default="default", help="The engines' pool.")
@click.option("--zone", metavar="NAME", default="", help="The engines' zone.")
@click.option(
    "--concurrency-max",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Requests in flight on each engine at once.  [default: 256]",
)
@click.option(
    "--kv-events",
    metavar="WHERE",
    default="auto",
    show_default=True,
    help="KV-cache events: auto asks the engine, off, or tcp://HOST:PORT.",
)
@click.option(
    "--heartbeat",
    "heartbeat_s",
    type=_HEARTBEAT_S,
    metavar="SECONDS",
    default=0.5,
    show_default=True,
    help="Between heartbeats; up to 2 s while they are not acknowledged in time.",
)
@click.option(
    "--delta-blocks",
    type=click.IntRange(min=1),
    metavar="N",
    default=16,
    show_default=True,
    help="Changes of an engine's cache that are told at once, not with the next heartbeat.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level of messages on stderr.",
)
def agent(
    scheduler: str,
    urls: tuple[str, ...],
    advertise: str | None,
    name: str | None,
    secret_file: str,
    heartbeat_s: float,
    delta_blocks: int,
    log_level: str,
    **engine: object,
) -> None:
    """Watch engines from beside them, and tell the scheduler.

    Health, load and the contents of the KV cache are asked for on the engine's own machine, and go
    to the scheduler as small heartbeats: worth it with many engines, across networks where their
    metrics and KV events are not to be reached, and where GPU signals count. The engines need not
    be in the scheduler's configuration. If the agent dies, the scheduler looks for itself again.
    """
    name = name or _own_name()
    try:
        address, secret = control_address(scheduler), read_secret(secret_file)
    except UnusableControl as unusable:
        fail(str(unusable))
    if not re.fullmatch(NAME_PATTERN, name):
        fail(f"--name {name}: letters, digits and . _ - are allowed, 63 of them")
    options = AgentOptions(
        name=name,
        scheduler=SchedulerAddress(address.host, address.port, address.path),
        secret=secret,
        engines=tuple(_engines(urls, name, advertise, engine)),
        heartbeat_s=heartbeat_s,
        heartbeat_s_max=2.0,
        delta_blocks=delta_blocks,
    )
    set_up_logging(log_level)
    uvloop.run(_run(options))


async def _run(options: AgentOptions) -> None:
    running = Agent(options)
    with _on_signals(running):
        await running.run()


def _engines(
    urls: Sequence[str], name: str, advertise: str | None, given: dict[str, object]
) -> Iterator[EngineOptions]:
    if len(urls) > ENGINES_MAX:
        fail(f"{len(urls)} engines; an agent has at most {ENGINES_MAX}")
    kv_events = str(given.pop("kv_events"))
    if problem := kv_events_problem(kv_events):
        fail(f"--kv-events: {problem}")
    for number, url in enumerate(urls, 1):
        if problem := url_problem(url):
            fail(f"--engine: {problem}")
        spec = NodeSpec(
            name=NodeName(name if len(urls) == 1 else f"{name}-{number}"),
            url=_advertised(url.rstrip("/"), advertise),
            **given,  # type: ignore[arg-type]  # as click has checked them
        )
        yield EngineOptions(url=url.rstrip("/"), spec=spec, kv_events=kv_events)


def _advertised(url: str, host: str | None) -> str:
    """The engine's URL as the gateway reaches it."""
    if host is None:
        return url
    port = urlsplit(url).port
    literal = f"[{host}]" if ":" in host else host
    advertised = f"http://{literal}:{port}" if port else f"http://{literal}"
    if problem := url_problem(advertised):
        fail(f"--advertise: {problem}")
    return advertised


def _own_name() -> str:
    """The host's name, as far as it may be an engine's."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63].lstrip("._-") or "agent"


@contextmanager
def _on_signals(running: Agent) -> Iterator[None]:
    """Say goodbye on SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
