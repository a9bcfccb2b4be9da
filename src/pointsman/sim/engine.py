"""One engine process: the compute model on virtual time.

A stretch of steps that only decode is one event. What comes in the middle of it (a job, an
abort) lets the steps that are over take effect and leaves the one that is running, so the times
are those of single steps.
"""

from collections.abc import Callable

from pointsman.engines.compute_model import ComputeModel, Job, Profile, StepOutcome, Stretch
from pointsman.sim.clock import Clock, Timer


class Engine:
    """`on_outcome` is told of each step, or stretch, at its end. Times are the profile's times
    `slowdown`."""

    def __init__(
        self,
        clock: Clock,
        profile: Profile,
        on_outcome: Callable[[StepOutcome], None],
        *,
        slowdown: float,
    ) -> None:
        self.model = ComputeModel(profile)
        self._clock = clock
        self._on_outcome = on_outcome
        self._slowdown = slowdown
        self._stretch: Stretch | None = None
        self._began_s = 0.0
        self._hangs_until_s = 0.0
        self._timer: Timer | None = None

    def add(self, job: Job) -> None:
        """Raises ValueError when the job can never run here."""
        self._cut()
        self.model.add(job)
        if self._timer is None:
            self._begin()

    def abort(self, job_id: str) -> bool:
        """Its blocks are free at once. False if it is not here."""
        self._cut()
        return self.model.abort(job_id)

    def slow_down(self, slowdown: float) -> None:
        """From the next step on."""
        self._cut()
        self._slowdown = slowdown

    def hang(self, duration_s: float) -> None:
        """Nothing moves for so long; a second hang on top of it lasts until the later end.

        The step that is running ends so much later. An idle engine hangs as well, but nobody
        sees it before its next job.
        """
        self._cut()
        now_s, timer = self._clock.now_s, self._timer
        lasts_until_s = max(self._hangs_until_s, now_s)
        longer_s = max(0.0, now_s + duration_s - lasts_until_s)
        self._hangs_until_s = lasts_until_s + longer_s
        if timer is None:
            self._timer = self._clock.at(self._hangs_until_s, self._wake)
        else:
            self._timer = timer.later(longer_s)

    def kill(self) -> None:
        """End it: nothing happens here any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        clock = self._clock
        self._began_s = clock.now_s
        self._stretch = self.model.foresee()
        if self._stretch is not None:
            duration_s = self._stretch.duration_s(self._stretch.steps)
        elif (step := self.model.plan()) is not None:
            duration_s = step.duration_s
        else:
            self._timer = None
            return
        self._timer = clock.after(duration_s * self._slowdown, self._end)

    def _end(self) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            outcome = self.model.complete()
        else:
            outcome = self.model.advance(stretch, stretch.steps)
        self._on_outcome(outcome)
        self._begin()

    def _wake(self) -> None:
        self._timer = None
        self._begin()

    def _cut(self) -> None:
        """Let what is over of a stretch take effect; the step in progress becomes a single one."""
        stretch = self._stretch
        if stretch is None:
            return
        self._stretch = None
        assert self._timer is not None
        self._timer.cancel()
        over = stretch.steps_within((self._clock.now_s - self._began_s) / self._slowdown)
        over_s = 0.0
        if over:
            over_s = stretch.duration_s(over)
            self._on_outcome(self.model.advance(stretch, over))
        step = self.model.plan()
        assert step is not None, "a stretch ends with its last step"
        due_s = self._began_s + (over_s + step.duration_s) * self._slowdown
        self._timer = self._clock.at(due_s, self._end)
