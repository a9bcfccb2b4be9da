"""One self-contained HTML page for a study: no script, no external resource."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from math import inf
from statistics import fmean

from pointsman.report.drawing import SERIES_MAX
from pointsman.report.markup import document, figure, sheet, table
from pointsman.report.plots import require_matplotlib
from pointsman.report.replay import plots, time_plots
from pointsman.report.replay.bars import VERDICT_HEADS, class_rows, verdict_row
from pointsman.report.replay.metrics import (
    ATTAINMENT,
    DEVIATIONS,
    E2E_MEAN,
    E2E_P99,
    ERRORS,
    GOODPUT,
    HITS,
    METRICS,
    PLACEMENTS,
    TTFT_MEAN,
    TTFT_P99,
    ReplayMetric,
    factor,
    shown,
)
from pointsman.report.replay.spread import Estimate
from pointsman.report.replay.study import ORACLE, TIED_WITHIN, ScenarioReport, Study
from pointsman.report.replay.wording import DEVIATIONS_MEANING, asked, sent
from pointsman.report.rows import TIMES, UNKNOWN, count, percent, rate

OPEN_MAX = 3
"""Scenarios unfolded at once; of more, only the first is."""
SHADE_AT = 1.5
"""The ratio to the best peer, or its reciprocal, at which a cell's colour is full."""
_MAIN = (TTFT_MEAN, TTFT_P99, E2E_MEAN, E2E_P99, GOODPUT, ATTAINMENT, HITS)
_SIDE = (E2E_MEAN, TTFT_MEAN)
_MORE = (TTFT_P99, E2E_P99, GOODPUT, HITS)


def render_study(study: Study) -> str:
    """The page. Raises PlotsUnavailableError without matplotlib."""
    require_matplotlib()
    assert study.scenarios, "a page needs a scenario"
    alone = len(study.scenarios) == 1
    title = study.scenarios[0].name if alone else f"{len(study.scenarios)} scenarios"
    body = []
    if study.verdicts:
        body.append(_bars(study))
    elif not alone:
        body += _matrices(study)
    for place, scenario in enumerate(study.scenarios):
        body.append(_scenario(study, scenario, place))
    return document(
        title,
        "".join(body),
        "Simulated: virtual time, the scheduler that serves, engines by their step times. "
        "Latencies are of requests that ended well, counted from when each was due; quantiles are "
        "observed values. ± is half the 95 % confidence interval over seeds (by Student's t) in "
        "percent of the mean. The oracle is one pooled engine with the speed and the memory of "
        "all, which begins with the shortest: what to measure means against; a single request may "
        f"have to wait longer there than on an idle node. {DEVIATIONS_MEANING}.",
    )


def _bars(study: Study) -> str:
    """What the scenarios are to show, and whether they do."""
    rows = []
    for verdict in study.verdicts:
        mark, *rest = map(escape, verdict_row(verdict))
        tone = "good" if verdict.kept else "bad"
        cells = [f'<td class="left">{cell}</td>' for cell in rest[:2]]
        cells += [f"<td>{cell}</td>" for cell in rest[2:]]
        rows.append([f'<td class="best {tone}">{mark}</td>', *cells])
    kept = sum(verdict.kept for verdict in study.verdicts)
    return (
        f"<h1>{kept} of {len(study.verdicts)} bars are kept</h1>"
        f"{sheet(map(escape, VERDICT_HEADS), rows, dense=True)}"
    )


def _matrices(study: Study) -> Iterator[str]:
    policies, scenarios = len(study.policies), len(study.scenarios)
    yield f"<h1>{policies} policies in {scenarios} scenarios</h1>"
    yield (
        '<p class="sub">Each against the best of the others in the same scenario: below 1 (above '
        "1 for goodput and hits) is better than all of them.</p>"
    )
    for metric in _SIDE:
        yield f"<h2>{escape(_title(metric))}</h2>{_matrix(study, metric)}"
    more = "".join(f"<h3>{escape(_title(each))}</h3>{_matrix(study, each)}" for each in _MORE)
    yield f"<details><summary>Tails, goodput, hits</summary>{more}</details>"


def _title(metric: ReplayMetric) -> str:
    return f"{metric.name} against the best peer"


def _matrix(study: Study, metric: ReplayMetric) -> str:
    rows = []
    for scenario in study.scenarios:
        cells = [f"<td>{escape(scenario.name)}</td>"]
        for policy in study.policies:
            found = scenario.against_best_peer(policy, metric.value, metric.better)
            own = shown(scenario.over_seeds(policy, metric.value), metric.show)
            cells.append(_shaded(found, metric.better, own))
        rows.append(cells)
    return sheet(["", *map(escape, study.policies)], rows)


