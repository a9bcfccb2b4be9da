"""Terminal tables of a study, by rich: one a scenario, and policies by scenarios at the end."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from pointsman.report.replay.bars import VERDICT_HEADS, class_rows, verdict_row
from pointsman.report.replay.metrics import (
    E2E_MEAN,
    ERRORS,
    METRICS,
    PLACEMENTS,
    TTFT_MEAN,
    ReplayMetric,
    factor,
    shown,
)
from pointsman.report.replay.study import ORACLE, ScenarioReport, Study
from pointsman.report.replay.verdict import Verdict
from pointsman.report.replay.wording import asked, legend, sent
from pointsman.report.rows import TIMES, UNKNOWN, count, percent, rate
from pointsman.report.table import plain, say

CELL_COLUMNS = 12
"""What a number and its borders take; over several seeds it has an interval too."""
INTERVAL_COLUMNS = 5
ORACLE_COLUMNS = 15
SPEED_COLUMNS = 12
WIDE_COLUMNS = 120
"""A terminal that is narrower has no room for how fast the simulation was."""
BEST = "*"


def print_study(console: Console, study: Study) -> None:
    """Every scenario, and the matrix where there are several."""
    for scenario in study.scenarios:
        _print_scenario(console, scenario)
    if len(study.scenarios) > 1 and not study.verdicts:
        for metric in (E2E_MEAN, TTFT_MEAN):
            console.print(_matrix(study, metric))
        say(
            console, "[dim]against the best of the other policies: below 1 is better than all[/dim]"
        )
    if study.verdicts:
        console.print(_verdicts(study.verdicts))
        missed = sum(not verdict.kept for verdict in study.verdicts)
        say(console, f"{len(study.verdicts) - missed} of {len(study.verdicts)} bars are kept")


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    table = Table(*VERDICT_HEADS, title="What the scenarios are to show", title_justify="left")
    for verdict in verdicts:
        mark, *cells = map(plain, verdict_row(verdict))
        style = "green" if verdict.kept else "bold red"
        table.add_row(f"[{style}]{mark}[/{style}]", *cells)
    return table


def _print_scenario(console: Console, scenario: ScenarioReport) -> None:
    say(console, f"[bold]{plain(scenario.name)}[/bold]")
    say(console, plain(sent(scenario)))
    say(console, plain(asked(scenario)))
    for note in scenario.notes:
        say(console, f"[dim]{plain(note)}[/dim]")
    console.print(_policies(scenario, width=console.width))
    if scenario.sweeps:
        console.print(_sweeps(scenario))
    if rows := class_rows(scenario.seeds[0].runs):
        console.print(_classes(rows))
    causes = _causes(scenario)
    if causes is not None:
        console.print(causes)
    console.print()


def columns(scenario: ScenarioReport, *, width: int) -> list[ReplayMetric]:
    """Those for which there is room, without those that say nothing here."""
    quiet = []
    runs = [run for policy in scenario.policies for run in scenario.runs(policy)]
    if not any(run.errors for run in runs):
        quiet.append(ERRORS)
    if all(run.attempts == run.requests for run in runs):
        quiet.append(PLACEMENTS)
    loud = [metric for metric in METRICS if metric not in quiet]
    cell = CELL_COLUMNS + (INTERVAL_COLUMNS if len(scenario.seeds) > 1 else 0)
    room = max(1, (width - _fixed_columns(scenario, width=width)) // cell)
    fitting = sorted(loud, key=lambda metric: metric.rank)[:room]
    return [metric for metric in loud if metric in fitting]


def _fixed_columns(scenario: ScenarioReport, *, width: int) -> int:
    """What the policies' names with their borders take, and the ratios at the end."""
    names = max(map(len, scenario.policies)) + 4
    oracle = ORACLE_COLUMNS if scenario.runs(ORACLE) else 0
    return names + oracle + (SPEED_COLUMNS if width >= WIDE_COLUMNS else 0)


