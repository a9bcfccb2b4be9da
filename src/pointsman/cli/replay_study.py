"""Jobs from what is planned, and the study from their results: one order for both."""

from collections.abc import Iterator, Sequence

import msgspec

from pointsman.cli.replay_jobs import Job, Result, RunJob, SweepJob
from pointsman.cli.replay_plan import Planned, Stream
from pointsman.core.options import SchedulerOptions
from pointsman.report.replay.expectation import Expectation, judge, measures_of
from pointsman.report.replay.measure import Measure
from pointsman.report.replay.numbers import RunNumbers
from pointsman.report.replay.study import ORACLE, ScenarioReport, SeedResult, Study, Sweep
from pointsman.report.replay.verdict import Verdict
from pointsman.report.rows import TIMES, count
from pointsman.sim import pooled
from pointsman.sim.pooled import POLICY as ORACLES_POLICY
from pointsman.sim.scenario import NodeGroup
from pointsman.traffic.request import summarize

_ORACLES = SchedulerOptions(policy=ORACLES_POLICY)


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and keep beside each policy's numbers. `sweep_target` None is no sweep."""

    oracle: bool
    series: bool
    timing: bool
    sweep_target: float | None


def jobs_of(planned: Planned, extras: Extras, measures: tuple[Measure, ...] = ()) -> list[Job]:
    """Seed by seed every policy and the oracle, then a sweep a policy. `measures` are wanted of
    each run."""
    jobs: list[Job] = []
    for place, stream in enumerate(planned.streams):
        jobs += [
            _run_job(planned, stream, policy, extras, measures, first=place == 0)
            for policy in _rows(planned, extras)
        ]
    if extras.sweep_target is not None:
        jobs += [_sweep_job(planned, policy, extras.sweep_target) for policy in planned.policies]
    return jobs


def all_jobs(planned: Sequence[Planned], extras: Extras) -> list[Job]:
    """Of every scenario, with what the bars of its file want measured there."""
    return [
        job
        for each in planned
        for job in jobs_of(
            each, extras, measures_of(bars_of(planned, each.file), each.scenario.name)
        )
    ]


def study_of(planned: Sequence[Planned], results: Sequence[Result], extras: Extras) -> Study:
    """`results` are those of `all_jobs`, in their order."""
    ordered = iter(results)
    reports = tuple(_report(each, ordered, extras) for each in planned)
    verdicts: list[Verdict] = []
    for file in dict.fromkeys(each.file for each in planned):
        own = [r for r, each in zip(reports, planned, strict=True) if each.file == file]
        verdicts += judge(bars_of(planned, file), own)
    return Study(scenarios=reports, verdicts=tuple(verdicts))


def bars_of(planned: Sequence[Planned], file: str) -> list[tuple[str, Expectation]]:
    """What the scenarios of a file are to show, each with the name of its scenario."""
    return [
        (each.scenario.name, expectation)
        for each in planned
        if each.file == file
        for expectation in each.expect
    ]


def _rows(planned: Planned, extras: Extras) -> tuple[str, ...]:
    return (*planned.policies, *((ORACLE,) if extras.oracle else ()))


def _run_job(
    planned: Planned,
    stream: Stream,
    policy: str,
    extras: Extras,
    measures: tuple[Measure, ...],
    *,
    first: bool,
) -> RunJob:
    """Series are kept of the first seed only: one is enough to look at."""
    oracle = policy == ORACLE
    return RunJob(
        label=f"{planned.scenario.name}, {policy}, seed {stream.seed}",
        scenario=pooled(planned.scenario) if oracle else planned.scenario,
        requests=stream.requests,
        name=ORACLE if oracle else policy,
        options=_ORACLES if oracle else planned.options[policy],
        seed=stream.seed,
        keep_series=extras.series and first and not oracle,
        timing=extras.timing,
        windows={} if oracle else planned.windows,
        measures=() if oracle else measures,
        ideal_hit_ratio=stream.ideal_hit_ratio,
    )


def _sweep_job(planned: Planned, policy: str, target: float) -> SweepJob:
    return SweepJob(
        label=f"{planned.scenario.name}, {policy}, sweep",
        scenario=planned.scenario,
        streams=tuple((stream.seed, stream.requests) for stream in planned.streams),
        name=policy,
        options=planned.options[policy],
        speed=planned.speed,
        target=target,
    )


def _report(planned: Planned, results: Iterator[Result], extras: Extras) -> ScenarioReport:
    scenario = planned.scenario
    seeds = tuple(_seed(planned, stream, results, extras) for stream in planned.streams)
    sweeping = planned.policies if extras.sweep_target is not None else ()
    return ScenarioReport(
        name=scenario.name,
        trace=planned.source,
        nodes=scenario.nodes,
        speed=planned.speed,
        fleet=" + ".join(map(_group, scenario.fleet)),
        slo=scenario.slo,
        baseline=planned.baseline,
        seeds=seeds,
        notes=planned.notes,
        sweeps=tuple(_sweep(next(results)) for _ in sweeping),
        windows=planned.windows,
        troubled_s=scenario.troubled_s,
    )


def _seed(
    planned: Planned, stream: Stream, results: Iterator[Result], extras: Extras
) -> SeedResult:
    runs = tuple(_run(next(results)) for _ in planned.policies)
    oracle = _run(next(results)) if extras.oracle else None
    return SeedResult(
        seed=stream.seed,
        traffic=summarize(stream.requests),
        ideal_hit_ratio=stream.ideal_hit_ratio,
        runs=runs,
        oracle=oracle,
    )


def _run(result: Result) -> RunNumbers:
    assert isinstance(result, RunNumbers), result
    return result


def _sweep(result: Result) -> Sweep:
    assert isinstance(result, Sweep), result
    return result


def _group(group: NodeGroup) -> str:
    """Count, profile, and what differs from it."""
    profile = group.profile if isinstance(group.profile, str) else group.profile.name
    details = []
    if group.slowdown != 1:
        details.append(f"{group.slowdown:g}{TIMES} as slow")
    if group.kv_tokens is not None:
        details.append(f"{count(group.kv_tokens)} KV tokens")
    if group.startup_s:
        details.append(f"from {group.startup_s:g} s on")
    return f"{group.count} {TIMES} {profile}" + (f" ({', '.join(details)})" if details else "")
