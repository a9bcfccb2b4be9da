"""The engine on virtual time takes stretches of steps at once, and nobody can tell."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.engines.compute_model import ComputeModel, Job, Profile, Removed, StepOutcome, Stored
from pointsman.sim.clock import Clock, Timer
from pointsman.sim.engine import Engine
from tests.support.profiles import CRAMPED


class StepByStep:
    """The slow twin: one event a step, no stretches."""

    def __init__(
        self, clock: Clock, profile: Profile, on_outcome: Callable[[StepOutcome], None]
    ) -> None:
        self.model = ComputeModel(profile)
        self._clock = clock
        self._on_outcome = on_outcome
        self._slowdown = 1.0
        self._frozen_until_s = 0.0
        self._running = False
        self._timer: Timer | None = None

    def add(self, job: Job) -> None:
        self.model.add(job)
        self._begin()

    def abort(self, job_id: str) -> None:
        self.model.abort(job_id)

    def slow_down(self, slowdown: float) -> None:
        self._slowdown = slowdown

    def hang(self, duration_s: float) -> None:
        now_s, before_s = self._clock.now_s, self._frozen_until_s
        self._frozen_until_s = max(before_s, now_s + duration_s)
        if self._timer is None:
            self._clock.at(self._frozen_until_s, self._begin)
        else:
            self._timer.cancel()
            stood_s = self._frozen_until_s - max(now_s, before_s)
            self._timer = self._clock.at(self._timer.due_s + stood_s, self._end)

    def _begin(self) -> None:
        if self._timer is not None or self._clock.now_s < self._frozen_until_s:
            return
        step = self.model.plan()
        if step is not None:
            self._timer = self._clock.after(step.duration_s * self._slowdown, self._end)

    def _end(self) -> None:
        self._timer = None
        self._on_outcome(self.model.complete())
        self._begin()


class Seen:
    """What came of the jobs, and what the cache told."""

    def __init__(self, clock: Clock) -> None:
        self.first_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.removed: list[int] = []
        self.stored: list[tuple[str, int, int]] = []
        self.outcomes = 0
        self._clock = clock

    def __call__(self, outcome: StepOutcome) -> None:
        self.outcomes += 1
        for sequence in outcome.advanced:
            if sequence.generated == 1:
                self.first_s[sequence.job.id] = self._clock.now_s
        for sequence in outcome.finished:
            self.ended_s[sequence.job.id] = self._clock.now_s
        for event in outcome.events:
            match event:
                case Removed(hashes):
                    self.removed += hashes
                case Stored(job, first, count):
                    self.stored.append((job.id, first, count))


def jobs_of(rows: list[tuple[int, int, int, int]]) -> list[tuple[float, Job]]:
    """`(when, prompt, output, prefix)` each; jobs of one prefix share full blocks."""
    made = []
    for number, (when, prompt, output, prefix) in enumerate(rows):
        hashes = tuple(1000 * prefix + block for block in range(prompt // 4))
        made.append((_at_s(when, number), Job(str(number), prompt, output, hashes)))
    return made


def _at_s(when: int, number: int) -> float:
    """Never at the very end of a step, where the order would be a matter of rounding."""
    return when * 0.00731 + (number + 1) * 1.23456789e-6


JOBS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(1, 50), st.integers(0, 2)),
    max_size=8,
)
WHEN = st.integers(0, 400)
ACTS = st.lists(
    st.one_of(
        st.tuples(WHEN, st.just("abort"), st.integers(0, 7)),
        st.tuples(WHEN, st.just("slow_down"), st.sampled_from([0.5, 1.0, 1.7, 3.0])),
        st.tuples(WHEN, st.just("hang"), st.floats(min_value=0.001, max_value=2.0)),
    ),
    max_size=8,
)


def play(
    rows: list[tuple[int, int, int, int]],
    acts: list[tuple[int, str, float]],
    *,
    stretches: bool,
) -> tuple[Seen, ComputeModel]:
    clock = Clock()
    seen = Seen(clock)
    engine: Engine | StepByStep
    if stretches:
        engine = Engine(clock, CRAMPED, seen, slowdown=1.0)
    else:
        engine = StepByStep(clock, CRAMPED, seen)
    for at_s, job in jobs_of(rows):
        clock.at(at_s, engine.add, job)
    for number, (when, name, value) in enumerate(acts, start=100):
        argument = str(value) if name == "abort" else value
        clock.at(_at_s(when, number), getattr(engine, name), argument)
        clock.at(_at_s(when, number), engine.model.check)
    clock.run()
    engine.model.check()
    return seen, engine.model


@settings(max_examples=200, deadline=None)
@given(rows=JOBS, acts=ACTS)
def test_stretches_are_seen_by_nobody(
    rows: list[tuple[int, int, int, int]], acts: list[tuple[int, str, float]]
) -> None:
    fast, fast_model = play(rows, acts, stretches=True)
    slow, slow_model = play(rows, acts, stretches=False)
    assert fast.first_s == pytest.approx(slow.first_s, abs=1e-6)
    assert fast.ended_s == pytest.approx(slow.ended_s, abs=1e-6)
    assert fast.removed == slow.removed
    assert fast.stored == slow.stored
    assert fast_model.preemptions == slow_model.preemptions
    assert fast_model.pool.cached == slow_model.pool.cached
    assert fast_model.pool.used == slow_model.pool.used == 0


def test_a_long_answer_takes_few_events() -> None:
    alone, _ = play([(0, 8, 50, 1)], [], stretches=True)
    assert alone.outcomes == 2  # the prefill, and all the rest
    step_by_step, _ = play([(0, 8, 50, 1)], [], stretches=False)
    assert step_by_step.outcomes == 50


def test_an_idle_engine_hangs_as_well_and_twice() -> None:
    clock = Clock()
    seen = Seen(clock)
    engine = Engine(clock, CRAMPED, seen, slowdown=1.0)
    engine.hang(2.0)
    clock.at(1.0, engine.hang, 3.0)
    clock.at(1.5, engine.add, Job("a", 4, 1))
    clock.run()
    prefill_s = 0.01 + 4e-4 + 16e-7
    assert seen.first_s["a"] == pytest.approx(4.0 + prefill_s, abs=1e-12)


def test_a_shorter_hang_inside_a_longer_one_adds_nothing() -> None:
    ends = []
    for acts in ([(1, "hang", 2.0)], [(1, "hang", 2.0), (50, "hang", 0.5)]):
        seen, _ = play([(0, 8, 50, 0)], acts, stretches=True)
        ends.append(seen.ended_s["0"])
    assert ends[0] == pytest.approx(ends[1], abs=1e-9)
    assert ends[0] > 2.0


def test_a_dead_engine_tells_nothing_more() -> None:
    clock = Clock()
    seen = Seen(clock)
    engine = Engine(clock, CRAMPED, seen, slowdown=1.0)
    engine.add(Job("a", 8, 5))
    clock.at(0.02, engine.kill)
    clock.run()
    assert list(seen.first_s) == ["a"]
    assert seen.ended_s == {}


def test_a_job_that_never_fits_is_refused_and_leaves_no_trace() -> None:
    clock = Clock()
    seen = Seen(clock)
    engine = Engine(clock, CRAMPED, seen, slowdown=2.0)
    engine.add(Job("a", 8, 30))
    clock.at(0.1, _refused, engine)
    clock.run()
    prefill_s = 0.01 + 8e-4 + 64e-7
    decode_s = sum(0.01 + 1e-3 + (8 + token) * 1e-5 for token in range(1, 30))
    assert seen.ended_s["a"] == pytest.approx(2 * (prefill_s + decode_s), abs=1e-9)


def _refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="longer than 96 tokens"):
        engine.add(Job("b", 90, 7))
