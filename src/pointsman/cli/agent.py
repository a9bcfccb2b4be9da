"""`pointsman agent`: beside an engine or several, tells the scheduler of them."""

import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
import uvloop

from pointsman.agent import Agent, AgentOptions, FrontOptions, LocalEngine
from pointsman.cli.children import die_with_parent
from pointsman.cli.control_address import UnusableControl, control_address, read_secret
from pointsman.cli.messages import NAME_RULE, fail, set_up_logging
from pointsman.cli.named_engines import ENGINE_KEY_VARIABLE, check_addresses, engine_key
from pointsman.cli.shared_options import POSITIVE, Number
from pointsman.cli.signals import on_signals
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NAME_PATTERN, NodeName
from pointsman.core.limits import CONCURRENCY_MAX
from pointsman.engines.adapters.address import (
    PORT_MAX,
    kv_events_problem,
    one_spelling,
    url_problem,
)
from pointsman.wire.control import ENGINES_MAX, ControlAddress

_DEFAULTS = AgentOptions(name="", scheduler=ControlAddress())
_FRONT = FrontOptions()
_HEARTBEAT_S = Number(min=0.05, max=2)


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

\b
With --run the agent starts the engine itself, again when it dies, and ends it with itself:
  pointsman agent --scheduler HOST:PORT --engine http://127.0.0.1:8000 --run -- \\
      vllm serve MODEL --port 8000
SIGTERM: the scheduler sends nothing new, what runs finishes within --drain, the engine ends.

With --front the gateway's requests come through the agent, for 0.8 ms of CPU each: those that the
engine cannot start wait in order of urgency, short ones past long ones, and go back to be placed
elsewhere when they would wait too long. Worth it where several gateways share an engine.

