"""Options and types of options that several commands have, declared once."""

import re
from collections.abc import Callable, Iterable
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from pointsman.core.policies import catalog
from pointsman.engines.compute_model import PROFILE_DEFAULT, PROFILES
from pointsman.traffic.slo import Slo

ADMIN_HOST, ADMIN_PORT = "127.0.0.1", 8081
ADMIN_URL = f"http://{ADMIN_HOST}:{ADMIN_PORT}"
"""Of a process that is not configured otherwise."""


class Number(click.FloatRange):
    """A number, within bounds if any are given; click takes nan for one that is within all."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is no number that can be reckoned with.", param, ctx)
        return number


PORT = click.IntRange(0, 65_535)
POSITIVE = click.IntRange(min=1)
ABOVE_ZERO = Number(min=0, min_open=True)
POLICY = click.Choice(catalog.names())
POLICY_HELP = f"How a node is chosen: {', '.join(catalog.names())}."

Command = TypeVar("Command", bound=Callable[..., Any])


# --- of what serves -----------------------------------------------------------------------


def config_option(use: str) -> Callable[[Command], Command]:
    """A configuration file, and what it is for."""
    return click.option(
        "-c", "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help=use
    )


def admin_url_option(use: str) -> Callable[[Command], Command]:
    """A running process's admin plane, and what it is for."""
    return click.option("--admin-url", metavar="URL", default=ADMIN_URL, help=use)


def http_url(option: str, given: str) -> str:
    """The address of a server, with its scheme. Raises UsageError for what is none."""
    url = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise click.UsageError(f"{option}: '{given}': {error}.") from None
    if not is_one or re.search(r"[\x00-\x20\x7f]", url):
        raise click.UsageError(f"{option}: {given!r} is no address like {ADMIN_URL}.")
    return url


# --- of simulated engines -----------------------------------------------------------------

host_option = click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address to listen on.",
)
model_name_option = click.option(
    "--model", metavar="NAME", default="sim", help="The model's name at the API."
)
profile_option = click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    metavar="NAME",
    default=PROFILE_DEFAULT,
    help=f"What model on what GPU (step times, KV capacity, limits): {', '.join(PROFILES)}.",
)
kv_blocks_option = click.option(
    "--kv-blocks",
    type=POSITIVE,
    metavar="N",
    help="KV blocks of an engine.  [default: the profile's]",
)
engine_speed_option = click.option(
    "--speed",
    type=ABOVE_ZERO,
    metavar="X",
    default=1.0,
    help="Engines X times faster.",
)
text_seed_option = click.option(
    "--seed", type=int, metavar="N", default=0, help="Of the generated text."
)


# --- of measurements ----------------------------------------------------------------------


def names_in(option: str, given: str) -> tuple[str, ...]:
    """The names of a list like `a,b`. Raises UsageError if there is none."""
    names = tuple(filter(None, (name.strip() for name in given.split(","))))
    if not names:
        raise click.UsageError(f"{option} names none. Remedy: give one.")
    return names


def workload_option(names: Iterable[str], *, otherwise: str = "") -> Callable[[Command], Command]:
    """Made-up requests, and what is sent without."""
    return click.option(
        "--workload",
        type=click.Choice(list(names)),
        metavar="NAME",
        help=f"Make requests up: {', '.join(names)}.{otherwise}",
    )


def limit_option(made_up: int, *other_names: str) -> Callable[[Command], Command]:
    """How many requests; `made_up` are sent of those that no trace has."""
    return click.option(
        "--limit",
        *other_names,
        "limit",
        type=POSITIVE,
        metavar="N",
        help=f"The first N requests.  [default: all of a trace, or {made_up:,} made up]",
    )


_SLO = Slo()
_SLO_OPTIONS = (
    click.option(
        "--slo-ttft-s",
        type=ABOVE_ZERO,
        metavar="SECONDS",
        default=_SLO.ttft_s,
        help="Good is a first token within this …",
    ),
    click.option(
        "--slo-ttft-s-per-token",
        type=Number(min=0),
        metavar="SECONDS",
        default=_SLO.ttft_s_per_token,
        help="… and this for each prompt token,",
    ),
    click.option(
        "--slo-tpot-s",
        type=ABOVE_ZERO,
        metavar="SECONDS",
        default=_SLO.tpot_s,
        help="and every further token within this on average.",
    ),
)


def slo_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What goodput counts; the command is given it as `slo`."""

    @wraps(command)
    def with_slo(
        *, slo_ttft_s: float, slo_ttft_s_per_token: float, slo_tpot_s: float, **given: Any
    ) -> Any:
        slo = Slo(ttft_s=slo_ttft_s, ttft_s_per_token=slo_ttft_s_per_token, tpot_s=slo_tpot_s)
        return command(slo=slo, **given)

    for option in reversed(_SLO_OPTIONS):
        with_slo = option(with_slo)
    return with_slo


window_option = click.option(
    "--window-s", type=Number(), nargs=2, metavar="A B", help="Only arrivals from second A to B."
)
json_option = click.option(
    "--json", "json_file", metavar="FILE", help="Write the numbers; - is stdout."
)
html_option = click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page with plots.",
)
