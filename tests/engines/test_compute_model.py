"""The compute model: step times, admission, prefix cache, eviction, preemption, accounting."""

import msgspec
import pytest

from pointsman.engines.compute_model import (
    PROFILES,
    CacheCleared,
    ComputeModel,
    Job,
    Profile,
    Removed,
    StepOutcome,
    Stored,
    chain_hashes,
    root_hash,
)

TINY = Profile(
    name="tiny",
    base_s=1.0,
    prefill_s_per_token=0.1,
    attention_s_per_token2=0.001,
    sequence_s=0.01,
    kv_token_s=0.0001,
    kv_blocks=16,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_model_len=64,
)


def job(name: str, prompt: int, output: int = 1, *, text: str = "", priority: int = 0) -> Job:
    """A job whose tokens are `text` repeated, so that equal texts share their blocks."""
    text = text or name
    tokens = (text * 200)[: prompt + output].encode("utf-32-le")
    hashes = chain_hashes(tokens, block_bytes=4 * TINY.block_size, root=root_hash())
    return Job(name, prompt, output, hashes, priority)


def model(**changes: object) -> ComputeModel:
    return ComputeModel(msgspec.structs.replace(TINY, **changes))


def step(engine: ComputeModel) -> StepOutcome:
    assert engine.plan() is not None
    engine.check()
    outcome = engine.complete()
    engine.check()
    return outcome


def drain(engine: ComputeModel) -> list[StepOutcome]:
    outcomes = []
    while engine.plan() is not None:
        outcomes.append(engine.complete())
        engine.check()
        assert len(outcomes) < 1000, "the engine makes no progress"
    return outcomes


def names(sequences: list) -> list[str]:  # type: ignore[type-arg]  # either kind of handle
    return [s.job.id for s in sequences]


def test_an_idle_engine_has_no_step() -> None:
    assert model().plan() is None


def test_step_time_is_the_formula() -> None:
    engine = model()
    engine.add(job("a", 10, 3))
    first = engine.plan()
    assert first is not None
    assert first.duration_s == pytest.approx(1.0 + 0.1 * 10 + 0.001 * 100)
    engine.complete()
    second = engine.plan()
    assert second is not None
    assert second.duration_s == pytest.approx(1.0 + 0.01 + 0.0001 * 11)


def test_quadratic_attention_is_the_same_however_a_prompt_is_chunked() -> None:
    times = []
    for budget in (64, 16, 5):
        engine = model(max_num_batched_tokens=budget, base_s=0.0)
        engine.add(job("a", 40))
        times.append(sum(o.step.duration_s for o in drain(engine)))
    assert times == pytest.approx([times[0]] * 3)


def test_a_cached_prefix_takes_its_part_off_the_attention() -> None:
    engine = model(base_s=0.0)
    engine.add(job("a", 16, text="same"))
    drain(engine)
    engine.add(job("b", 16, text="same"))
    plan = engine.plan()
    assert plan is not None
    assert plan.prefill_tokens == 4
    assert plan.duration_s == pytest.approx(0.1 * 4 + 0.001 * (16**2 - 12**2))


def test_decodes_go_before_prefill_within_the_budget() -> None:
    engine = model()
    engine.add(job("a", 4, 10))
    step(engine)
    engine.add(job("b", 30))
    outcome = step(engine)
    assert (outcome.step.decode_tokens, outcome.step.prefill_tokens) == (1, 15)
    assert names(outcome.advanced) == ["a"]


def test_prefill_order_is_priority_then_arrival() -> None:
    engine = model(max_num_batched_tokens=8)
    for name, priority in (("late", 1), ("first", 0), ("second", 0), ("urgent", -1)):
        engine.add(job(name, 8, priority=priority))
    order = [name for outcome in drain(engine) for name in names(outcome.finished)]
    assert order == ["urgent", "first", "second", "late"]


