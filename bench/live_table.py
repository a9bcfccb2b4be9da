"""What a live cross-check found, as tables and verdicts."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.live_twin import TWINS, Twin
from bench.peers.gateways import OURS as OUR_PROGRAM
from bench.peers.gateways import TOKEN_IDS
from pointsman.report.run import Run
from pointsman.report.summary import Quantiles, Summary
from pointsman.sim.scenario import Index

OURS = OUR_PROGRAM.name
PEER_BAR = 0.9
"""Our TTFT, mean and p95, against the better of the peers'."""

TWIN_BAR = 0.10
"""How far the simulator may be from the live run: mean TTFT and hit ratio."""

TIE_BAND = 0.05
"""Mean TTFTs of one live run that are closer than this are not told apart."""

BUSY_SHARE_MAX = 0.85
LAG_S_MAX = 0.02
COLUMNS = 160


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """How many cores each part kept busy on average, of `cores` that there are."""

    cores: int
    client: float
    router: float
    engines: float
    machine: float


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """All requests once through one router, to engines that nobody used before. `overhead_s` is
    what the path adds to the first token of a request that is alone."""

    run: Run
    summary: Summary
    cores: Cores
    overhead_s: float


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """One router, as it was asked to route, live: at least one turn."""

    router: str
    kind: str
    turns: tuple[Turn, ...]

    @property
    def label(self) -> str:
        return self.turns[0].run.label

    @property
    def summaries(self) -> list[Summary]:
        return [turn.summary for turn in self.turns]

    @property
    def overhead_s(self) -> float:
        return statistics.mean(turn.overhead_s for turn in self.turns)

    @property
    def twin(self) -> Twin:
        """What of ours stands for it in the simulator."""
        if self.kind.endswith(TOKEN_IDS):
            return Twin(self.kind.removesuffix(TOKEN_IDS), Index.PRECISE)
        return Twin(self.kind) if self.router == OURS else TWINS.get(self.kind, Twin(self.kind))


Simulated = Mapping[Twin, Sequence[Summary]]


def show(found: Sequence[Contender], twins: Simulated) -> None:
    """Everything, on stdout."""
    console = Console(width=COLUMNS, highlight=False)
    console.print(_live_table(found))
    if twins:
        console.print(_twin_table(found, twins))
    for line in (*verdicts(found), *(twin_verdicts(found, twins) if twins else ())):
        console.print(line)
    for line in warnings(found):
        console.print(f"WARNING: {line}")


def verdicts(found: Sequence[Contender]) -> Iterator[str]:
    """Our default, which comes first of ours, against the better of the peers: means over their
    turns, and the range of the ratios of turns that were next to each other."""
    ours = [one for one in found if one.router == OURS]
    peers = [one for one in found if one.router != OURS]
    if not ours or not peers:
        return
    for name, value in (("mean", ttft_mean_s), ("p95", ttft_p95_s)):
        best = min(peers, key=lambda one: _mean(value, one.summaries))
        ratio = _mean(value, ours[0].summaries) / _mean(value, best.summaries)
        pairs = zip(ours[0].summaries, best.summaries, strict=False)
        ratios = sorted(value(mine) / value(theirs) for mine, theirs in pairs)
        told = f"{ratio:.2f} (turns {ratios[0]:.2f}-{ratios[-1]:.2f})"
        verdict = f"{'within' if ratio <= PEER_BAR else 'OVER'} the bar {PEER_BAR}"
        yield f"TTFT {name}: {ours[0].label} {told} of {best.label}, {verdict}"


def twin_verdicts(found: Sequence[Contender], twins: Simulated) -> Iterator[str]:
    """The simulator against the live runs of our own policies."""
    ours = [one for one in found if one.router == OURS]
    for one in ours:
        summaries = twins[one.twin]
        for name, value in (("mean TTFT", ttft_mean_s), ("hit ratio", _hit_ratio)):
            off = _mean(value, summaries) / _mean(value, one.summaries) - 1
            verdict = f"{'within' if abs(off) <= TWIN_BAR else 'OVER'} the bar {TWIN_BAR:.0%}"
            yield f"simulator, {one.label}: {name} {off:+.0%} of live, {verdict}"
    yield from _ranking(ours, twins)


def _ranking(ours: Sequence[Contender], twins: Simulated) -> Iterator[str]:
    """By mean TTFT; those that live runs do not tell apart may stand in either order."""
    live = {one.label: _mean(ttft_mean_s, one.summaries) for one in ours}
    simulated = {one.label: _mean(ttft_mean_s, twins[one.twin]) for one in ours}
    ranked = sorted(live, key=lambda label: live[label])
    swapped = [
        f"{worse} before {better}"
        for better, worse in combinations(ranked, 2)
        if live[worse] > live[better] * (1 + TIE_BAND) and simulated[worse] < simulated[better]
    ]
    told = "the same" if not swapped else f"ANOTHER: {', '.join(swapped)}"
    yield f"ranking by mean TTFT, live: {' < '.join(ranked)}; simulated: {told}"