def _policies(scenario: ScenarioReport, *, width: int) -> Table:
    metrics = columns(scenario, width=width)
    has_oracle = bool(scenario.runs(ORACLE))
    has_speed = width >= WIDE_COLUMNS and any(
        run.realtime_factor for run in scenario.runs(scenario.policies[0])
    )
    heads = [metric.name for metric in metrics]
    heads += [f"e2e {TIMES} oracle"] if has_oracle else []
    heads += ["real time"] if has_speed else []
    table = Table("policy", *heads, caption=legend(metrics), caption_justify="left")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    best = {metric.key: scenario.leaders(metric.value, metric.better) for metric in metrics}
    names = [*scenario.policies, *([ORACLE] if has_oracle else [])]
    for name in names:
        if name == ORACLE:
            table.add_section()
        cells = [_cell(scenario, name, metric, best[metric.key]) for metric in metrics]
        if has_oracle:
            cells.append(shown(scenario.ratio(name, ORACLE, E2E_MEAN.value), factor))
        if has_speed:
            speed = scenario.over_seeds(name, lambda run: run.realtime_factor)
            cells.append(UNKNOWN if speed is None else f"{count(speed.mean)}{TIMES}")
        table.add_row(plain(name), *cells, style="dim" if name == ORACLE else None)
    return table


def _cell(scenario: ScenarioReport, name: str, metric: ReplayMetric, best: Sequence[str]) -> str:
    text = shown(scenario.over_seeds(name, metric.value), metric.show)
    return f"[bold green]{text}{BEST}[/bold green]" if name in best else f"{text} "


def _matrix(study: Study, metric: ReplayMetric) -> Table:
    table = Table(title=f"{metric.name} against the best peer", title_justify="left")
    table.add_column("scenario")
    for policy in study.policies:
        table.add_column(plain(policy), justify="right")
    for scenario in study.scenarios:
        cells = []
        for policy in study.policies:
            found = scenario.against_best_peer(policy, metric.value, metric.better)
            text = shown(found, factor)
            ahead = found is not None and found.mean < 1
            cells.append(f"[bold green]{text}{BEST}[/bold green]" if ahead else f"{text} ")
        table.add_row(plain(scenario.name), *cells)
    return table


def _sweeps(scenario: ScenarioReport) -> Table:
    target = scenario.sweeps[0].target
    table = Table(
        title=f"highest speed with {percent(target)} of the requests in the SLO",
        title_justify="left",
    )
    for head in ("policy", "speed", "rate", "in SLO", "goodput", "simulated"):
        table.add_column(head, justify="left" if head == "policy" else "right")
    for sweep in scenario.sweeps:
        best = sweep.best
        cells = [UNKNOWN] * 4
        if best is not None:
            cells = [
                f"{'≥ ' if best == sweep.tried[-1] else ''}{best.speed:.3g}{TIMES}",
                rate(best.rate_rps),
                percent(best.slo_attainment),
                rate(best.goodput_rps),
            ]
        table.add_row(plain(sweep.policy), *cells, f"{len(sweep.tried)} speeds")
    return table


def _classes(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*rows[0], title="by class, first seed", title_justify="left")
    for column in table.columns:
        if column.header not in ("policy", "window", "class"):
            column.justify = "right"
    for row in rows[1:]:
        table.add_row(*map(plain, row))
    return table


def _causes(scenario: ScenarioReport) -> Table | None:
    """Errors of the first seed by cause; None where there is none."""
    rows: list[Sequence[str]] = [
        (run.policy, count(group.requests), group.outcome, group.cause, group.example)
        for run in scenario.seeds[0].runs
        for group in run.error_groups
    ]
    if not rows:
        return None
    told = any(row[-1] for row in rows)
    table = Table("policy", "errors", "outcome", "cause", *(["first message"] if told else []))
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*map(plain, row[: len(table.columns)]))
    return table
