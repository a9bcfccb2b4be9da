"""What ran, in sentences that the terminal and the page share."""

from collections.abc import Sequence

from pointsman.report.replay.metrics import DEVIATIONS, ReplayMetric
from pointsman.report.replay.study import ScenarioReport
from pointsman.report.rows import TIMES, count, objective, percent, rate, shown


def sent(scenario: ScenarioReport) -> str:
    """The requests, the nodes and the seeds."""
    traffic = scenario.seeds[0].traffic
    speed = f" at {TIMES}{scenario.speed:g}" if scenario.speed != 1 else ""
    seeds = ", ".join(str(seed.seed) for seed in scenario.seeds)
    return (
        f"{count(traffic.requests)} requests{speed}, {rate(traffic.rate_rps)} over "
        f"{count(traffic.span_s)} s; mean {count(traffic.input_tokens_mean)} tokens in, "
        f"{count(traffic.output_tokens_mean)} out; {scenario.fleet}; "
        f"seed{'s' if len(scenario.seeds) > 1 else ''} {seeds}"
    )


def asked(scenario: ScenarioReport) -> str:
    """The objective, and the best hit ratio that there could be."""
    return (
        f"{objective(scenario.slo)}; hit ratio of one unbounded cache: "
        f"{shown(scenario.seeds[0].ideal_hit_ratio, percent)}"
    )


DEVIATIONS_MEANING = (
    "load dev.: how unevenly the nodes were loaded, sigma / mu of their requests; rem. dev.: of "
    "the time that each needed for what it had; rem. spread: that sigma"
)


def legend(metrics: Sequence[ReplayMetric]) -> str:
    """What the marks and the shortened names of these columns mean."""
    told = ["*: best"]
    if any(metric in DEVIATIONS for metric in metrics):
        told.append(DEVIATIONS_MEANING)
    return "; ".join(told)
