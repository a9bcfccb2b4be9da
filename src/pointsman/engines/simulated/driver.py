"""Drives the compute model on the event loop's clock.

The schedule is a running deadline: each step ends its duration after the step before it, however
late the timer fires, so time does not drift; at high speed one wake-up completes several steps.
Everything here is synchronous: tokens are written to their clients within the wake-up, those of
several steps together.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from pointsman.engines.compute_model import CacheEvent, ComputeModel, EngineSequence, Job, Profile
from pointsman.engines.simulated.metrics import EngineStats, RequestTimes

# A wake-up completes at most this many steps and then lets the loop serve its sockets.
STEPS_PER_WAKE_MAX = 64
# An engine this far behind its schedule (the CPU is too slow for its speed) gives the time up.
LAG_S_MAX = 1.0


class Listener(Protocol):
    """Who waits for one sequence. Called from the driver; must not call back into it."""

    wants_tokens: bool

    def token(self, sequence: EngineSequence) -> None:
        """More tokens, one as a rule: `sequence.generated` in all. If `wants_tokens`."""

    def finished(self, sequence: EngineSequence) -> None:
        """All tokens are out. Comes after the last `token`."""

    def cut(self) -> None:
        """The engine's process died under the request: its connection breaks."""

    def fail(self) -> None:
        """The engine stops: the request ends with an error."""


class _Entry:
    __slots__ = ("listener", "times")

    def __init__(self, listener: Listener, times: RequestTimes) -> None:
        self.listener = listener
        self.times = times


class EngineDriver:
    """Owns the compute model, its timer and the listeners."""

    def __init__(
        self,
        profile: Profile,
        *,
        speed: float,
        stats: EngineStats,
        publish: Callable[[list[CacheEvent]], None] | None,
    ) -> None:
        self.model = ComputeModel(profile)
        self.steps = 0
        self._profile = profile
        self._speed = speed
        self._slow = 1.0
        self._hung = False
        self._stats = stats
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._entries: dict[str, _Entry] = {}
        self._due_s: float | None = None  # end of the planned step; None: no step is planned
        self._timer: asyncio.Handle | None = None
        # Of the wake-up in progress: who has new tokens, and who is done.
        self._advanced: dict[EngineSequence, Listener] = {}
        self._finished: list[tuple[EngineSequence, Listener]] = []

    @property
    def requests(self) -> int:
        """Sequences running and waiting."""
        return len(self._entries)

    def submit(self, job: Job, listener: Listener) -> EngineSequence:
        """Queue a job. Raises ValueError as `ComputeModel.add` does."""
        sequence = self.model.add(job)
        self._entries[job.id] = _Entry(listener, RequestTimes(self._loop.time()))
        if self._due_s is None and self._timer is None and not self._hung:
            self._timer = self._loop.call_soon(self._wake)
        return sequence

    def abort(self, job_id: str) -> bool:
        """Drop a job and free its blocks at once. False if it is not (any more) here."""
        if self._entries.pop(job_id, None) is None:
            return False
        return self.model.abort(job_id)

    def set_pace(self, *, slow: float, hang: bool) -> None:
        """Multiply step times from the next step on; `hang` stops the planned one, too."""
        self._slow = slow
        if hang == self._hung:
            return
        self._hung = hang
        self._disarm()
        if not hang:
            self._due_s = None if self._due_s is None else self._loop.time()
            self._timer = self._loop.call_soon(self._wake)

    def restart(self) -> None:
        """A new process in the old one's place: nothing cached, every request cut."""
        for listener in self._drop_all():
            listener.cut()
        self.model = ComputeModel(self._profile)

    def close(self) -> None:
        """Stop for good; every request fails."""
        for listener in self._drop_all():
            listener.fail()

    def _drop_all(self) -> list[Listener]:
        self._disarm()
        self._due_s = None
        listeners = [entry.listener for entry in self._entries.values()]
        self._entries.clear()
        return listeners

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._due_s is None:
            self._plan(now)
        steps = 0
        while self._due_s is not None and self._due_s <= now and steps < STEPS_PER_WAKE_MAX:
            ended_s = self._due_s
            self._complete(ended_s)
            self._plan(ended_s if now - ended_s < LAG_S_MAX else now)
            steps += 1
        if self._due_s is not None:
            self._timer = self._loop.call_at(self._due_s, self._wake)
        self._deliver()

    def _plan(self, begin_s: float) -> None:
        step = self.model.plan()
        if step is None:
            self._due_s = None
        else:
            self._due_s = begin_s + step.duration_s * self._slow / self._speed

    def _complete(self, ended_s: float) -> None:
        outcome = self.model.complete()
        self.steps += 1
        entries, stats = self._entries, self._stats
        stats.step(outcome)
        for sequence in outcome.admitted:
            entry = entries.get(sequence.job.id)  # absent: aborted within the step
            if entry is not None:
                entry.times.admitted(ended_s - outcome.step.duration_s * self._slow / self._speed)
        if outcome.events and self._publish is not None:
            self._publish(outcome.events)
        for sequence in outcome.advanced:
            entry = entries[sequence.job.id]
            stats.token(entry.times, sequence, ended_s)
            if entry.listener.wants_tokens:
                self._advanced[sequence] = entry.listener
        for sequence in outcome.finished:
            entry = entries.pop(sequence.job.id)
            stats.finished(entry.times, sequence, ended_s)
            self._finished.append((sequence, entry.listener))

    def _deliver(self) -> None:
        for sequence, listener in self._advanced.items():
            listener.token(sequence)
        for sequence, listener in self._finished:
            listener.finished(sequence)
        self._advanced.clear()
        self._finished.clear()
