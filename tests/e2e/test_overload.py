"""Too much to do, and nodes that fail, for real: short scenarios whose bars fail when the mechanism
that keeps them is off. The full ones are behind `make bench-overload`."""

from pathlib import Path

import pytest

from bench.overload import live_study, options_of
from pointsman.cli.replay_plan import plan
from pointsman.report.replay.bars import verdict_row

FILES = sorted((Path(__file__).parent / "overload").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bars_are_kept_for_real(path: Path) -> None:
    verdicts = live_study(plan(options_of([path], seed=0))).verdicts
    assert verdicts
    assert [verdict_row(verdict) for verdict in verdicts if not verdict.kept] == []
