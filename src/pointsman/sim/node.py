"""One machine with an engine on it: it serves, crashes and returns, and tells how it is.

What it tells is its own truth; who asks decides how late and how often, in `watch`.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

from msgspec.structs import replace

from pointsman.core.cache_events import BlockRemoved, CacheChange, ChainStored
from pointsman.core.events import ModelCard, NodeFacts, NodeSignals, NodeSpec
from pointsman.core.ids import NodeName
from pointsman.core.scheme import Scheme, Unit
from pointsman.engines.compute_model import (
    PROFILES,
    CacheEvent,
    EngineSequence,
    Job,
    Profile,
    Removed,
    StepOutcome,
    Stored,
)
from pointsman.sim.clock import Clock
from pointsman.sim.engine import Engine
from pointsman.sim.prompts import MODEL
from pointsman.sim.scenario import NodeGroup

Changes = Sequence[CacheChange | ChainStored]
"""What one step of an engine changes in its cache."""

_UNBOUNDED = 1 << 30  # more requests than a run has


class JobWatcher(Protocol):
    """Whoever sent a job here. Called at the very time it happens."""

    def first_token(self, job_id: str) -> None: ...

    def finished(self, job_id: str, cached_tokens: int) -> None: ...

    def broken(self, job_id: str) -> None:
        """The engine died with the job on it."""
        ...


class NodeDownError(Exception):
    """Nothing listens there."""


class SimulatedNode:
    """`incarnation` counts its engine processes; 0 before the first one is up."""

    def __init__(self, clock: Clock, name: str, group: NodeGroup, profile: Profile) -> None:
        self.name = NodeName(name)
        self.group = group
        self.profile = profile
        self.incarnation = 0
        self.engine: Engine | None = None
        self.on_changes: list[Callable[[Changes], None]] = []
        concurrency_max = _UNBOUNDED if group.ideal else group.concurrency_max
        self.spec = NodeSpec(name=self.name, url=f"sim://{name}", concurrency_max=concurrency_max)
        self.facts = NodeFacts(
            kind="simulated",
            models=(ModelCard(name=MODEL, context_tokens_max=profile.max_model_len),),
            block_tokens=profile.block_size,
            kv_blocks=None if group.ideal else profile.kv_blocks,
            running_max=profile.max_num_seqs if group.tells_running_max else None,
        )
        self.scheme = Scheme(Unit.TOKENS, profile.block_size)
        self._clock = clock
        self._watchers: dict[str, JobWatcher] = {}
        self._started = False
        self._crashes = 0  # that it has not come back from
        self._slowed_by: list[float] = []  # by faults

    # --- serving -----------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.engine is not None

    def priority(self, prompt_tokens: int, hashes: Sequence[int]) -> int:
        """What a job would have in this engine; lower is sooner, equal ones are served in order
        of arrival."""
        if self.engine is None or not self.group.ideal:
            return 0
        cached = self.engine.model.pool.match(hashes, len(hashes))
        return prompt_tokens - cached * self.profile.block_size

    def submit(self, job: Job, watcher: JobWatcher) -> None:
        """Raises NodeDownError, and ValueError for a job that can never run here."""
        if self.engine is None:
            raise NodeDownError(self.name)
        self.engine.add(job)
        self._watchers[job.id] = watcher

    def abort(self, job_id: str) -> None:
        """End a job whose client has left. Changes nothing when the job is over."""
        if self.engine is not None and self._watchers.pop(job_id, None) is not None:
            self.engine.abort(job_id)

    # --- being well or not -------------------------------------------------------------

    def start(self) -> None:
        """It is switched on, once."""
        assert not self._started, f"{self.name} is switched on"
        self._started = True
        self._boot()

    def crash(self) -> None:
        """Every job breaks, and the cache is gone. It stays down for as many `recover` as there
        were crashes."""
        self._crashes += 1
        if self.engine is None:
            return
        self.engine.kill()
        self.engine = None
        broken, self._watchers = self._watchers, {}
        for job_id, watcher in broken.items():
            watcher.broken(job_id)

    def recover(self) -> None:
        """End a crash: the machine starts again if no other one keeps it down."""
        assert self._crashes > 0, f"{self.name} has not crashed"
        self._crashes -= 1
        self._boot()

    def slow_down(self, factor: float) -> None:
        """Every step takes `factor` times as long, on top of what slows it already."""
        self._slowed_by.append(factor)
        self._set_speed()

    def speed_up(self, factor: float) -> None:
        """End a `slow_down`."""
        self._slowed_by.remove(factor)
        self._set_speed()

    def hang(self, duration_s: float) -> None:
        """Steps stand still; the process lives."""
        if self.engine is not None:
            self.engine.hang(duration_s)

    @property
    def slowdown(self) -> float:
        """How many times as long as the profile says everything takes."""
        return self.group.slowdown * prod(self._slowed_by)

    def _boot(self) -> None:
        """A fresh engine process with an empty cache, unless something keeps it down."""
        if self._crashes or not self._started:
            return
        self.incarnation += 1
        self.engine = Engine(self._clock, self.profile, self._completed, slowdown=self.slowdown)

    def _set_speed(self) -> None:
        if self.engine is not None:
            self.engine.slow_down(self.slowdown)

    @property
    def preemptions(self) -> int:
        """How often its engine has put a request out for lack of memory, since it started."""
        return 0 if self.engine is None else self.engine.model.preemptions

    # --- telling -----------------------------------------------------------------------

    def signals(self) -> NodeSignals | None:
        """What a scrape at this moment gives; None when it is down."""
        if self.engine is None:
            return None
        model = self.engine.model
        return NodeSignals(
            running=model.running,
            waiting=model.waiting,
            kv_usage=model.kv_usage,
            prefix_queries=float(model.prefix_queries_tokens),
            prefix_hits=float(model.prefix_hits_tokens),
            preemptions=float(model.preemptions),
        )

    def remaining_s(self) -> float:
        """Time to the end of what it has, if nothing more came: prefills one after the other,
        then all decode at once until the longest is done."""
        if self.engine is None:
            return 0.0
        left = [_left(sequence) for sequence in self.engine.model.sequences()]
        if not left:
            return 0.0
        profile = self.profile
        prefill_s = sum(_prefill_s(profile, sequence) for sequence in self.engine.model.sequences())
        kv_tokens = sum(sequence.target for sequence in self.engine.model.sequences())
        step_s = profile.decode_step_s(len(left), kv_tokens)
        return (prefill_s + step_s * max(left)) * self.slowdown

    def _completed(self, outcome: StepOutcome) -> None:
        if outcome.events and self.on_changes:
            changes = [_change(event) for event in outcome.events]
            for on_changes in self.on_changes:
                on_changes(changes)
        for sequence in outcome.advanced:
            if sequence.generated == 1:
                self._watchers[sequence.job.id].first_token(sequence.job.id)
        for sequence in outcome.finished:
            watcher = self._watchers.pop(sequence.job.id)
            watcher.finished(sequence.job.id, sequence.cached or 0)


def profile_of(group: NodeGroup, block_tokens: int) -> Profile:
    """The group's profile with its own sizes; `block_tokens` where it names none.

    Raises ValueError for an unknown profile or sizes that cannot work.
    """
    profile = group.profile
    if isinstance(profile, str):
        if profile not in PROFILES:
            known = ", ".join(PROFILES)
            raise ValueError(f"unknown profile {profile!r}; choose one of {known}")
        profile = PROFILES[profile]
    size = group.block_tokens or block_tokens
    kv_tokens = group.kv_tokens or profile.kv_tokens
    return replace(
        profile,
        block_size=size,
        kv_blocks=max(1, kv_tokens // size),
        max_model_len=group.context_tokens or profile.max_model_len,
        max_num_seqs=group.sequences_max or profile.max_num_seqs,
        max_num_batched_tokens=max(profile.max_num_batched_tokens, group.sequences_max or 0),
        urgent_first=profile.urgent_first or group.ideal,
    )


def _change(event: CacheEvent) -> CacheChange | ChainStored:
    match event:
        case Stored(job, first, count):
            return ChainStored(job.hashes[first : first + count])  # type: ignore[arg-type]  # jobs are given chains
        case Removed(hashes):
            return BlockRemoved(tuple(hashes))
        case _:
            raise AssertionError(f"nobody clears a simulated cache: {event}")


def _left(sequence: EngineSequence) -> int:
    return sequence.job.output_tokens - sequence.generated


def _prefill_s(profile: Profile, sequence: EngineSequence) -> float:
    """Of what is not computed yet; hits of who still waits are not known before its turn."""
    done, target = sequence.computed, sequence.target
    if target - done <= 1:
        return 0.0
    return profile.prefill_s(target - done, target * target - done * done)
