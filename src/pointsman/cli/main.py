"""The `pointsman` command. Subcommands are imported when they are asked for."""

import difflib
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import click

from pointsman import __version__, code_form


class _Lazy(NamedTuple):
    """Where a command is, and the line that `--help` shows without importing it."""

    target: str
    summary: str


_COMMANDS: Mapping[str, _Lazy] = MappingProxyType(
    {
        "up": _Lazy("pointsman.cli.up:up", "Simulated engines, scheduler and gateway, in one go."),
        "serve": _Lazy(
            "pointsman.cli.serve:serve", "Scheduler and gateway in front of your engines."
        ),
        "engine": _Lazy("pointsman.cli.engine:engine", "One simulated engine."),
        "agent": _Lazy(
            "pointsman.cli.agent:agent", "Beside an engine: tells the scheduler how it fares."
        ),
        "explain": _Lazy("pointsman.cli.explain:explain", "Why a request went where it went."),
        "replay": _Lazy(
            "pointsman.cli.replay:replay", "Compare policies on a trace, on virtual time."
        ),
        "plan": _Lazy(
            "pointsman.cli.plan:plan", "Lay a model out over servers that are too small for it."
        ),
        "bench": _Lazy("pointsman.cli.bench:bench", "Load a server and measure what clients see."),
        "compare": _Lazy("pointsman.cli.bench:compare", "Compare runs that `bench` wrote."),
        "check": _Lazy("pointsman.cli.check:check", "Check a configuration file."),
        "doctor": _Lazy(
            "pointsman.cli.doctor:doctor", "What is wrong with a live cluster, and what helps."
        ),
        "keys": _Lazy("pointsman.cli.keys:keys", "Make API keys and their hashes."),
        "init": _Lazy("pointsman.cli.check:init", "Write a configuration that explains itself."),
    }
)


class _LazyGroup(click.Group):
    """Shows its commands from the table, and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS:
            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(_COMMANDS)}."
            ctx.fail(f"No such command '{args[0]}'. {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = _COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), lazy.target
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in _COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="Exit codes: 0 done, 1 problems found, 2 wrong usage or configuration.",
)
@click.version_option(
    __version__, prog_name="pointsman", message=f"%(prog)s, version %(version)s, {code_form()}"
)
def main() -> None:
    """Scheduler and gateway for clusters of LLM inference engines.

    \b
    Begin without a GPU:      pointsman up
    or with your own engines: pointsman serve --engine http://HOST:8000
    """