def test_sequences_are_capped() -> None:
    engine = model()
    for name in "abcdef":
        engine.add(job(name, 1, 5))
    step(engine)
    assert (engine.running, engine.waiting) == (4, 2)


def test_admission_waits_until_the_whole_prompt_fits() -> None:
    engine = model(kv_blocks=4)
    engine.add(job("a", 9, 4))
    engine.add(job("b", 8, 1))
    step(engine)
    assert (engine.running, engine.waiting) == (1, 1)
    order = [name for outcome in drain(engine) for name in names(outcome.finished)]
    assert order == ["a", "b"]


def test_a_job_that_could_never_run_is_refused() -> None:
    engine = model()
    with pytest.raises(ValueError, match="longer than 64"):
        engine.add(job("a", 60, 5))
    with pytest.raises(ValueError, match="at least one"):
        engine.add(Job("b", 0, 1))
    engine.add(job("c", 1))
    with pytest.raises(ValueError, match="already here"):
        engine.add(job("c", 1))


def test_a_fully_cached_prompt_computes_its_last_block_again() -> None:
    engine = model()
    engine.add(job("a", 16, text="same"))
    drain(engine)
    again = engine.add(job("b", 16, text="same"))
    longer = engine.add(job("c", 17, text="same"))
    drain(engine)
    assert (again.cached, longer.cached) == (12, 16)


def test_prefix_accounting_counts_prompt_tokens_once() -> None:
    engine = model()
    engine.add(job("a", 16, text="same"))
    drain(engine)
    engine.add(job("b", 18, text="same"))
    drain(engine)
    assert (engine.prefix_queries_tokens, engine.prefix_hits_tokens) == (34, 16)


def test_two_namespaces_share_nothing() -> None:
    tokens = bytes(64)
    chains = [
        chain_hashes(tokens, block_bytes=16, root=root_hash(lora, salt))
        for lora, salt in ((None, None), ("x", None), (None, "x"), ("x", "y"))
    ]
    assert len({h for chain in chains for h in chain}) == 4 * len(chains[0])


def test_stored_events_cover_prompt_and_generated_blocks() -> None:
    engine = model()
    work = job("a", 6, 7)  # KV of 12 tokens: the last one generated is never computed
    engine.add(work)
    events = [event for outcome in drain(engine) for event in outcome.events]
    assert events == [Stored(work, 0, 1), Stored(work, 1, 1), Stored(work, 2, 1)]


def test_hits_emit_nothing_again() -> None:
    engine = model()
    engine.add(job("a", 16, text="same"))
    drain(engine)
    again = job("b", 20, text="same")
    engine.add(again)
    events = [event for outcome in drain(engine) for event in outcome.events]
    assert events == [Stored(again, 4, 1)]


def test_a_duplicate_computed_at_the_same_time_stays_anonymous() -> None:
    engine = model(max_num_batched_tokens=4)
    first, second = job("a", 4, 9, text="same"), job("b", 4, 9, text="same")
    engine.add(first)
    engine.add(second)
    events = [event for outcome in drain(engine) for event in outcome.events]
    stored = [event for event in events if isinstance(event, Stored)]
    assert sorted(event.first for event in stored) == [0, 1, 2]
    assert engine.pool.used == 0


def test_eviction_takes_leaves_before_roots_and_the_oldest_first() -> None:
    engine = model(kv_blocks=8)
    old, new = job("old", 16), job("new", 16)
    for work in (old, new):
        engine.add(work)
        drain(engine)
    engine.add(job("big", 24))
    events = [event for outcome in drain(engine) for event in outcome.events]
    removed = [h for event in events if isinstance(event, Removed) for h in event.hashes]
    assert removed == [*reversed(old.hashes), *list(reversed(new.hashes))[:2]]


def test_a_hit_protects_blocks_from_eviction() -> None:
    engine = model(kv_blocks=8)
    for work in (job("a", 16), job("b", 16)):
        engine.add(work)
        drain(engine)
    again = engine.add(job("again", 17, text="a"))
    other = engine.add(job("other", 12))
    drain(engine)
    assert again.cached == 16
    assert other.cached == 0