def _shaded(found: Estimate | None, better: int, title: str) -> str:
    if found is None or found.mean <= 0:
        return f'<td class="quiet">{UNKNOWN}</td>'
    ahead = found.mean if better > 0 else 1 / found.mean
    strength = min(abs(ahead - 1) if ahead > 1 else 1 / ahead - 1, SHADE_AT - 1) / (SHADE_AT - 1)
    colour = "--good" if ahead > 1 else "--bad"
    background = f"color-mix(in srgb, var({colour}) {strength * 38:.0f}%, transparent)"
    mark = ' class="best"' if ahead > 1 + TIED_WITHIN else ""
    text = _text(found, factor)
    return f'<td{mark} title="{escape(title)}" style="background: {background}">{text}</td>'


def _scenario(study: Study, scenario: ScenarioReport, place: int) -> str:
    alone = len(study.scenarios) == 1
    content = "".join(_content(study, scenario, place))
    lines = (
        f'<p class="sub">{escape(sent(scenario))}</p><p class="sub">{escape(asked(scenario))}</p>'
    )
    lines += "".join(f'<p class="note">{escape(note)}</p>' for note in scenario.notes)
    verdict = escape(_verdict(scenario))
    if alone:
        return f"<h1>{escape(scenario.name)}</h1>{lines}<p class='verdict'>{verdict}</p>{content}"
    unfolded = " open" if len(study.scenarios) <= OPEN_MAX or place == 0 else ""
    head = f"<h2>{escape(scenario.name)}</h2><span>{verdict}</span>"
    return (
        f'<details class="scenario"{unfolded}><summary>{head}</summary>{lines}{content}</details>'
    )


def _verdict(scenario: ScenarioReport) -> str:
    """How the baseline does, in one sentence."""
    base = scenario.baseline
    peers = [name for name in scenario.policies if name != base]
    parts = []
    for metric in (E2E_MEAN, TTFT_MEAN):
        peer = scenario.best(peers, metric.value, metric.better)
        found = None if peer is None else scenario.ratio(base, peer, metric.value)
        if found is not None:
            parts.append(f"{metric.name} {shown(found, factor)} ({peer})")
    text = f"{base} against the best peer: {', '.join(parts)}" if parts else base
    oracle = scenario.ratio(base, ORACLE, E2E_MEAN.value)
    if oracle is not None:
        text += f"; e2e mean {shown(oracle, factor)} of the oracle's"
    return text


def _content(study: Study, scenario: ScenarioReport, place: int) -> Iterator[str]:
    yield _numbers(scenario, _MAIN)
    yield f'<div class="plots">{"".join(_figures(study, scenario, place))}</div>'
    if rows := class_rows(scenario.seeds[0].runs):
        content = table(rows[0], rows[1:])
        yield f"<details><summary>By class, first seed</summary>{content}</details>"
    rest = [metric for metric in METRICS if metric not in _MAIN]
    yield f"<details><summary>More numbers</summary>{_numbers(scenario, rest)}</details>"
    base = escape(scenario.baseline)
    yield f"<details><summary>Against {base}</summary>{_against(scenario)}</details>"
    yield _errors(scenario)


def _numbers(scenario: ScenarioReport, metrics: Iterable[ReplayMetric]) -> str:
    metrics = list(metrics)
    names = [*scenario.policies, *([ORACLE] if scenario.runs(ORACLE) else [])]
    leaders = {metric.key: scenario.leaders(metric.value, metric.better) for metric in metrics}
    rows = []
    for name in names:
        quiet = ' class="quiet"' if name == ORACLE else ""
        cells = [f"<td{quiet}>{escape(name)}</td>"]
        for metric in metrics:
            mark = ' class="best good"' if name in leaders[metric.key] else quiet
            text = _text(scenario.over_seeds(name, metric.value), metric.show)
            cells.append(f"<td{mark}>{text}</td>")
        if scenario.runs(ORACLE):
            against = scenario.ratio(name, ORACLE, E2E_MEAN.value)
            cells.append(f"<td{quiet}>{_text(against, factor)}</td>")
        rows.append(cells)
    heads = [metric.name for metric in metrics]
    heads += [f"e2e {TIMES} oracle"] if scenario.runs(ORACLE) else []
    return sheet(["", *map(escape, heads)], rows, dense=True)


def _text(found: Estimate | None, show: Callable[[float], str]) -> str:
    """As HTML, the interval fainter than the mean."""
    mean, sign, interval = shown(found, show).partition(" ±")
    return escape(mean) + (f' <span class="interval">±{escape(interval)}</span>' if sign else "")


def _against(scenario: ScenarioReport) -> str:
    metrics = [*_MAIN, *DEVIATIONS[:2]]
    rows = [
        (name, *(shown(scenario.ratio(name, scenario.baseline, m.value), factor) for m in metrics))
        for name in scenario.policies
        if name != scenario.baseline
    ]
    return table(("", *(metric.name for metric in metrics)), rows)


