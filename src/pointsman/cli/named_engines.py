"""Engines that are named on a command line, and the key that they ask for."""

import os
from collections.abc import Sequence

import click

from pointsman.cli.config import Engine
from pointsman.cli.messages import fail
from pointsman.engines.adapters.address import url_problem
from pointsman.engines.adapters.keys import key_problem

ENGINE_KEY_VARIABLE = "POINTSMAN_ENGINE_KEY"

engines_option = click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="URL",
    help="An engine; repeatable. Its API key, if it asks for one, is the environment's "
    f"{ENGINE_KEY_VARIABLE}.",
)


def named_engines(urls: Sequence[str], model: str | None) -> tuple[Engine, ...]:
    """What is configured of them; `model` is what they serve, if that is said. Leaves for an
    address or a key that cannot be."""
    check_addresses(urls)
    served, key = (model,) if model else (), engine_key()
    return tuple(Engine(url=url, models=served, api_key=key) for url in urls)


def check_addresses(urls: Sequence[str]) -> None:
    """Leaves for one that cannot be an engine's."""
    for url in urls:
        if problem := url_problem(url):
            fail(f"--engine: {problem}")


def engine_key() -> str:
    """What engines that are named on the command line are sent. Leaves if nothing could be."""
    key = os.environ.get(ENGINE_KEY_VARIABLE, "")
    if problem := key_problem(key):
        raise click.UsageError(f"{ENGINE_KEY_VARIABLE}: {problem}")
    return key
