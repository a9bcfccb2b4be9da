"""Which scenarios the live bench runs."""

from pathlib import Path

import pytest

from bench.overload import FOLDER, only, options_of
from pointsman.cli.replay_plan import plan

FILES = [FOLDER / "overload.yaml", FOLDER / "scale-out.yaml"]


def test_a_scenario_alone_brings_those_that_its_bars_refer_to() -> None:
    planned = plan(options_of(FILES, seed=3))
    chosen = only(planned, ["overload"])
    assert [each.scenario.name for each in chosen] == ["calm", "capacity", "overload"]
    assert [bool(each.expect) for each in chosen] == [False, False, True]
    assert [stream.seed for each in chosen for stream in each.streams] == [3, 3, 3]
    joined = only(planned, ["scale-out"])
    assert [each.scenario.name for each in joined] == ["nobody joins", "scale-out"]


def test_a_scenario_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"'overlode' is none of .*did you mean 'overload'"):
        only(plan(options_of(FILES, seed=0)), ["overlode"])


def test_every_live_file_can_be_planned() -> None:
    files: list[Path] = sorted(FOLDER.glob("*.yaml"))
    assert {each.file for each in plan(options_of(files, seed=None))} == set(map(str, files))