def _figures(study: Study, scenario: ScenarioReport, place: int) -> Iterator[str]:
    policies = _by_colour(study)
    if len(scenario.policies) > 1 or scenario.runs(ORACLE):
        yield figure(
            "Policy by policy",
            _bar_caption(scenario),
            plots.bars(scenario, policies, name=f"bars-{place}"),
            wide=True,
        )
    if time_plots.drawn(scenario) and (scenario.windows or len(study.verdicts) > 0):
        yield _course(scenario, place)
    drawn = [name for name in policies[:SERIES_MAX] if name in scenario.policies]
    legend = [name if name in drawn else "" for name in policies]
    share = "Share of requests that took no longer than this"
    share += "; dashed: the oracle" if scenario.runs(ORACLE) else ""
    for title, field, key in (
        ("Time to first token", "ttft_curve_s", "ttft"),
        ("End to end", "e2e_curve_s", "e2e"),
    ):
        svg = plots.cdf(scenario, policies, drawn, field=field, name=f"{key}-{place}")
        yield figure(title, share, svg, legend)
    if scenario.sweeps:
        yield _sweep_figure(policies, scenario, place)
    if plots.has_series(scenario.seeds[0].runs):
        svg = plots.over_time(scenario, policies, name=f"time-{place}")
        yield (
            '<details class="wide"><summary>Node by node over time</summary>'
            + figure(
                "Requests on each node · time that each node needs for what it has",
                "One line a node (a band and the mean of many), running and waiting together; "
                "lines that part are load that is uneven. First seed.",
                svg,
                wide=True,
            )
            + "</details>"
        )


def _course(scenario: ScenarioReport, place: int) -> str:
    runs = time_plots.drawn(scenario)
    kinds = {run.timeline.kind for run in runs} - {""}
    of = f" by {' and '.join(sorted(kinds))}" if kinds else ""
    span_s = time_plots.shaded(scenario)
    shade = "" if span_s is None else f", shaded from {span_s[0]:g} s to {span_s[1]:g} s"
    return figure(
        "Waits · refusals and errors · requests on each node",
        f"Left: p95 of the TTFT{of}. Middle: what failed, by cause. Right: a line a node, and what "
        f"the gateway holds. By when requests were due{shade}; first seed.",
        time_plots.course(scenario, name=f"course-{place}"),
        time_plots.legend(scenario),
        wide=True,
    )


def _bar_caption(scenario: ScenarioReport) -> str:
    parts = ["Shorter is better, except for goodput and hits"]
    if scenario.runs(ORACLE):
        parts.append("dashed: the oracle")
    if scenario.seeds[0].ideal_hit_ratio is not None:
        parts.append("solid: hits of one unbounded cache")
    if len(scenario.seeds) > 1:
        parts.append(f"whiskers: 95 % confidence over {len(scenario.seeds)} seeds")
    return "; ".join(parts)


def _by_colour(study: Study) -> list[str]:
    """Its policies in the order of their colours: as asked for. Of more than there are colours
    the baseline and the fastest come first, since more lines cannot be told apart."""
    if len(study.policies) <= SERIES_MAX:
        return list(study.policies)
    baselines = {scenario.baseline for scenario in study.scenarios}

    def slowness(policy: str) -> float:
        ratios = [s.ratio(policy, s.baseline, E2E_MEAN.value) for s in study.scenarios]
        known = [ratio.mean for ratio in ratios if ratio is not None]
        return fmean(known) if known else inf

    return sorted(study.policies, key=lambda name: (name not in baselines, slowness(name)))


def _sweep_figure(policies: Sequence[str], scenario: ScenarioReport, place: int) -> str:
    target = percent(scenario.sweeps[0].target)
    rows = [
        (
            sweep.policy,
            f"{'≥ ' if best == sweep.tried[-1] else ''}{best.speed:.3g}{TIMES}",
            rate(best.rate_rps),
            rate(best.goodput_rps),
        )
        if (best := sweep.best) is not None
        else (sweep.policy, UNKNOWN, UNKNOWN, UNKNOWN)
        for sweep in scenario.sweeps
    ]
    swept = {sweep.policy for sweep in scenario.sweeps}
    return figure(
        "How much it can take",
        f"Requests within the SLO by arrival rate; dashed: the target of {target}",
        plots.attainment(scenario, policies, name=f"sweep-{place}")
        + table(("", "highest speed", "arrivals", "goodput there"), rows),
        [name if name in swept else "" for name in policies],
        wide=True,
    )


def _errors(scenario: ScenarioReport) -> str:
    rows = [
        (run.policy, count(group.requests), f"{group.outcome}: {group.cause}", group.example)
        for run in scenario.seeds[0].runs
        for group in run.error_groups
    ]
    if not rows:
        return ""
    heads = ("", ERRORS.name, "cause", "first message")
    placed = [
        (name, shown(scenario.over_seeds(name, PLACEMENTS.value), PLACEMENTS.show))
        for name in scenario.policies
    ]
    content = table(heads, rows) + table(("", "placements a request"), placed)
    return f"<details><summary>Errors of the first seed</summary>{content}</details>"
