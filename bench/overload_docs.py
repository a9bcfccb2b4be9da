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
from pointsman.report.markup import theme_colours
from pointsman.report.replay import time_plots
from pointsman.report.replay.bars import verdict_row
from pointsman.report.replay.study import ScenarioReport, Study

FOLDER = Path(__file__).parent / "scenarios"
SHOWN = (
    *("overload", "retry storm", "hangs", "dies mid-stream", "rolling restart"),
    *("long-context flood", "hot prefix"),
)
LIGHT, DARK = theme_colours()
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
