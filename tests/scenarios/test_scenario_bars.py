"""The scenarios of bench/scenarios, one seed each: what they are to show, they show.

`make scenarios` runs them in full, with their controls. A bar that is missed here is a mechanism
that is broken, or a scenario that is too close to its bar: see the numbers with
`pointsman replay bench/scenarios/NAME.yaml --seed 0 --html out/NAME.html`.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pointsman.cli.replay import replay

FILES = sorted((Path(__file__).parents[2] / "bench" / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bars_are_kept(path: Path) -> None:
    options = ("--policy", "marginal_cost", "--seed", "0", "--no-oracle", "--jobs", "1")
    result = CliRunner().invoke(replay, [str(path), *options, "--json", "-"])
    assert result.stdout, result.stderr
    verdicts = json.loads(result.stdout)["expectations"]
    assert verdicts, "a scenario without a bar shows nothing"
    missed = [f"{each['scenario']}: {each['measure']}" for each in verdicts if not each["kept"]]
    assert not missed
