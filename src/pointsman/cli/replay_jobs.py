"""Simulations in processes of their own, results in the order of the jobs.

A job is a value and its result depends on nothing else, so that any number of processes gives the
same results. What comes back is a run's numbers, not its records: hundreds of runs fit in memory.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import msgspec

from pointsman.cli.replay_sweep import search
from pointsman.core.options import SchedulerOptions
from pointsman.report.replay.measure import Measure
from pointsman.report.replay.numbers import RunNumbers, numbers
from pointsman.report.replay.study import Sweep, SweepPoint
from pointsman.sim import simulate
from pointsman.sim.scenario import Scenario
from pointsman.traffic.arrivals import accelerate
from pointsman.traffic.request import TrafficRequest, summarize

POLL_S = 0.2
"""How often progress is looked at."""

OnShare = Callable[[float], None]


class RunJob(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one scenario under one seed. `name` is what reports call the policy, `label`
    what errors call the job."""

    label: str
    scenario: Scenario
    requests: tuple[TrafficRequest, ...]
    name: str
    options: SchedulerOptions
    seed: int
    keep_series: bool
    timing: bool
    windows: dict[str, tuple[float, float]] = {}
    measures: tuple[Measure, ...] = ()
    ideal_hit_ratio: float | None = None


class SweepJob(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at many speeds; `streams` has the requests of each seed at `speed`."""

    label: str
    scenario: Scenario
    streams: tuple[tuple[int, tuple[TrafficRequest, ...]], ...]
    name: str
    options: SchedulerOptions
    speed: float
    target: float


Job = RunJob | SweepJob
Result = RunNumbers | Sweep


class SimulationFailed(Exception):  # noqa: N818 - named by what happened
    """A simulation broke one of its own checks, or its process died. The text is for the user."""


class _Stopped(Exception):  # noqa: N818 - not an error: nobody waits for the result any more
    pass


def run_jobs(
    jobs: Sequence[Job], *, processes: int, on_progress: Callable[[Sequence[float]], None]
) -> list[Result]:
    """Results in the order of `jobs`. `on_progress` gets each job's share done, 0 to 1.

    Raises SimulationFailed for the first job that fails; the others are given up.
    """
    if processes <= 1 or len(jobs) <= 1:
        return _in_this_process(jobs, on_progress)
    context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks
    shares = context.Array("d", len(jobs), lock=False)
    stop = context.Value("b", 0, lock=False)
    pool = ProcessPoolExecutor(
        min(processes, len(jobs)),
        mp_context=context,
        initializer=_begin_process,
        initargs=(shares, stop),
    )
    with pool:
        futures = [pool.submit(_in_a_process, place, job) for place, job in enumerate(jobs)]
        try:
            return _collected(jobs, futures, lambda: on_progress(list(shares)))
        finally:
            stop.value = 1
            pool.shutdown(wait=True, cancel_futures=True)


def _in_this_process(
    jobs: Sequence[Job], on_progress: Callable[[Sequence[float]], None]
) -> list[Result]:
    shares = [0.0] * len(jobs)
    results = []
    for place, job in enumerate(jobs):

        def on_share(share: float, place: int = place) -> None:
            shares[place] = share
            on_progress(shares)

        try:
            results.append(perform(job, on_share))
        except AssertionError as error:
            raise SimulationFailed(_failure(job, error)) from error
        on_share(1.0)
    return results


def _collected(
    jobs: Sequence[Job], futures: Sequence[Future[Result]], look: Callable[[], None]
) -> list[Result]:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=POLL_S, return_when="FIRST_EXCEPTION")
        look()
        for job, future in zip(jobs, futures, strict=True):
            if future in done and (error := future.exception()) is not None:
                if isinstance(error, AssertionError | BrokenProcessPool):
                    raise SimulationFailed(_failure(job, error)) from error
                raise error
    return [future.result() for future in futures]


_process: dict[str, Any] = {}  # what a worker process was given: filled once, before any job


def _begin_process(shares: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all: end without a traceback
    _process.update(shares=shares, stop=stop)


def _in_a_process(place: int, job: Job) -> Result:
    shares, stop = _process["shares"], _process["stop"]

    def on_share(share: float) -> None:
        shares[place] = share
        if stop.value:
            raise _Stopped

    result = perform(job, on_share)
    shares[place] = 1.0
    return result


def perform(job: Job, on_share: OnShare) -> Result:
    """Run one job here."""
    return _run(job, on_share) if isinstance(job, RunJob) else _sweep(job, on_share)


def _run(job: RunJob, on_share: OnShare) -> RunNumbers:
    run = simulate(
        job.scenario,
        job.requests,
        policy=job.options.policy,
        seed=job.seed,
        options=job.options,
        stopwatch=time.perf_counter if job.timing else None,
        on_progress=on_share,
    )
    found = numbers(
        run,
        job.scenario.slo,
        keep_series=job.keep_series,
        windows=job.windows,
        measures=job.measures,
        ideal_hit_ratio=job.ideal_hit_ratio,
    )
    return msgspec.structs.replace(found, policy=job.name)


def _sweep(job: SweepJob, on_share: OnShare) -> Sweep:
    tried = 0

    def evaluate(factor: float) -> SweepPoint:
        nonlocal tried
        share = 1 - 0.8**tried  # how many there will be is not known before
        tried += 1
        return _point(job, factor, lambda _: on_share(share))

    best, points = search(evaluate, target=job.target)
    return Sweep(policy=job.name, target=job.target, best=best, tried=points)


def _point(job: SweepJob, factor: float, on_progress: OnShare) -> SweepPoint:
    """The means over all seeds at one speed."""
    found, rates = [], []
    for seed, stream in job.streams:
        requests = accelerate(stream, speed=factor)
        run = simulate(
            job.scenario,
            requests,
            policy=job.options.policy,
            seed=seed,
            options=job.options,
            on_progress=on_progress,
        )
        found.append(numbers(run, job.scenario.slo, keep_series=False))
        rates.append(summarize(requests).rate_rps)
    return SweepPoint(
        speed=job.speed * factor,
        rate_rps=sum(rates) / len(rates),
        slo_attainment=sum(run.slo_attainment for run in found) / len(found),
        goodput_rps=sum(run.goodput_rps for run in found) / len(found),
    )


def _failure(job: Job, error: BaseException) -> str:
    if isinstance(error, BrokenProcessPool):
        return f"{job.label}: a process of the simulation was ended, perhaps for want of memory"
    return f"{job.label}: the simulation broke its own check: {error or type(error).__name__}"
