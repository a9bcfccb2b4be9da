"""Terminal tables, by rich."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.report.rows import (
    LATENCY_HEAD,
    TIMES,
    UNKNOWN,
    compared,
    count,
    latencies,
    metrics,
    objective,
    percent,
    rate,
    ratio,
    seconds,
    shown,
)
from pointsman.report.run import Run, differences
from pointsman.report.summary import Summary

_STYLES = {1: "green", -1: "red", 0: "dim"}


def print_run(console: Console, run: Run) -> None:
    """One run: totals, latencies, nodes, errors; or that there is nothing to count yet."""
    summary = run.summary()
    say(console, f"[bold]{plain(run.label)}[/bold]  {plain(run.target)}  {plain(run.model)}")
    if run.interrupted and not summary.ok + summary.errors:
        say(console, _nothing_to_count(run))
        return
    for line in _totals(run, summary):
        say(console, line)
    for note in run.workload.notes:
        say(console, f"[dim]{plain(note)}[/dim]")
    console.print(_latencies(summary))
    if summary.nodes:
        console.print(_nodes(summary))
    if summary.error_groups:
        console.print(_errors(summary))


def print_comparison(console: Console, runs: Sequence[Run]) -> None:
    """Each run's numbers and, from the second on, their ratio to the first run's."""
    table = Table(title=f"compared with {plain(runs[0].label)}", title_justify="left")
    table.add_column("")
    for place, run in enumerate(runs):
        table.add_column(plain(run.label), justify="right")
        if place:
            table.add_column(TIMES, justify="right")
    summaries = [run.summary() for run in runs]
    for metric in metrics():
        values = [metric.value(summary) for summary in summaries]
        cells = [shown(values[0], metric.show)]
        for value in values[1:]:
            style = _STYLES[compared(value, values[0], metric.better)]
            cells += [shown(value, metric.show), f"[{style}]{ratio(value, values[0])}[/{style}]"]
        table.add_row(metric.name, *cells)
    console.print(table)
    for run, summary in zip(runs, summaries, strict=True):
        if summary.error_groups:
            console.print(_errors(summary, title=f"errors of {plain(run.label)}"))
    for note in differences(runs):
        say(console, f"[yellow]{plain(note)}[/yellow]")


def plain(text: str) -> str:
    """Text of others: no markup, and nothing that moves a terminal's cursor."""
    return escape("".join(each if each.isprintable() else " " for each in text))


def say(console: Console, markup: str) -> None:
    """One line, however narrow the terminal: it is copied and searched for."""
    console.print(markup, highlight=False, soft_wrap=True)


def _nothing_to_count(run: Run) -> str:
    began = sum(record.ttft_s is not None for record in run.records)
    return (
        f"stopped after {seconds(run.duration_s)}, before any answer was whole: of "
        f"{len(run.records)} requests on their way {began} had a first token"
    )


def _totals(run: Run, summary: Summary) -> tuple[str, str, str]:
    """What happened; how good that was; by what. One line is wider than most terminals."""
    errors = f"[red]{summary.errors} errors[/red]" if summary.errors else "no errors"
    hits, ideal = shown(summary.hit_ratio, percent), shown(summary.ideal_hit_ratio, percent)
    what = [
        f"{summary.ok} of {summary.requests} requests in {seconds(summary.duration_s)}",
        errors,
        rate(summary.throughput_rps),
    ]
    if summary.interrupted:
        what.append(f"{summary.interrupted} interrupted")
    if run.interrupted:
        what.append("stopped early")
    how = [
        f"goodput {rate(summary.goodput_rps)} ({percent(summary.slo_attainment)} in the SLO)",
        f"hit ratio {hits}, ideal {ideal}",
    ]
    return " · ".join(what), " · ".join(how), objective(summary.slo)


def _latencies(summary: Summary) -> Table:
    table = Table(*LATENCY_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in latencies(summary):
        table.add_row(*row)
    return table


def _nodes(summary: Summary) -> Table:
    table = Table("node", "requests", "share", "prompt tokens", "share", "hit ratio", "TTFT p95")
    for column in table.columns[1:]:
        column.justify = "right"
    for node in summary.nodes:
        table.add_row(
            plain(node.node),
            count(node.requests),
            percent(node.request_share),
            count(node.input_tokens),
            percent(node.token_share),
            shown(node.hit_ratio, percent),
            seconds(node.ttft_s.p95) if node.ttft_s else UNKNOWN,
        )
    return table


def _errors(summary: Summary, *, title: str | None = None) -> Table:
    columns = ("errors", "outcome", "cause", "first message")
    table = Table(*columns, title=title, title_justify="left")
    table.columns[0].justify = "right"
    for group in summary.error_groups:
        cells = (str(group.requests), group.outcome, group.cause, group.example)
        table.add_row(*map(plain, cells))
    return table
