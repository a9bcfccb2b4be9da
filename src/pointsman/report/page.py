"""One self-contained HTML page for one run or several: no script, no external resource."""

from collections.abc import Iterable, Sequence
from html import escape

from pointsman.report import plots
from pointsman.report.markup import document, figure, sheet, table
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
from pointsman.report.run import LoadMode, Run, differences
from pointsman.report.summary import Quantiles, Summary

_TONES = {1: "good", -1: "bad", 0: "quiet"}
_NAMED_MAX = 3  # runs in a heading; of more it says how many


def render_page(runs: Sequence[Run]) -> str:
    """The page of a run, or of a comparison against the first of several.

    Raises PlotsUnavailableError without matplotlib.
    """
    plots.require_matplotlib()
    assert runs, "a page needs a run"
    title = runs[0].label if len(runs) == 1 else _contest([run.label for run in runs])
    body = [] if len(runs) == 1 else [_comparison(runs)]
    body += [_run(run, place, alone=len(runs) == 1) for place, run in enumerate(runs)]
    return document(
        title,
        "".join(body),
        "Latencies are of requests that ended well, counted from the moment each was due. "
        "Quantiles are observed values, not interpolated.",
    )


def _comparison(runs: Sequence[Run]) -> str:
    labels = [run.label for run in runs]
    return "".join(
        (
            f"<h1>{escape(_contest(labels))}</h1>",
            f'<p class="sub">{escape(_workload_line(runs[0]))}</p>',
            *(f'<p class="note bad">{escape(note)}</p>' for note in differences(runs)),
            _comparison_table(runs),
            '<div class="plots">',
            figure(
                "Time to first token",
                "Share of requests that waited no longer than this",
                plots.cdf(runs, field="ttft_s", name="compare-ttft"),
                labels,
            ),
            figure(
                "End to end",
                "Share of requests that took no longer than this",
                plots.cdf(runs, field="e2e_s", name="compare-e2e"),
                labels,
            ),
            "</div>",
        )
    )


def _contest(labels: Sequence[str]) -> str:
    base, *others = labels
    named = ", ".join(others) if len(others) <= _NAMED_MAX else f"{len(others)} others"
    return f"{named} against {base}"


def _comparison_table(runs: Sequence[Run]) -> str:
    summaries = [run.summary() for run in runs]
    head = ["", runs[0].label]
    for run in runs[1:]:
        head += [run.label, "ratio"]
    rows = []
    for metric in metrics():
        base, *others = (metric.value(summary) for summary in summaries)
        cells = [f"<td>{escape(metric.name)}</td>", f"<td>{shown(base, metric.show)}</td>"]
        for value in others:
            tone = _TONES[compared(value, base, metric.better)]
            cells.append(f"<td>{shown(value, metric.show)}</td>")
            cells.append(f'<td class="{tone}">{ratio(value, base)}</td>')
        rows.append(cells)
    return sheet(map(escape, head), rows)


def _run(run: Run, place: int, *, alone: bool) -> str:
    summary = run.summary()
    heading = "h1" if alone else "h2"
    policy = f" · policy {run.policy}" if run.policy else ""
    where = f"{run.model} at {run.target}{policy} · {run.started_at}"
    notes = list(run.workload.notes)
    if run.interrupted:
        notes.insert(0, f"stopped early: {summary.interrupted} requests were on their way")
    return "".join(
        (
            f"<{heading}>{escape(run.label)}</{heading}>",
            f'<p class="sub">{escape(_workload_line(run))}</p>',
            f'<p class="sub">{escape(where)}</p>',
            f'<p class="sub">{escape(objective(run.slo))}</p>',
            *(f'<p class="note">{escape(note)}</p>' for note in notes),
            _tiles(summary),
            table(LATENCY_HEAD, latencies(summary)),
            f'<div class="plots">{"".join(_figures(run, summary, place, alone=alone))}</div>',
            _node_table(summary),
            _error_table(summary),
        )
    )


def _workload_line(run: Run) -> str:
    traffic, load = run.workload.traffic, run.load
    if load.mode is LoadMode.CLOSED:
        how = f"{load.concurrency} conversations at once"
    elif load.rate_rps is not None:
        how = f"Poisson arrivals at {rate(load.rate_rps)}"
    else:
        how = f"its own arrivals, {rate(traffic.rate_rps)}"
    speed = f" ({TIMES}{load.speed:g})" if load.speed != 1 else ""
    return (
        f"{run.workload.name}: {count(traffic.requests)} requests, {how}{speed}; "
        f"mean {count(traffic.input_tokens_mean)} tokens in, "
        f"{count(traffic.output_tokens_mean)} out"
    )