def warnings(found: Sequence[Contender]) -> Iterator[str]:
    """Whatever makes a run worth less."""
    for turn in (turn for one in found for turn in one.turns):
        label, summary, cores = turn.run.label, turn.summary, turn.cores
        if cores.machine > BUSY_SHARE_MAX * cores.cores:
            yield f"{label}: {cores.machine:.1f} of {cores.cores} cores were busy"
        if summary.lag_s is not None and summary.lag_s.p99 > LAG_S_MAX:
            yield f"{label}: the client lagged by {summary.lag_s.p99 * 1e3:.0f} ms at p99"
        if summary.errors:
            causes = ", ".join(f"{group.cause} x{group.requests}" for group in summary.error_groups)
            yield f"{label}: {summary.errors} of {summary.requests} failed: {causes}"


def ttft_mean_s(summary: Summary) -> float:
    return _times(summary.ttft_s).mean


def ttft_p95_s(summary: Summary) -> float:
    return _times(summary.ttft_s).p95


def _hit_ratio(summary: Summary) -> float:
    return summary.hit_ratio or 0.0


def _times(times: Quantiles | None) -> Quantiles:
    """Of nothing, all are endless."""
    endless = float("inf")
    return times or Quantiles(mean=endless, p50=endless, p95=endless, p99=endless, max=endless)


def _mean(value: Callable[[Summary], float], summaries: Sequence[Summary]) -> float:
    return statistics.mean(map(value, summaries))


def _live_table(found: Sequence[Contender]) -> Table:
    turns = max((len(one.turns) for one in found), default=0)
    what = f"mean of {turns} turns each" if turns > 1 else "one turn each"
    table = _table(f"Live, {what}: seconds; cores kept busy, and what the path adds when idle")
    for heading, _, _ in _SERVED:
        table.add_column(heading, justify="right")
    for heading, _, _ in _SPENT:
        table.add_column(heading, justify="right", style="dim")
    for one in found:
        served = (form(_mean(value, one.summaries)) for _, value, form in _SERVED)
        spent = (form(statistics.mean(map(value, one.turns))) for _, value, form in _SPENT)
        table.add_row(one.label, *served, *spent)
    return table


def _twin_table(found: Sequence[Contender], twins: Simulated) -> Table:
    table = _table("Simulated beside live; peers by their formula, on our index and counts")
    for heading, _, _ in _COMPARED:
        table.add_column(f"{heading}\nlive", justify="right")
        table.add_column("simulated", justify="right")
        table.add_column("ratio", justify="right", style="dim")
    for one in found:
        cells: list[str] = []
        for _, value, form in _COMPARED:
            live, simulated = _mean(value, one.summaries), [*map(value, twins[one.twin])]
            mean, low, high = statistics.mean(simulated), min(simulated), max(simulated)
            cells += [form(live), f"{form(mean)} ({form(low)}-{form(high)})"]
            cells.append(f"{mean / live:.2f}" if live else "-")
        table.add_row(one.label, *cells)
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    return table


def _two_places(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value * 100:.1f}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _milliseconds(value_s: float) -> str:
    return f"{value_s * 1e3:.0f}"


_Column = tuple[str, Callable[[Summary], float], Callable[[float], str]]

_SERVED: tuple[_Column, ...] = (
    ("TTFT\nmean", ttft_mean_s, _two_places),
    ("p50", lambda summary: _times(summary.ttft_s).p50, _two_places),
    ("p95", ttft_p95_s, _two_places),
    ("p99", lambda summary: _times(summary.ttft_s).p99, _two_places),
    ("e2e\nmean", lambda summary: _times(summary.e2e_s).mean, _two_places),
    ("TPOT\nms", lambda summary: _times(summary.tpot_s).mean, _milliseconds),
    ("hit\n%", _hit_ratio, _percent),
    ("errors", lambda summary: summary.errors, _count),
)

_SPENT: tuple[tuple[str, Callable[[Turn], float], Callable[[float], str]], ...] = (
    ("client", lambda turn: turn.cores.client, _two_places),
    ("router", lambda turn: turn.cores.router, _two_places),
    ("engines", lambda turn: turn.cores.engines, _two_places),
    ("all", lambda turn: turn.cores.machine, _two_places),
    ("lag p99\nms", lambda turn: _times(turn.summary.lag_s).p99, _milliseconds),
    ("idle\n+ms", lambda turn: turn.overhead_s, _milliseconds),
)

_COMPARED: tuple[_Column, ...] = (
    ("TTFT mean", ttft_mean_s, _two_places),
    ("TTFT p95", ttft_p95_s, _two_places),
    ("e2e mean", lambda summary: _times(summary.e2e_s).mean, _two_places),
    ("hit %", _hit_ratio, _percent),
)
