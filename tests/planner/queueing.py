"""Jobs through chains, simulated: what dispatch rules make of the same chains.

Arrivals are Poisson, a job's work is exponential with mean 1, and a chain takes `service_s` for a
unit of work, however many of its job slots are busy. A job never
moves once it has begun.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple, assert_never

from pointsman.planner.model import ServerChain


class Dispatch(StrEnum):
    """Where an arriving job goes. Chains are in the order of their speed."""

    JFFC = "jffc"
    """The fastest chain with a free slot; else a central queue, for whichever is free next. The
    paper's rule (algorithm 3): it carries every rate below the service rate (lemma 3)."""
    SA_JSQ = "sa_jsq"
    """The free chain with the fewest jobs, of these the fastest; else the central queue."""
    SED = "sed"
    """The chain with the shortest expected time until the job is done, and its own queue."""
    JSQ = "jsq"
    """The chain with the fewest jobs, by lot among equals, and its own queue."""
    JIQ = "jiq"
    """A chain with a free slot, by lot; else any chain, by lot, and its own queue."""


def simulate(
    chains: Sequence[ServerChain],
    *,
    rate_per_s: float,
    dispatch: Dispatch,
    jobs: int,
    rng: Random,
) -> list[float]:
    """Response times, in seconds, of `jobs` jobs in the order in which they were done.

    It starts empty and runs until the last job is done. Equal generators give every rule the very
    same arrivals and work.
    """
    if not chains or rate_per_s <= 0:
        raise ValueError(f"nothing to simulate: {len(chains)} chains, {rate_per_s} jobs per second")
    queues = _Queues(chains, dispatch, Random(rng.random()))
    responses: list[float] = []
    now_s = 0.0
    for _ in range(jobs):
        now_s += rng.expovariate(rate_per_s)
        queues.complete(until_s=now_s, responses=responses)
        queues.arrive(_Job(now_s, rng.expovariate(1.0)))
    queues.complete(until_s=float("inf"), responses=responses)
    return responses


class _Job(NamedTuple):
    arrived_s: float
    work: float


class _Queues:
    """The jobs present: on each chain (`counts`, waiting ones included), and in the central queue.

    No queue is bounded but by the number of jobs simulated.
    """

    def __init__(self, chains: Sequence[ServerChain], dispatch: Dispatch, rng: Random) -> None:
        self._chains = sorted(chains, key=lambda chain: chain.service_s)
        self._counts = [0] * len(chains)
        self._waiting: list[deque[_Job]] = [deque() for _ in chains]
        self._central: deque[_Job] = deque()
        self._running: list[tuple[float, int, _Job]] = []  # a heap: when done, chain, job
        self._choose = _rule(dispatch, self._chains, self._counts, rng)

    def arrive(self, job: _Job) -> None:
        chosen = self._choose()
        if chosen is None:
            self._central.append(job)
            return
        self._counts[chosen] += 1
        if self._counts[chosen] <= self._chains[chosen].job_slots:
            self._start(job, chosen, job.arrived_s)
        else:
            self._waiting[chosen].append(job)

    def complete(self, *, until_s: float, responses: list[float]) -> None:
        while self._running and self._running[0][0] <= until_s:
            now_s, index, job = heappop(self._running)
            responses.append(now_s - job.arrived_s)
            if self._waiting[index]:
                self._start(self._waiting[index].popleft(), index, now_s)
                self._counts[index] -= 1
            elif self._central:
                self._start(self._central.popleft(), index, now_s)
            else:
                self._counts[index] -= 1

    def _start(self, job: _Job, index: int, now_s: float) -> None:
        done_s = now_s + job.work * self._chains[index].service_s
        heappush(self._running, (done_s, index, job))


def _rule(
    dispatch: Dispatch, chains: Sequence[ServerChain], counts: Sequence[int], rng: Random
) -> Callable[[], int | None]:
    """The rule as a function of the `counts` at the time; None sends a job to the central queue."""
    every = range(len(chains))
    slots = [chain.job_slots for chain in chains]

    def free() -> list[int]:
        return [index for index in every if counts[index] < slots[index]]

    def done_s(index: int) -> float:
        ahead = max(0, counts[index] + 1 - slots[index])
        return chains[index].service_s * (1.0 + ahead / slots[index])

    match dispatch:
        case Dispatch.JFFC:
            return lambda: next((k for k in every if counts[k] < slots[k]), None)
        case Dispatch.SA_JSQ:
            return lambda: min(free(), key=counts.__getitem__, default=None)
        case Dispatch.SED:
            return lambda: min(every, key=done_s)
        case Dispatch.JSQ:
            return lambda: min(every, key=lambda index: (counts[index], rng.random()))
        case Dispatch.JIQ:
            return lambda: rng.choice(free() or every)
        case _:
            assert_never(dispatch)
