"""A stretch of steps taken at once leaves what its steps leave one by one."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pointsman.engines.compute_model import ComputeModel, Job, Stretch
from tests.support.profiles import CRAMPED


class Run:
    """A model on a clock of its own: when each job got its first token and was done, and every
    block that was evicted, in order."""

    def __init__(self, jobs: list[tuple[float, Job]], *, stretches: bool) -> None:
        self.model = ComputeModel(CRAMPED)
        self.seen: dict[str, tuple[float, float]] = {}
        self.events: list[object] = []
        self.stretches = stretches
        self.steps_at_once = 0
        self._now_s = 0.0
        self._jobs = jobs

    def run(self) -> "Run":
        jobs = list(self._jobs)
        while jobs or self.model.running or self.model.waiting:
            if not self.model.running and not self.model.waiting:
                self._now_s = max(self._now_s, jobs[0][0])
            self._add(jobs)
            self._step(jobs)
            self.model.check()
        return self

    def _add(self, jobs: list[tuple[float, Job]]) -> None:
        while jobs and jobs[0][0] <= self._now_s:
            self.model.add(jobs.pop(0)[1])

    def _step(self, jobs: list[tuple[float, Job]]) -> None:
        stretch = self.model.foresee() if self.stretches else None
        if stretch is None:
            step = self.model.plan()
            assert step is not None
            outcome, self._now_s = self.model.complete(), self._now_s + step.duration_s
        else:
            steps = stretch.steps
            if jobs:
                steps = max(1, stretch.steps_within(jobs[0][0] - self._now_s))
            self.steps_at_once = max(self.steps_at_once, steps)
            outcome = self.model.advance(stretch, steps)
            self._now_s += stretch.duration_s(steps)
        for sequence in outcome.advanced:
            if sequence.job.id not in self.seen:
                self.seen[sequence.job.id] = (self._now_s, 0.0)
        for sequence in outcome.finished:
            self.seen[sequence.job.id] = (self.seen[sequence.job.id][0], self._now_s)
        for event in outcome.events:
            self.events += getattr(event, "hashes", [event])


JOBS = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=1.0),
        st.integers(min_value=1, max_value=40),
        st.integers(min_value=1, max_value=40),
        st.integers(min_value=0, max_value=2),
    ),
    max_size=8,
)


def jobs(rows: list[tuple[float, int, int, int]]) -> list[tuple[float, Job]]:
    """Each with one of three prefixes, of which full blocks are shared."""
    made = []
    for number, (at_s, prompt, output, prefix) in enumerate(sorted(rows)):
        hashes = tuple(1000 * prefix + block for block in range(prompt // 4))
        made.append((at_s, Job(str(number), prompt, output, hashes)))
    return made


@settings(max_examples=300, deadline=None)
@given(rows=JOBS)
def test_stretches_leave_what_single_steps_leave(rows: list[tuple[float, int, int, int]]) -> None:
    single, at_once = (Run(jobs(rows), stretches=s).run() for s in (False, True))
    assert at_once.seen.keys() == single.seen.keys()
    for name, times_s in single.seen.items():
        assert at_once.seen[name] == pytest.approx(times_s, abs=1e-9)
    assert at_once.events == single.events
    assert at_once.model.preemptions == single.model.preemptions
    assert at_once.model.pool.cached == single.model.pool.cached


def test_a_lone_answer_is_one_stretch() -> None:
    run = Run([(0.0, Job("a", 8, 30))], stretches=True).run()
    assert run.steps_at_once == 29


def test_no_stretch_goes_beyond_the_free_blocks() -> None:
    model = ComputeModel(CRAMPED)
    for name in "ab":
        model.add(Job(name, 40, 40))
    for _ in range(6):
        assert model.plan() is not None
        model.complete()
    stretch = model.foresee()
    assert stretch is not None
    before = model.pool.free
    model.advance(stretch, stretch.steps)
    model.check()
    assert 0 <= model.pool.free < before
    assert model.foresee() is None  # the next step preempts


@given(
    first_s=st.floats(min_value=1e-4, max_value=1.0),
    growth_s=st.floats(min_value=0.0, max_value=1e-2),
    steps=st.integers(min_value=2, max_value=5_000),
    share=st.floats(min_value=0.0, max_value=1.2),
)
@example(first_s=0.00390625, growth_s=0.0078125, steps=2, share=0.0)
@example(first_s=0.001, growth_s=0.01, steps=2, share=1e-17)
def test_steps_within_counts_whole_steps(
    first_s: float, growth_s: float, steps: int, share: float
) -> None:
    stretch = Stretch(steps, first_s, growth_s)
    elapsed_s = share * stretch.duration_s(steps)
    found = stretch.steps_within(elapsed_s)
    assert 0 <= found < steps
    assert found == 0 or stretch.duration_s(found) <= elapsed_s
    assert found == steps - 1 or stretch.duration_s(found + 1) > elapsed_s
