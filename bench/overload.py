"""Scenarios for real: the files of bench/scenarios/live against simulated engines over sockets.

Everything runs on this machine, in one process, in real time: the gateway that serves, engines
with their fault controls, and clients that give up and come back. What is printed is what the
simulator prints of the same files; bars are looser than there where the machine has a say in them.

    python -m bench.overload [FILE …] [--only SCENARIO] [--seed N] [--json FILE] [--html FILE]

Exit code 1 if a bar is missed.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from time import perf_counter

import uvloop
from msgspec.structs import replace
from rich.console import Console

from pointsman.cli.messages import unknown_name
from pointsman.cli.replay_plan import Planned, ReplayOptions, Stream, plan
from pointsman.cli.replay_study import Extras, bars_of, study_of
from pointsman.report.replay.document import encode_study
from pointsman.report.replay.expectation import measures_of
from pointsman.report.replay.numbers import RunNumbers, numbers
from pointsman.report.replay.page import render_study
from pointsman.report.replay.study import Study
from pointsman.report.replay.table import print_study
from tests.support.live_play import play

FOLDER = Path(__file__).parent / "scenarios" / "live"
EXTRAS = Extras(oracle=False, series=True, timing=False, sweep_target=None)


def live_study(planned: Sequence[Planned]) -> Study:
    """Every scenario under each of its seeds and policies, one after the other."""
    results = [
        uvloop.run(_live(each, planned, stream, policy))
        for each in planned
        for stream in each.streams
        for policy in each.policies
    ]
    return study_of(planned, results, EXTRAS)


async def _live(
    each: Planned, planned: Sequence[Planned], stream: Stream, policy: str
) -> RunNumbers:
    began_s = perf_counter()
    run, _ = await play(
        each.scenario,
        stream.requests,
        policy=each.options[policy].policy,
        config=each.configs[policy],
        name=policy,
        seed=stream.seed,
    )
    label = f"{each.scenario.name}, {policy}, seed {stream.seed}"
    print(f"{label}: {perf_counter() - began_s:.0f} s", file=sys.stderr)
    return numbers(
        run,
        each.scenario.slo,
        windows=each.windows,
        measures=measures_of(bars_of(planned, each.file), each.scenario.name),
        ideal_hit_ratio=stream.ideal_hit_ratio,
    )


def options_of(files: list[Path], *, seed: int | None) -> ReplayOptions:
    """Of `pointsman replay` with these files; without a seed, those that they name."""
    nothing = dict.fromkeys(ReplayOptions.__struct_fields__)
    return ReplayOptions(**nothing | {"traces": tuple(files), "seed": seed})  # type: ignore[arg-type]  # a file says the rest itself


def only(planned: Sequence[Planned], names: Collection[str]) -> tuple[Planned, ...]:
    """The scenarios of these names, and without bars of their own those that theirs refer to.

    Raises ValueError for a name that none has."""
    known = [each.scenario.name for each in planned]
    for name in names:
        if name not in known:
            raise ValueError(unknown_name(name, known))
    asked = [each for each in planned if each.scenario.name in names]
    referred = {
        (each.file, bar.times.scenario) for each in asked for bar in each.expect if bar.times
    }
    return tuple(
        each if each in asked else replace(each, expect=())
        for each in planned
        if each in asked or (each.file, each.scenario.name) in referred
    )


def main() -> None:
    """The command."""
    parser, given = _given()
    planned = plan(options_of(given.files, seed=given.seed))
    try:
        study = live_study(only(planned, given.only) if given.only else planned)
    except ValueError as error:
        parser.error(f"--only: {error}")
    if given.json:
        given.json.write_bytes(encode_study(study))
    if given.html:
        given.html.write_text(render_study(study))
    print_study(Console(width=None if sys.stdout.isatty() else 200), study)
    sys.exit(any(not verdict.kept for verdict in study.verdicts))


def _given() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description="Runs scenarios for real, on this machine, and holds them against their bars.",
        epilog="Example: python -m bench.overload --only overload --seed 1",
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        default=sorted(FOLDER.glob("*.yaml")),
        metavar="FILE",
        help="scenario files; all of bench/scenarios/live if none is given",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="SCENARIO",
        help="only this scenario of the files, and those that its bars are relative to; "
        "may be given several times",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="draw the traffic with this seed instead of those that the file names (0 if none). "
        "The same seed is the same traffic as in `pointsman replay --seed N`",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots there")
    return parser, parser.parse_args()


if __name__ == "__main__":
    main()
