"""Scenarios for real: the files of bench/scenarios/live against simulated engines over sockets.

Everything runs on this machine, in one process, in real time: the gateway that serves, engines
with their fault controls, and clients that give up and come back. What is printed is what the
simulator prints of the same files; bars are looser than there where the machine has a say in them.

    python -m bench.overload [FILE …] [--json FILE] [--html FILE]

Exit code 1 if a bar is missed.
"""

import argparse
import sys
from pathlib import Path
from time import perf_counter

import uvloop
from rich.console import Console

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


def live_study(files: list[Path]) -> Study:
    """Every scenario of `files` under each of its policies, one after the other."""
    planned = plan(options_of(files, seed=0))
    results = [
        uvloop.run(_live(each, planned, each.streams[0], policy))
        for each in planned
        for policy in each.policies
    ]
    return study_of(planned, results, EXTRAS)


async def _live(
    each: Planned, planned: tuple[Planned, ...], stream: Stream, policy: str
) -> RunNumbers:
    began_s = perf_counter()
    run, _ = await play(
        each.scenario,
        stream.requests,
        policy=each.options[policy].policy,
        config=each.configs[policy],
        name=policy,
    )
    print(f"{each.scenario.name}, {policy}: {perf_counter() - began_s:.0f} s", file=sys.stderr)
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


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Scenarios for real, on this machine.")
    parser.add_argument("files", nargs="*", type=Path, default=sorted(FOLDER.glob("*.yaml")))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--html", type=Path)
    given = parser.parse_args()
    study = live_study(given.files)
    if given.json:
        given.json.write_bytes(encode_study(study))
    if given.html:
        given.html.write_text(render_study(study))
    print_study(Console(width=None if sys.stdout.isatty() else 200), study)
    sys.exit(any(not verdict.kept for verdict in study.verdicts))


if __name__ == "__main__":
    main()
