"""What docs/OVERLOAD.md shows: a plot of each scenario, and the bars as a Markdown table.

    python -m bench.overload_docs [FILE …] --images docs/images

Runs the files in virtual time, all seeds, as `make scenarios` does.
"""

import argparse
import re
from pathlib import Path

from bench.overload import EXTRAS, options_of
from pointsman.cli.replay_jobs import run_jobs
from pointsman.cli.replay_plan import plan
from pointsman.cli.replay_study import all_jobs, study_of
from pointsman.report.replay import time_plots
from pointsman.report.replay.bars import verdict_row
from pointsman.report.replay.study import ScenarioReport, Study

FOLDER = Path(__file__).parent / "scenarios"
SHOWN = (
    *("overload", "retry storm", "hangs", "dies mid-stream", "rolling restart"),
    *("long-context flood", "hot prefix"),
)
LIGHT = (
    "--ink:#16181d;--ink-2:#5b616e;--line:#e4e6ea;--series-0:#2f6fdb;--series-1:#e07b1a;"
    "--series-2:#15936b;--series-3:#d03c53;--series-4:#8257d6;--series-5:#0e98ad;"
    "--series-6:#a87309;--series-7:#7b8594"
)
DARK = (
    "--ink:#eceef2;--ink-2:#9aa2b1;--line:#2b303a;--series-0:#6ea2ff;--series-1:#ffa04d;"
    "--series-2:#45c49a;--series-3:#ff7489;--series-4:#ab8bff;--series-5:#46c8dc;"
    "--series-6:#d9a53c;--series-7:#a3adbd"
)
NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
STYLE = (
    f"<style>svg{{{LIGHT};font-family:system-ui,sans-serif}}"
    f"@media (prefers-color-scheme:dark){{svg{{{DARK}}}}}</style>"
)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Plots and tables for docs/OVERLOAD.md.")
    parser.add_argument("files", nargs="*", type=Path, default=sorted(FOLDER.glob("*.yaml")))
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    parser.add_argument("--seed", type=int, help="this one only")
    given = parser.parse_args()
    for path in given.files:
        planned = plan(options_of([path], seed=given.seed))
        results = run_jobs(all_jobs(planned, EXTRAS), processes=1, on_progress=lambda _: None)
        study = study_of(planned, results, EXTRAS)
        for scenario in study.scenarios:
            if scenario.name in SHOWN:
                name = re.sub(r"\W+", "-", f"{path.stem}-{scenario.name}")
                (given.images / f"overload-{name}.svg").write_text(_alone(scenario, name))
        print(f"\n### {path.stem}\n\n{_table(study)}")


def _alone(scenario: ScenarioReport, name: str) -> str:
    """The plot as a file of its own, in the colours of whoever looks at it. A tenth of a point is
    finer than a screen."""
    svg = time_plots.course(scenario, name=name, keyed=True)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)
    head, _, rest = svg.partition(">")
    return f"{head} {NAMESPACES}>{STYLE}{rest}\n"


def _table(study: Study) -> str:
    rows = [
        "| | scenario | measure | value | bar | ratio | against |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    rows += [f"| {' | '.join(verdict_row(verdict))} |" for verdict in study.verdicts]
    return "\n".join(rows)


if __name__ == "__main__":
    main()