Exit codes: 0 stopped by SIGTERM or SIGINT, 1 the engine does not stay up, 2 wrong usage or a port
in use.
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
    help="An engine, as this machine reaches it; repeatable. Its API key, if it asks for one, is "
    f"the environment's {ENGINE_KEY_VARIABLE}.",
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
    show_default=False,
    help="The secret that the scheduler has, too.  [default: $POINTSMAN_AGENT_SECRET]",
)
@click.option("--pool", metavar="NAME", default="default", help="The engines' pool.")
@click.option("--zone", metavar="NAME", default="", show_default=False, help="The engines' zone.")
@click.option(
    "--concurrency-max",
    type=click.IntRange(1, CONCURRENCY_MAX),
    metavar="N",
    help="Requests in flight on each engine at once.  [default: 256]",
)
@click.option(
    "--kv-events",
    metavar="WHERE",
    default="auto",
    help="KV-cache events: auto asks the engine, off, or tcp://HOST:PORT.",
)
@click.option(
    "--heartbeat",
    "heartbeat_s",
    type=_HEARTBEAT_S,
    metavar="SECONDS",
    default=_DEFAULTS.heartbeat_s,
    help="Between heartbeats; up to 2 s while they are not acknowledged in time.",
)
@click.option(
    "--delta-blocks",
    type=POSITIVE,
    metavar="N",
    default=_DEFAULTS.delta_blocks,
    help="Changes of an engine's cache that are told at once, not with the next heartbeat.",
)
@click.option(
    "--front",
    "front_port",
    type=click.IntRange(1, PORT_MAX),
    metavar="PORT",
    help="Relay requests to the engine from this port; to the next engine from the next port.",
)
@click.option(
    "--front-host",
    metavar="ADDRESS",
    default=_FRONT.host,
    help="Address that --front listens on. Who reaches it needs no key of the engine's.",
)
@click.option(
    "--front-running",
    type=POSITIVE,
    metavar="N",
    default=_FRONT.running_max,
    help="Requests let through to an engine at once; fewer while some wait in it.",
)
@click.option(
    "--front-waiting",
    type=click.IntRange(min=0),
    metavar="N",
    default=_FRONT.waiting_max,
    help="Requests held back before an engine; more go back at once.",
)
@click.option(
    "--front-wait",
    type=Number(min=0, max=600),
    metavar="SECONDS",
    default=_FRONT.wait_s_max,
    help="How long one of them may wait before it goes back.",
)
@click.option(
    "--gpu",
    "gpus",
    type=click.IntRange(min=0),
    metavar="N",
    multiple=True,
    help="A GPU of the engines, as nvidia-smi counts them; repeatable.  [default: all]",
)
@click.option("--run", is_flag=True, help="Run COMMAND as the engine, and keep it running.")
@click.option(
    "--drain",
    "drain_s",
    type=Number(min=0, max=3_600),
    metavar="SECONDS",
    default=_DEFAULTS.drain_s,
    help="For requests to finish before the engine of --run is ended.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least level of messages on stderr.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def agent(**given: Any) -> None:
    """Watch engines from beside them, and tell the scheduler.

    Health, load and the contents of the KV cache are asked for on the engine's own machine, and go
    to the scheduler as small heartbeats: worth it with many engines, across networks where their
    metrics and KV events are not to be reached, and where GPU signals count. The engines need not
    be in the scheduler's configuration. If the agent dies, the scheduler looks for itself again.
    """
    asked = AgentCommand(**given)
    options = _options(asked)
    set_up_logging(asked.log_level)
    if failed := uvloop.run(_run(options)):
        fail(failed, code=1)


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command's options as given."""

    scheduler: str
    urls: tuple[str, ...]
    advertise: str | None
    name: str | None
    secret_file: str
    pool: str
    zone: str
    concurrency_max: int | None
    kv_events: str
    heartbeat_s: float
    delta_blocks: int
    front_port: int | None
    front_host: str
    front_running: int
    front_waiting: int
    front_wait: float
    gpus: tuple[int, ...]
    run: bool
    drain_s: float
    log_level: str
    command: tuple[str, ...]


def _options(asked: AgentCommand) -> AgentOptions:
    """What the agent goes by. Leaves for what cannot be."""
    name = asked.name or _own_name()
    try:
        address, secret = control_address(asked.scheduler), read_secret(asked.secret_file)
    except UnusableControl as unusable:
        fail(str(unusable))
    if not re.fullmatch(NAME_PATTERN, name):
        fail(f"--name {name}: {NAME_RULE}")
    if asked.run is not bool(asked.command):
        fail("--run and a command belong together: pointsman agent … --run -- COMMAND ARGUMENTS")
    return AgentOptions(
        name=name,
        scheduler=address,
        secret=secret,
        engines=tuple(_engines(name, asked)),
        heartbeat_s=asked.heartbeat_s,
        delta_blocks=asked.delta_blocks,
        gpus=asked.gpus,
        drain_s=asked.drain_s,
    )


async def _run(options: AgentOptions) -> str:
    """Why it has ended by itself; empty if it was told to."""
    running = Agent(options, prepare=die_with_parent(os.getpid()))
    with on_signals({signal.SIGTERM: running.stop, signal.SIGINT: running.stop}):
        try:
            await running.run()
        except (OSError, UnicodeError) as error:  # the latter for an empty label: a..b
            fail(f"--front: {getattr(error, 'strerror', None) or error}")
    return running.failed


def _engines(name: str, asked: AgentCommand) -> Iterator[LocalEngine]:
    urls = asked.urls
    if len(urls) > ENGINES_MAX:
        fail(f"{len(urls)} engines; an agent has at most {ENGINES_MAX}")
    if (first := asked.front_port) is not None and first + len(urls) - 1 > PORT_MAX:
        fail(f"--front {first}: there is no port {first + len(urls) - 1} for the last engine")
    if asked.command and len(urls) != 1:
        fail("--run is for one engine: start an agent for each")
    if problem := kv_events_problem(asked.kv_events):
        fail(f"--kv-events: {problem}")
    check_addresses(urls)
    for url, times in Counter(map(one_spelling, urls)).items():
        if times > 1:
            fail(f"--engine: {url} is given twice")
    if len(urls) > 1 and not re.fullmatch(NAME_PATTERN, f"{name}-{len(urls)}"):
        fail(f"--name {name}: its engines get -1, -2 … behind it. {NAME_RULE}")
    for index, url in enumerate(urls):
        spec = NodeSpec(
            name=NodeName(name if len(urls) == 1 else f"{name}-{index + 1}"),
            url=_advertised(one_spelling(url), asked.advertise),
            pool=asked.pool,
            zone=asked.zone,
            concurrency_max=asked.concurrency_max,
        )
        yield LocalEngine(
            url=one_spelling(url),
            spec=spec,
            kv_events=asked.kv_events,
            api_key=engine_key(),
            front=_front(index, asked),
            command=asked.command,
        )


def _front(index: int, asked: AgentCommand) -> FrontOptions | None:
    if asked.front_port is None:
        return None
    return FrontOptions(
        host=asked.front_host,
        port=asked.front_port + index,
        running_max=asked.front_running,
        waiting_max=asked.front_waiting,
        wait_s_max=asked.front_wait,
    )


def _advertised(url: str, host: str | None) -> str:
    """The engine's URL as the gateway reaches it."""
    if host is None:
        return url
    port = urlsplit(url).port
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    literal = f"[{bare}]" if ":" in bare else bare
    advertised = f"http://{literal}:{port}" if port else f"http://{literal}"
    if problem := url_problem(advertised):
        fail(f"--advertise: {problem}")
    return one_spelling(advertised)


def _own_name() -> str:
    """The host's name, as far as it may be an engine's."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63].lstrip("._-") or "agent"
