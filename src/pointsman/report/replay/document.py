"""The JSON of a study. The schema is stable, and equal studies give equal bytes.

`{"schema", "scenarios": [{"trace", "nodes", "speed", "seed", "policies": {NAME: {"ttft_s",
"tpot_s", "e2e_s", "hit_ratio", "goodput", "requests", "errors", …}}, "oracle", …}],
"across_seeds": […], "sweeps": […], "expectations": […]}`, one entry a scenario and seed. Latencies
are in seconds and of requests that ended well, `goodput` is in requests per second; what is unknown
is null.
"""

from math import isinf
from typing import Any

import msgspec

from pointsman.report.replay.metrics import METRICS, ReplayMetric
from pointsman.report.replay.numbers import RunNumbers
from pointsman.report.replay.spread import Estimate
from pointsman.report.replay.study import ORACLE, ScenarioReport, SeedResult, Study
from pointsman.report.summary import Quantiles

SCHEMA = "pointsman.replay/1"
"""Fields may be added within a version; one that is renamed or dropped makes a new version."""


def encode_study(study: Study, *, timing: bool = False) -> bytes:
    """With `timing` also how long simulating and deciding took, which no two runs share."""
    document = {
        "schema": SCHEMA,
        "scenarios": [
            _scenario(scenario, seed, timing=timing)
            for scenario in study.scenarios
            for seed in scenario.seeds
        ],
        "across_seeds": [_across_seeds(scenario) for scenario in study.scenarios],
        "sweeps": [_sweeps(scenario) for scenario in study.scenarios if scenario.sweeps],
        "expectations": msgspec.to_builtins(study.verdicts),
    }
    return msgspec.json.encode(document) + b"\n"


def _scenario(scenario: ScenarioReport, seed: SeedResult, *, timing: bool) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "trace": scenario.trace,
        "nodes": scenario.nodes,
        "speed": scenario.speed,
        "seed": seed.seed,
        "fleet": scenario.fleet,
        "slo": msgspec.to_builtins(scenario.slo),
        "traffic": msgspec.to_builtins(seed.traffic),
        "ideal_hit_ratio": seed.ideal_hit_ratio,
        "notes": list(scenario.notes),
        "windows": {name: _span(span_s) for name, span_s in scenario.windows.items()},
        "baseline": scenario.baseline,
        "policies": {run.policy: _run(run, seed.oracle, timing=timing) for run in seed.runs},
        "oracle": None if seed.oracle is None else _run(seed.oracle, None, timing=timing),
    }


def _span(span_s: tuple[float, float]) -> list[float | None]:
    """JSON has no infinity: null is the end of all time."""
    return [None if isinf(second) else second for second in span_s]


def _run(run: RunNumbers, oracle: RunNumbers | None, *, timing: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "ttft_s": _quantiles(run.ttft_s),
        "tpot_s": _quantiles(run.tpot_s),
        "e2e_s": _quantiles(run.e2e_s),
        "hit_ratio": run.hit_ratio,
        "goodput": run.goodput_rps,
        "requests": run.requests,
        "errors": run.errors,
        "slo_attainment": run.slo_attainment,
        "throughput": run.throughput_rps,
        "duration_s": run.duration_s,
        "load_deviation": run.load_deviation,
        "remaining_deviation": run.remaining_deviation,
        "remaining_deviation_s": run.remaining_deviation_s,
        "attempts": run.attempts,
        "held": run.held,
        "error_groups": msgspec.to_builtins(run.error_groups),
        "classes": msgspec.to_builtins(run.classes),
        "measured": run.measured,
    }
    if oracle is not None:
        described["ratio_to_oracle"] = {
            "e2e_s.mean": _over(run.e2e_s, oracle.e2e_s),
            "ttft_s.mean": _over(run.ttft_s, oracle.ttft_s),
        }
    if timing:
        described["wall_s"] = run.wall_s
        described["realtime_factor"] = run.realtime_factor
        described["decision_s"] = _quantiles(run.decision_s)
    return described


def _quantiles(found: Quantiles | None) -> dict[str, float | None]:
    return {part: getattr(found, part, None) for part in ("mean", "p50", "p95", "p99")}


def _over(value: Quantiles | None, base: Quantiles | None) -> float | None:
    return None if value is None or base is None or not base.mean else value.mean / base.mean


def _across_seeds(scenario: ScenarioReport) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "seeds": [seed.seed for seed in scenario.seeds],
        "baseline": scenario.baseline,
        "policies": {
            policy: {metric.key: _compared(scenario, policy, metric) for metric in METRICS}
            for policy in scenario.policies
        },
    }


def _compared(scenario: ScenarioReport, policy: str, metric: ReplayMetric) -> dict[str, Any]:
    """Mean and half the 95 % interval, of the metric and of its ratios."""
    value = metric.value
    described = _estimate(scenario.over_seeds(policy, value))
    described["to_baseline"] = _estimate(scenario.ratio(policy, scenario.baseline, value))
    if metric.better:
        peer = scenario.against_best_peer(policy, value, metric.better)
        described["to_best_peer"] = _estimate(peer)
    if scenario.runs(ORACLE):
        described["to_oracle"] = _estimate(scenario.ratio(policy, ORACLE, value))
    return described


def _estimate(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {"mean": None, "ci95": None}
    return {"mean": found.mean, "ci95": found.half_width}


def _sweeps(scenario: ScenarioReport) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "trace": scenario.trace,
        "policies": {
            sweep.policy: {
                "target": sweep.target,
                "best": msgspec.to_builtins(sweep.best),
                "tried": msgspec.to_builtins(sweep.tried),
            }
            for sweep in scenario.sweeps
        },
    }
