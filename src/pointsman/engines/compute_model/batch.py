"""The engine: continuous batching with chunked prefill over a paged KV cache, one step at a time.

A driver's loop:

    step = model.plan()          # None: nothing to run
    ... step.duration_s passes on the driver's clock; jobs may be added and aborted meanwhile ...
    outcome = model.complete()   # tokens, finished sequences, preemptions, cache events

Order within a step, as in vLLM's scheduler: decodes first, then prefill chunks, then admissions,
each in order of (priority, arrival), within the token budget. A sequence that gets no block
preempts the last of that order by recompute: the victim's blocks are freed (its cached ones stay
reusable) and it waits at its old place. A block is reusable as soon as its computation is planned,
and its event leaves with the step's completion: both as in vLLM.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise

from pointsman.engines.compute_model.blocks import BlockPool
from pointsman.engines.compute_model.jobs import EngineSequence, Job, Stored
from pointsman.engines.compute_model.profiles import Profile
from pointsman.engines.compute_model.steps import Step, StepOutcome, Stretch


class ComputeModel:
    """All sequences and blocks of one engine. Same calls in the same order: same results."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.pool = BlockPool(profile.kv_blocks)
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.preemptions = 0
        self._sequences: dict[str, EngineSequence] = {}
        self._running: list[EngineSequence] = []  # sorted by key
        self._waiting: list[EngineSequence] = []  # sorted by key
        self._arrivals = 0
        self._step: Step | None = None
        self._sampling: list[EngineSequence] = []  # get a token when the step completes
        self._admitted: list[EngineSequence] = []
        self._preempted: list[EngineSequence] = []
        # The head of the queue that found no room, and the free blocks then.
        self._refused: tuple[EngineSequence, int] | None = None

    def add(self, job: Job) -> EngineSequence:
        """Queue a job. Raises ValueError when it could never run or its id is in use."""
        if job.prompt_tokens < 1 or job.output_tokens < 1:
            raise ValueError(f"job {job.id}: needs at least one prompt and one output token")
        if job.prompt_tokens + job.output_tokens > self.profile.context_tokens:
            raise ValueError(f"job {job.id}: longer than {self.profile.context_tokens} tokens")
        if job.id in self._sequences:
            raise ValueError(f"job {job.id} is already here")
        sequence = EngineSequence(job, self._arrivals)
        self._arrivals += 1
        self._sequences[job.id] = sequence
        insort(self._waiting, sequence, key=_key)
        return sequence

    def abort(self, job_id: str) -> bool:
        """Drop a job wherever it is and free its blocks at once. False if it is not here."""
        sequence = self._sequences.get(job_id)
        if sequence is None:
            return False
        _remove(self._running if sequence.running else self._waiting, sequence)
        self._retire(sequence)
        return True

    def plan(self) -> Step | None:
        """Choose the next step's work and give its duration; None when there is nothing to do."""
        assert self._step is None, "the planned step is not completed"
        decodes, kv_tokens, prefilling = self._plan_decodes()
        budget = self.profile.max_num_batched_tokens - decodes
        prefill_tokens = attention = 0
        if self.profile.urgent_first and prefilling and not self._preempted:
            prefill_tokens, attention = self._admit(budget, before=prefilling[0].key)
        more = self._plan_prefills(prefilling, budget - prefill_tokens)
        prefill_tokens, attention = prefill_tokens + more[0], attention + more[1]
        if not self._preempted:
            more = self._admit(budget - prefill_tokens)
            prefill_tokens, attention = prefill_tokens + more[0], attention + more[1]
        if not decodes and not prefill_tokens:
            assert not self._sequences, "sequences are here, but none can make progress"
            return None
        profile = self.profile
        duration_s = (
            profile.base_s
            + profile.prefill_s_per_token * prefill_tokens
            + profile.attention_s_per_token2 * attention
            + profile.sequence_s * decodes
            + profile.kv_token_s * kv_tokens
        )
        self._step = Step(duration_s, prefill_tokens, decodes, kv_tokens)
        return self._step

    def complete(self) -> StepOutcome:
        """Let the planned step take effect."""
        step = self._step
        assert step is not None, "no step is planned"
        advanced: list[EngineSequence] = []
        finished: list[EngineSequence] = []
        for sequence in self._sampling:
            if not sequence.alive:  # aborted meanwhile
                continue
            sequence.generated += 1
            sequence.target += 1
            advanced.append(sequence)
            if sequence.generated == sequence.job.output_tokens:
                finished.append(sequence)
        for sequence in finished:
            _remove(self._running, sequence)
            self._retire(sequence)
        outcome = StepOutcome(
            step, advanced, finished, self._admitted, self._preempted, self.pool.events
        )
        self._step = None
        self._sampling, self._admitted, self._preempted = [], [], []
        self.pool.events = []
        return outcome

    def foresee(self) -> Stretch | None:
        """The coming steps, as long as all of them do the same; None where that is not more
        than one. It stands until a job is added or aborted."""
        assert self._step is None, "the planned step is not completed"
        steps, kv_tokens = self._alike()
        if steps < 2:
            return None
        profile, batch = self.profile, len(self._running)
        first_s = profile.decode_step_s(batch, kv_tokens + batch)
        return Stretch(steps, first_s, profile.kv_token_s * batch)

    def advance(self, stretch: Stretch, steps: int) -> StepOutcome:
        """Let the first `steps` of the stretch that was foreseen take effect, all at once: what
        is left is as if each had been planned and completed."""
        assert 0 < steps <= stretch.steps, (steps, stretch)
        running, size = self._running, self.profile.block_size
        grown = kv_tokens = 0
        finished: list[EngineSequence] = []
        for sequence in running:
            sequence.computed += steps
            sequence.target += steps
            sequence.generated += steps
            kv_tokens += sequence.computed
            blocks = -(-sequence.computed // size)
            grown += blocks - sequence.blocks
            sequence.blocks = blocks
            if sequence.generated == sequence.job.output_tokens:
                finished.append(sequence)
        self.pool.allocate(grown)
        advanced = list(running)
        for sequence in finished:
            _remove(running, sequence)
            self._retire(sequence)
        events, self.pool.events = self.pool.events, []
        step = Step(stretch.duration_s(steps), 0, steps * len(advanced), kv_tokens)
        return StepOutcome(step, advanced, finished, [], [], events)

    def sequences(self) -> Iterable[EngineSequence]:
        """All that run or wait, in order of arrival."""
        return self._sequences.values()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Fraction of the blocks that sequences hold, 0 to 1."""
        return self.pool.used / self.pool.blocks

    def clear_cache(self) -> bool:
        """Forget the prefix cache; its event leaves with the next step. False while in use."""
        return self.pool.clear()

    def check(self) -> None:
        """Assert that blocks and sequences are conserved."""
        self.pool.check((s.named, s.anonymous) for s in self._running)
        here = self._running + self._waiting
        assert len(here) == len(self._sequences), "a sequence is lost or queued twice"
        assert all(self._sequences[s.job.id] is s and s.alive for s in here)
        assert all(s.running for s in self._running)
        assert not any(s.running or s.blocks or s.named for s in self._waiting)
        for queue in (self._running, self._waiting):
            assert all(a.key < b.key for a, b in pairwise(queue))
        size = self.profile.block_size
        assert all(s.computed <= s.blocks * size for s in self._running), "KV outside its blocks"
        assert len(self._running) <= self.profile.max_num_seqs

    def _alike(self) -> tuple[int, int]:
        """How many coming steps only decode the sequences that run now, and their tokens."""
        running, size = self._running, self.profile.block_size
        if not running or not self._admits_none():
            return 0, 0
        steps, kv_tokens = running[0].job.output_tokens, 0
        for sequence in running:
            computed = sequence.computed
            if sequence.target - computed != 1 or not sequence.generated:
                return 0, 0  # it prefills
            if len(sequence.job.hashes) * size > computed:
                return 0, 0  # it publishes blocks of its output
            left = sequence.job.output_tokens - sequence.generated
            steps = min(left, steps)
            kv_tokens += computed
        free = self.pool.free
        if self._growth(steps) > free:
            steps = bisect_right(range(steps), free, key=self._growth) - 1
        return steps, kv_tokens

    def _growth(self, steps: int) -> int:
        """Blocks that all running sequences need for so many tokens more."""
        size = self.profile.block_size
        return sum(-(-(s.computed + steps) // size) - s.blocks for s in self._running)

    def _admits_none(self) -> bool:
        """Whether nobody waits, or the head does in vain until a sequence ends."""
        if not self._waiting or self.running == self.profile.max_num_seqs:
            return True
        if self._refused is None:
            return False
        head, free = self._refused
        return head is self._waiting[0] and self.pool.free <= free

    def _plan_decodes(self) -> tuple[int, int, list[EngineSequence]]:
        """A token for each sequence that lacks just one; gives their number, KV and the others."""
        size = self.profile.block_size
        sampling = self._sampling
        prefilling: list[EngineSequence] = []
        kv_tokens = 0
        # Victims come off this list's end, behind the one being looked at, or are that one.
        for sequence in self._running:
            computed = sequence.computed
            if sequence.target - computed != 1:
                prefilling.append(sequence)
                continue
            if computed == sequence.blocks * size and not self._grow(sequence, 1):
                break
            computed += 1
            sequence.computed = computed
            kv_tokens += computed
            sampling.append(sequence)
            if computed == sequence.blocks * size:
                self._publish(sequence, sequence.blocks - 1, sequence.blocks)
        return len(sampling), kv_tokens, prefilling

    def _plan_prefills(self, prefilling: list[EngineSequence], budget: int) -> tuple[int, int]:
        tokens = attention = 0
        for sequence in prefilling:
            if budget == tokens:
                break
            if sequence.running:
                chunk = self._prefill(sequence, budget - tokens)
                tokens += chunk
                attention += chunk * (2 * sequence.computed - chunk)
        return tokens, attention

    def _admit(self, budget: int, *, before: tuple[int, int] | None = None) -> tuple[int, int]:
        """Start waiting sequences while their whole prompt fits into the free blocks, those with
        a key below `before` only."""
        tokens = attention = 0
        while self._waiting and budget > tokens and self.running < self.profile.max_num_seqs:
            sequence = self._waiting[0]
            if before is not None and sequence.key >= before:
                break
            if not self._fits(sequence):
                break
            del self._waiting[0]
            sequence.running = True
            insort(self._running, sequence, key=_key)
            self._admitted.append(sequence)
            chunk = self._prefill(sequence, budget - tokens)
            tokens += chunk
            attention += chunk * (2 * sequence.computed - chunk)
        return tokens, attention

    def _fits(self, sequence: EngineSequence) -> bool:
        """Take the sequence's cached prefix if the rest of its prompt fits; else take nothing."""
        pool, size = self.pool, self.profile.block_size
        if self._refused is not None:
            head, free = self._refused
            if head is sequence and pool.free <= free:
                return False
        # One token at least is computed, for there is nothing else to sample from: a prompt that is
        # cached in full computes its last block again.
        hashes = sequence.job.hashes
        hit = pool.match(hashes, (sequence.target - 1) // size)
        wanted = -(-sequence.target // size) - hit
        if wanted > pool.free - pool.idle_among(hashes[:hit]):
            self._refused = (sequence, pool.free)
            return False
        self._refused = None
        sequence.named = list(hashes[:hit])
        pool.acquire(sequence.named)
        sequence.blocks = hit
        sequence.computed = hit * size
        if sequence.cached is None:
            sequence.cached = sequence.computed
            self.prefix_queries_tokens += sequence.job.prompt_tokens
            self.prefix_hits_tokens += sequence.computed
        return True

    def _prefill(self, sequence: EngineSequence, budget: int) -> int:
        """Plan the sequence's next chunk; 0 when it gets no block in this step."""
        size = self.profile.block_size
        start = sequence.computed
        end = min(sequence.target, start + budget)
        wanted = -(-end // size) - sequence.blocks
        if wanted > 0 and not self._grow(sequence, wanted):
            return 0
        sequence.computed = end
        self._publish(sequence, start // size, end // size)
        if end == sequence.target:
            self._sampling.append(sequence)
        return end - start

    def _grow(self, sequence: EngineSequence, blocks: int) -> bool:
        """Get blocks, preempting from the end of the order. False: the sequence itself was it.

        A decode that is part of this step already is no victim: a prefill behind it waits instead.
        """
        while blocks > self.pool.free:
            victim = self._running[-1]
            if victim.computed == victim.target:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        self.pool.allocate(blocks)
        sequence.blocks += blocks
        return True

    def _preempt(self, victim: EngineSequence) -> None:
        del self._running[-1]
        self._free(victim)
        victim.computed = 0
        victim.preemptions += 1
        victim.running = False
        self.preemptions += 1
        self._preempted.append(victim)
        insort(self._waiting, victim, key=_key)

    def _publish(self, sequence: EngineSequence, first: int, last: int) -> None:
        """Make the full blocks [first, last) of a sequence reusable."""
        job, pool = sequence.job, self.pool
        last = min(last, len(job.hashes))
        for start, end in pool.publish(job.hashes, first, last, sequence.named):
            pool.events.append(Stored(job, start, end - start))

    def _retire(self, sequence: EngineSequence) -> None:
        del self._sequences[sequence.job.id]
        self._free(sequence)
        sequence.running = False
        sequence.alive = False

    def _free(self, sequence: EngineSequence) -> None:
        self.pool.release(sequence.named, sequence.anonymous)
        sequence.named = []
        sequence.blocks = 0


def _key(sequence: EngineSequence) -> tuple[int, int]:
    return sequence.key


def _remove(queue: list[EngineSequence], sequence: EngineSequence) -> None:
    index = bisect_left(queue, sequence.key, key=_key)
    assert queue[index] is sequence, f"sequence {sequence.job.id} is not where its key says"
    del queue[index]