def _tiles(summary: Summary) -> str:
    """Value, name and one line of context each."""
    ttft, e2e = summary.ttft_s, summary.e2e_s
    met = f"{percent(summary.slo_attainment)} in the SLO"
    tiles = (
        (count(summary.ok), "requests ended well", f"of {count(summary.requests)}"),
        (count(summary.errors), "errors", f"{summary.interrupted} interrupted"),
        (_median(ttft), "TTFT, median", _tail(ttft)),
        (_median(e2e), "end to end, median", _tail(e2e)),
        (rate(summary.goodput_rps), "goodput", met),
        (shown(summary.hit_ratio, percent), "prefix hit ratio", _of_ideal(summary)),
    )
    return '<div class="tiles">' + "".join(map(_tile, tiles)) + "</div>"


def _tile(tile: tuple[str, str, str]) -> str:
    value, name, context = map(escape, tile)
    mark = " bad" if name == "errors" and value != "0" else ""
    return f'<div class="tile{mark}"><b>{value}</b><span>{name}</span><span>{context}</span></div>'


def _median(found: Quantiles | None) -> str:
    return seconds(found.p50) if found else UNKNOWN


def _tail(found: Quantiles | None) -> str:
    return f"p95 {seconds(found.p95)}" if found else ""


def _of_ideal(summary: Summary) -> str:
    if summary.hit_ratio is None:
        return "not reported"
    return f"ideal {shown(summary.ideal_hit_ratio, percent)}"


def _figures(run: Run, summary: Summary, place: int, *, alone: bool) -> Iterable[str]:
    """Distributions only where the comparison does not show them already."""
    if summary.ttft_s is not None and alone:
        share = "Share of requests that took no longer than this"
        yield figure(
            "Time to first token", share, plots.cdf([run], field="ttft_s", name=f"ttft-{place}")
        )
        yield figure("End to end", share, plots.cdf([run], field="e2e_s", name=f"e2e-{place}"))
    if run.records:
        yield figure(
            "Time to first token over time",
            "One dot a request, when it was due; crosses: errors; dashed: due for a mean prompt",
            plots.ttft_over_time(run, name=f"over-time-{place}"),
            wide=True,
        )
    if summary.nodes:
        yield figure(
            "Requests per node over time",
            "Stacked, by the time they were sent",
            plots.requests_per_node(run, summary, name=f"nodes-{place}"),
            plots.node_series(summary),
        )
    if any(node.hit_ratio is not None for node in summary.nodes):
        ideal = "; solid line: the ideal" if summary.ideal_hit_ratio is not None else ""
        yield figure(
            "Prefix hit ratio per node",
            f"As the engines report it; dashed line: all nodes together{ideal}",
            plots.hit_ratio_per_node(summary, name=f"hits-{place}"),
        )


def _node_table(summary: Summary) -> str:
    if not summary.nodes:
        return ""
    return "<h2>Nodes</h2>" + table(
        ("node", "requests", "share", "prompt tokens", "share", "hit ratio", "TTFT p50", "p95"),
        [
            (
                node.node,
                count(node.requests),
                percent(node.request_share),
                count(node.input_tokens),
                percent(node.token_share),
                shown(node.hit_ratio, percent),
                seconds(node.ttft_s.p50) if node.ttft_s else UNKNOWN,
                seconds(node.ttft_s.p95) if node.ttft_s else UNKNOWN,
            )
            for node in summary.nodes
        ],
    )


def _error_table(summary: Summary) -> str:
    if not summary.error_groups:
        return ""
    rows = "".join(
        f'<tr><td>{escape(group.outcome)}</td><td class="left">{escape(group.cause)}</td>'
        f'<td>{count(group.requests)}</td><td class="wide quiet">{escape(group.example)}</td></tr>'
        for group in summary.error_groups
    )
    head = '<th>outcome</th><th class="left">cause</th><th>requests</th>'
    head += '<th class="left">first message</th>'
    return f'<h2>Errors</h2><div class="sheet"><table><tr>{head}</tr>{rows}</table></div>'
