"""Random add, step, abort and clear; blocks and sequences are conserved after every event."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pointsman.engines.compute_model import (
    CacheCleared,
    ComputeModel,
    Job,
    Profile,
    Removed,
    Step,
    Stored,
    chain_hashes,
    root_hash,
)


class Machine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(2, 12), size=st.sampled_from([1, 2, 4]), seqs=st.integers(1, 4))
    def start(self, blocks: int, size: int, seqs: int) -> None:
        self.model = ComputeModel(
            Profile(
                name="machine",
                base_s=1.0,
                prefill_s_per_token=1.0,
                attention_s_per_token2=1.0,
                sequence_s=1.0,
                kv_token_s=1.0,
                kv_blocks=blocks,
                block_size=size,
                max_num_seqs=seqs,
                max_num_batched_tokens=max(seqs, 5),
            )
        )
        self.jobs: dict[str, Job] = {}
        self.tokens: dict[str, int] = {}
        self.index: set[int] = set()  # what a listener of the events believes is cached
        self.planned: Step | None = None
        self.count = 0

    @rule(
        prompt=st.integers(1, 30),
        output=st.integers(1, 12),
        text=st.sampled_from(["aaaa", "aaab", "ab"]),
        priority=st.integers(-1, 1),
    )
    def add(self, prompt: int, output: int, text: str, priority: int) -> None:
        room = self.model.profile.context_tokens
        prompt = min(prompt, room - 1)
        output = min(output, room - prompt)
        buffer = (text * 50)[: prompt + output].encode("utf-32-le")
        hashes = chain_hashes(
            buffer, block_bytes=4 * self.model.profile.block_size, root=root_hash()
        )
        job = Job(f"j{self.count}", prompt, output, hashes, priority)
        self.count += 1
        self.model.add(job)
        self.jobs[job.id] = job
        self.tokens[job.id] = 0

    @precondition(lambda self: self.planned is None)
    @rule()
    def plan(self) -> None:
        self.planned = self.model.plan()
        assert (self.planned is None) == (not self.jobs)

    @precondition(lambda self: self.planned is not None)
    @rule()
    def complete(self) -> None:
        outcome = self.model.complete()
        self.planned = None
        for sequence in outcome.advanced:
            self.tokens[sequence.job.id] += 1
        for sequence in outcome.finished:
            job = self.jobs.pop(sequence.job.id)
            assert self.tokens.pop(job.id) == job.output_tokens
        for event in outcome.events:
            match event:
                case Stored(job, first, count):
                    fresh = job.hashes[first : first + count]
                    assert not self.index & set(fresh), "stored twice"
                    self.index |= set(fresh)
                case Removed(hashes):
                    for block in hashes:
                        self.index.remove(block)
                case CacheCleared():
                    self.index.clear()
        assert self.index == self.model.pool.cached

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.jobs)))
        assert self.model.abort(name)
        del self.jobs[name], self.tokens[name]

    @rule()
    def clear(self) -> None:
        self.model.clear_cache()

    @invariant()
    def conserved(self) -> None:
        if hasattr(self, "model"):
            self.model.check()
            assert self.model.running + self.model.waiting == len(self.jobs)

    def teardown(self) -> None:
        """Whatever is left finishes, and gives every block back."""
        for _ in range(10_000):
            if self.planned is None and self.model.plan() is None:
                break
            self.model.complete()
            self.planned = None
        assert self.model.pool.used == 0
        self.model.check()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