def test_preemption_recomputes_the_latest_and_finishes_it() -> None:
    engine = model(kv_blocks=6)
    engine.add(job("a", 8, 12))
    late = engine.add(job("b", 8, 12))
    outcomes = drain(engine)
    preempted = [name for outcome in outcomes for name in names(outcome.preempted)]
    assert set(preempted) == {"b"}
    assert engine.preemptions == late.preemptions == len(preempted)
    finished = [name for outcome in outcomes for name in names(outcome.finished)]
    assert finished == ["a", "b"]
    tokens = [name for outcome in outcomes for name in names(outcome.advanced)]
    assert (tokens.count("a"), tokens.count("b")) == (12, 12)


def test_preemption_takes_the_lowest_priority_first() -> None:
    engine = model(kv_blocks=6)
    engine.add(job("low", 8, 12, priority=5))
    engine.add(job("high", 8, 12, priority=1))
    preempted = [name for outcome in drain(engine) for name in names(outcome.preempted)]
    assert set(preempted) == {"low"}


def test_abort_frees_blocks_at_once_even_inside_a_step() -> None:
    engine = model()
    engine.add(job("a", 9, 5))
    engine.plan()
    assert engine.pool.used == 3
    assert engine.abort("a")
    assert engine.pool.used == 0
    outcome = engine.complete()
    assert (outcome.advanced, outcome.finished) == ([], [])
    assert not engine.abort("a")
    engine.check()


def test_usage_counts_only_blocks_that_sequences_hold() -> None:
    engine = model()
    engine.add(job("a", 16, 2))
    step(engine)
    assert engine.kv_usage == 4 / 16
    drain(engine)
    assert engine.kv_usage == 0.0
    assert len(engine.pool.cached) == 4


def test_clearing_is_refused_in_use_and_told_with_the_next_step() -> None:
    engine = model()
    engine.add(job("a", 8, 2))
    step(engine)
    assert not engine.clear_cache()
    drain(engine)
    assert engine.clear_cache()
    assert engine.pool.cached == frozenset()
    engine.add(job("b", 1, 1))
    assert step(engine).events == [CacheCleared()]


def test_same_inputs_give_the_same_outcomes() -> None:
    def run() -> bytes:
        engine = model(kv_blocks=8)
        for index in range(12):
            engine.add(job(f"j{index}", 3 + index % 7, 1 + index % 5, text="ab"[index % 2]))
        return msgspec.json.encode(
            [(o.step, names(o.advanced), names(o.preempted), o.events) for o in drain(engine)]
        )

    assert run() == run()


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_profiles_are_named_and_have_room_for_their_context(name: str) -> None:
    profile = PROFILES[name]
    assert profile.name == name
    assert profile.context_tokens == profile.max_model_len


def test_the_published_fit_is_reproduced() -> None:
    """vLLM program scheduling: decode 0.01064 + 0.000419 B + 1.42e-7 sum(L); prefill per 1k tokens
    0.0570 k + 0.00441 k^2, its 66 ms request set-up left out."""
    engine = ComputeModel(PROFILES["70b-tp8-h100"])
    engine.add(Job("a", 4000, 2))
    first = engine.plan()
    assert first is not None
    assert first.duration_s == pytest.approx(0.01064 + 0.0570 * 4 + 0.00441 * 16)
    engine.complete()
    second = engine.plan()
    assert second is not None
    assert second.duration_s == pytest.approx(0.01064 + 0.000419 + 1.42e-7 * 4001)


def test_a_profile_that_could_starve_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        msgspec.structs.replace(TINY, max_num_batched_tokens=2)
    with pytest.raises(ValueError, match="at least 1"):
        msgspec.structs.replace(TINY, kv_blocks=0)
