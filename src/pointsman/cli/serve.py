"""`pointsman serve`: scheduler and gateway before given engines."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import msgspec
import uvloop

from pointsman.cli import config_file
from pointsman.cli.config import Admin, Config, Engine, Listen, Model
from pointsman.cli.config_file import openness_problem
from pointsman.cli.messages import fail, printable_host, reject, say, set_up_logging
from pointsman.cli.named_engines import engines_option, named_engines
from pointsman.cli.process import CannotStart, Process, settle
from pointsman.cli.reload import Source
from pointsman.cli.shared_options import (
    POLICY,
    POLICY_HELP,
    PORT,
    config_option,
)
from pointsman.cli.tokenizers import model_problems
from pointsman.cli.yaml_reader import Problem, Rejected
from pointsman.core.policies import catalog
from pointsman.engines.adapters.address import is_loopback


@click.command(
    epilog="""\b
Try it:
  pointsman serve --engine http://10.0.0.7:8000 --engine http://10.0.0.8:8000
  pointsman init pointsman.yaml      then edit it, and
  pointsman serve -c pointsman.yaml --policy least_request

Exit codes: 0 stopped by SIGTERM or SIGINT, 2 wrong usage or configuration, or a port in use.
"""
)
@config_option("YAML; `pointsman init` writes one that explains itself.")
@engines_option
@click.option(
    "--model", metavar="NAME", help="The model that the --engine URLs serve.  [default: ask them]"
)
@click.option(
    "--tokenizer",
    "tokenizers",
    multiple=True,
    metavar="MODEL=DIR",
    help="Know the model's prompts by the token ids of this folder's tokenizer.json and chat "
    "template; DIR 'engine' asks the engines. Repeatable.",
)
@click.option(
    "--policy",
    type=POLICY,
    metavar="NAME",
    help=f"{POLICY_HELP}  [default: {catalog.DEFAULT}]",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--open",
    is_flag=True,
    default=None,
    help="Let everyone in who reaches the port, without API keys.",
)
@click.option(
    "--port",
    type=PORT,
    metavar="PORT",
    help=f"Port of the OpenAI-compatible API; 0 takes a free one.  [default: {Listen().port}]",
)
@click.option(
    "--admin-port",
    type=PORT,
    metavar="PORT",
    help=f"Port of the admin plane.  [default: {Admin().port}]",
)
@click.option(
    "--access-log",
    metavar="FILE",
    help="One JSON line a request: stdout, none, or a file.  [default: stdout]",
)
def serve(
    file: Path | None,
    engines: tuple[str, ...],
    model: str | None,
    tokenizers: tuple[str, ...],
    **options: object,
) -> None:
    """Serve an OpenAI-compatible API in front of inference engines.

    Options win over the configuration file; --engine adds to its engines. SIGTERM and Ctrl-C
    drain: running requests finish, new ones are refused with 503. A second one cuts them off.
    """
    if file is None and not engines:
        fail("no engines: give --engine URL or -c FILE; `pointsman up` brings its own")
    added, models = named_engines(engines, model), tuple(map(_model, tokenizers))
    run(Source(file, partial(_configured, file, added, models, options)))


def run(source: Source) -> None:
    """Serve until stopped; exits with 2 if that cannot begin."""
    config = _read(source)
    set_up_logging(config.log.level)

    async def main() -> None:
        await Process(config, source).run(partial(_announce, source.file))

    try:
        uvloop.run(main())
    except CannotStart as error:
        fail(str(error))


class Contradicted(Rejected):
    """The file and the command line together make no sense; there is no line to point at."""


def _read(source: Source) -> Config:
    """The first configuration; leaves if there is none."""
    try:
        return source.read()
    except Contradicted as contradicted:
        fail(contradicted.problems[0].message)
    except Rejected as rejected:
        assert source.file is not None, "only a file has lines"
        reject(rejected.lines(source.file))


def _configured(
    file: Path | None,
    engines: tuple[Engine, ...],
    models: tuple[Model, ...],
    options: dict[str, object],
) -> Config:
    """The file, and what the command line says beside it or instead. Raises Rejected."""
    config = Config()
    if file is not None:
        config = config_file.load(file, os.environ, needs_engines=not engines, stands_alone=False)
    config = msgspec.structs.replace(
        _with_options(config, options),
        engines=(*config.engines, *engines),
        models=(*config.models, *models),
    )
    if problems := list(_contradictions(config)):
        raise Contradicted([Problem(1, 1, problem) for problem in problems])
    return config


def _contradictions(config: Config) -> Iterator[str]:
    if problem := openness_problem(config):
        yield f"{problem}, or --open"
    for _, problem in config_file.duplicates(config.engines):
        yield problem
    for _, problem in config_file.own_addresses(config):
        yield problem
    for _, problem in model_problems(config.models, opens=False):
        yield problem


def _model(option: str) -> Model:
    """What --tokenizer says."""
    name, _, tokenizer = option.partition("=")
    if not (name and tokenizer):
        fail(f"--tokenizer {option}: give MODEL=DIR, like llama=/models/llama, or MODEL=engine")
    return Model(name, tokenizer)


def _with_options(config: Config, options: dict[str, object]) -> Config:
    """`config` with what the command line says instead."""

    def given(**fields: str) -> dict[str, object]:
        return {name: options[o] for name, o in fields.items() if options.get(o) is not None}

    replace = msgspec.structs.replace
    return replace(
        config,
        listen=replace(config.listen, **given(host="host", port="port", open="open")),
        admin=replace(config.admin, **given(port="admin_port")),
        log=replace(config.log, **given(access="access_log")),
        **given(policy="policy"),
    )


async def _announce(file: Path | None, process: Process) -> None:
    settle()
    config = process.config
    listen = config.listen
    say(f"API    http://{printable_host(listen.host)}:{process.port}/v1  policy {config.policy}")
    say(
        f"admin  http://{printable_host(config.admin.host)}:{process.admin_port}/pointsman/v1/state"
    )
    say(f"keys   {_admission(config)}")
    if config.agents.listen:
        say(f"agents {config.agents.listen}")
    if not is_loopback(config.admin.host):
        say("anyone who reaches the admin plane can drain engines: it has no keys")
    if file is not None:
        say(f"file   {file}, read again when it changes and on SIGHUP")


def _admission(config: Config) -> str:
    count = len(config.keys) + len(config.listen.api_keys)
    if count:
        return f"{count}; who sends none of them gets 401"
    if is_loopback(config.listen.host):
        return "none: every user of this machine gets in; `pointsman keys new NAME` makes one"
    return "none: anyone who reaches this port can use the engines, as 'open' says"
