"""`pointsman up`: a whole cluster on one machine, without a GPU."""

import asyncio
import json
import shutil
import socket
import sys
from collections.abc import Callable, Sequence

import click
import msgspec
import uvloop
from rich.console import Console

from pointsman.cli.children import ChildOptions, EngineFailed, engines
from pointsman.cli.config import Admin, Config, Engine, Limits, Listen, Log
from pointsman.cli.messages import fail, printable_host, say, set_up_logging
from pointsman.cli.process import CannotStart, Process, listen_problem, settle
from pointsman.cli.shared_options import (
    ADMIN_URL,
    POLICY,
    POLICY_HELP,
    PORT,
    engine_speed_option,
    host_option,
    kv_blocks_option,
    model_name_option,
    profile_option,
    text_seed_option,
)
from pointsman.collectors.cancellation import first_error
from pointsman.core.policies import catalog
from pointsman.engines.adapters.address import is_loopback

READY_S_MAX = 30.0
"""For the engines to describe themselves; they listen already."""

CONNECTIONS_MAX = 4_096
"""A demonstration: within most machines' limit of file descriptors."""

PROMPT = "Which track?"


@click.command(
    epilog="""\b
Try it:
  pointsman up
  pointsman up --engines 8 --speed 10 --policy round_robin
  pointsman up --port 9000 --admin-port 9001 --access-log none

Exit codes: 0 stopped by SIGTERM or SIGINT, 2 wrong usage or a port in use.
"""
)
@click.option(
    "--engines",
    "count",
    type=click.IntRange(1, 256),
    metavar="N",
    default=4,
    help="Simulated engines, a process each.",
)
@host_option
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="Let everyone in who reaches that address: the demonstration has no keys.",
)
@click.option(
    "--port",
    type=PORT,
    metavar="PORT",
    default=Listen().port,
    help="Port of the API; 0 takes a free one.",
)
@click.option(
    "--admin-port",
    type=PORT,
    metavar="PORT",
    default=Admin().port,
    help="Port of the admin plane.",
)
@click.option(
    "--policy",
    type=POLICY,
    metavar="NAME",
    default=catalog.DEFAULT,
    help=POLICY_HELP,
)
@model_name_option
@profile_option
@engine_speed_option
@kv_blocks_option
@text_seed_option
@click.option(
    "--access-log",
    default="stdout",
    metavar="FILE",
    help="One JSON line a request: stdout, none, or a file.",
)
def up(
    count: int,
    host: str,
    is_open: bool,
    port: int,
    admin_port: int,
    policy: str,
    model: str,
    profile: str,
    speed: float,
    kv_blocks: int | None,
    seed: int,
    access_log: str,
) -> None:
    """Simulated engines, scheduler and gateway, in one go, on this machine.

    The engines are processes of their own that behave like vLLM, at the speed of the profile's
    GPU. Ctrl-C stops everything; running requests finish first, a second Ctrl-C cuts them off.
    """
    set_up_logging("warning")
    options = ChildOptions(model, profile, speed, kv_blocks, seed)
    config = Config(
        listen=Listen(host=host, port=port, open=is_open, reply_headers=True, cors_origins=("*",)),
        admin=Admin(port=admin_port),
        policy=policy,
        limits=Limits(connections_max=CONNECTIONS_MAX),
        log=Log(access=access_log),
    )
    if not (is_open or is_loopback(host)):
        fail(f"everyone who reaches {host} could use the engines; add --open if they may")
    if port == admin_port != 0:
        raise click.UsageError(f"--port and --admin-port are both {port}; give two.")
    _check_free("--port", host, port)
    _check_free("--admin-port", config.admin.host, admin_port)
    problem = ""
    try:
        uvloop.run(_run(config, count, options))
    except* (CannotStart, EngineFailed) as group:  # the engines' tasks may have wrapped it
        problem = str(first_error(group))
    except* KeyboardInterrupt:  # before the signal handlers were there
        pass
    if problem:
        fail(problem)


def _check_free(option: str, host: str, port: int) -> None:
    """Leave at once if the port is taken, not after the engines have started."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        fail(listen_problem(option, host, port, error))


async def _run(config: Config, count: int, options: ChildOptions) -> None:
    with Console(stderr=True).status(f"starting {count} engines") as status:

        def progress(done: int) -> None:
            status.update(f"starting engines: {done} of {count}")

        async with engines(count, options, progress) as urls:
            status.update("waiting until they have described themselves")
            await _serve(_with_engines(config, urls), options, status.stop)


async def _serve(config: Config, options: ChildOptions, ready: Callable[[], None]) -> None:
    async def announce(process: Process) -> None:
        settle()
        await _until_described(process)
        ready()
        _announce(config, process, options.model)

    await Process(config).run(announce)


def _with_engines(config: Config, urls: Sequence[str]) -> Config:
    return msgspec.structs.replace(config, engines=tuple(Engine(url=url) for url in urls))


async def _until_described(process: Process) -> None:
    """Return when every engine can take requests, or when that takes too long."""
    try:
        async with asyncio.timeout(READY_S_MAX):
            await process.fleet.until_described()
    except TimeoutError:
        for spec, problem in process.fleet.waiting:
            say(f"engine {spec.name} is not ready: {problem}")


def _announce(config: Config, process: Process, model: str) -> None:
    api = f"http://{printable_host(config.listen.host)}:{process.port}"
    admin = f"http://{printable_host(config.admin.host)}:{process.admin_port}"
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}]}
    elsewhere = "" if admin == ADMIN_URL else f" --admin-url {admin}"
    count = len(config.engines)
    engines = f"{count} engine{'s serve' if count > 1 else ' serves'}"
    say(f"{engines} '{model}' behind {api}/v1, policy {config.policy}. In another terminal:\n")
    say(f"  curl -i {api}/v1/chat/completions -H 'content-type: application/json' \\")
    say(f"    -d '{json.dumps(body)}'\n")
    say(f"why      {_program()} explain --prompt '{PROMPT}'{elsewhere}")
    say(f"state    {admin}/pointsman/v1/state")
    say(f"metrics  {admin}/metrics")
    say("stop     Ctrl-C")


def _program() -> str:
    """This program as it can be typed in another terminal: it may not be on the PATH."""
    called = sys.argv[0]
    if called == shutil.which("pointsman"):
        return "pointsman"
    return f"{sys.executable} -m pointsman" if called.endswith("__main__.py") else called
