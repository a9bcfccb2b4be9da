"""`pointsman up`: a whole cluster on one machine, without a GPU."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence

import click
import msgspec
import uvloop
from rich.console import Console

from pointsman.cli.children import ChildOptions, EngineFailed, engines
from pointsman.cli.config import Admin, Config, Engine, Limits, Listen, Log
from pointsman.cli.process import CannotStart, Process, set_up_logging
from pointsman.cli.serve import POLICY, PORT, fail, printable_host, say
from pointsman.core.policies import catalog
from pointsman.engines.compute_model import PROFILES

READY_S_MAX = 30.0
"""For the engines to describe themselves; they listen already."""

CONNECTIONS_MAX = 4_096
"""A demonstration: within most machines' limit of file descriptors."""


@click.command()
@click.option(
    "--engines",
    "count",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Simulated engines, a process each.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=PORT, default=8080, show_default=True, help="Port of the API.")
@click.option(
    "--admin-port", type=PORT, default=8081, show_default=True, help="Port of the admin plane."
)
@click.option("--policy", type=POLICY, default=catalog.DEFAULT, show_default=True)
@click.option("--model", default="sim", show_default=True, help="The model's name.")
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    help="What model on what GPU.  [default: 8b-h100]",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Divides all engine times.",
)
@click.option(
    "--kv-blocks", type=click.IntRange(1), help="KV blocks an engine.  [default: the profile's]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the generated text.")
@click.option(
    "--access-log",
    default="stdout",
    show_default=True,
    metavar="FILE",
    help="One JSON line a request: stdout, none, or a file.",
)
def up(
    count: int,
    host: str,
    port: int,
    admin_port: int,
    policy: str,
    model: str,
    profile: str | None,
    speed: float,
    kv_blocks: int | None,
    seed: int,
    access_log: str,
) -> None:
    """Simulated engines, scheduler and gateway, in one go, on this machine.

    Exit codes: 0 stopped, 2 wrong usage or a port in use.
    """
    set_up_logging("warning")
    options = ChildOptions(model, profile, speed, kv_blocks, seed)
    config = Config(
        listen=Listen(host=host, port=port, reply_headers=True, cors_origins=("*",)),
        admin=Admin(port=admin_port),
        policy=policy,
        limits=Limits(connections_max=CONNECTIONS_MAX),
        log=Log(access=access_log),
    )
    _check_free("--port", host, port)
    _check_free("--admin-port", config.admin.host, admin_port)
    try:
        uvloop.run(_run(config, count, options))
    except (CannotStart, EngineFailed) as error:
        fail(str(error))
    except KeyboardInterrupt:  # before the signal handlers were there
        pass


def _check_free(option: str, host: str, port: int) -> None:
    """Leave at once if the port is taken, not after the engines have started."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror}; choose another {option}")


async def _run(config: Config, count: int, options: ChildOptions) -> None:
    with Console(stderr=True).status(f"starting {count} engines") as status:

        def progress(done: int) -> None:
            status.update(f"starting engines: {done} of {count}")

        async with engines(count, options, progress) as urls:
            status.update("waiting until they have described themselves")
            await _serve(_with_engines(config, urls), options, status.stop)


async def _serve(config: Config, options: ChildOptions, ready: Callable[[], None]) -> None:
    async def announce(process: Process) -> None:
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
    body = {"model": model, "messages": [{"role": "user", "content": "Which track?"}]}
    say(f"{len(config.engines)} engines serve '{model}' behind {api}/v1, policy {config.policy}\n")
    say(f"  curl -i {api}/v1/chat/completions \\")
    say(f"       -H 'content-type: application/json' -d '{json.dumps(body)}'\n")
    say(f"why    pointsman explain --prompt 'Which track?' --admin-url {admin}")
    say(f"state  {admin}/pointsman/v1/state   metrics {admin}/metrics")
    say("stop   Ctrl-C")
