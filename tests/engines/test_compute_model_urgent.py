"""`urgent_first`: who is more urgent does not wait for the prompts of others."""

from msgspec.structs import replace

from pointsman.engines.compute_model import ComputeModel, Job, Profile

PROFILE = Profile(
    name="small",
    base_s=0.01,
    prefill_s_per_token=1e-4,
    attention_s_per_token2=0.0,
    sequence_s=1e-3,
    kv_token_s=0.0,
    kv_blocks=64,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=16,
)


def order_of_ends(*, urgent_first: bool, late_priority: int) -> list[str]:
    """A long prompt has begun when a short one comes."""
    model = ComputeModel(replace(PROFILE, urgent_first=urgent_first))
    model.add(Job("long", 100, 1, priority=100))
    ended: list[str] = []
    while len(ended) < 2:
        assert model.plan() is not None
        ended += [sequence.job.id for sequence in model.complete().finished]
        if not ended and model.running == 1 and not model.waiting:
            model.add(Job("late", 4, 1, priority=late_priority))
        model.check()
    return ended


def test_the_urgent_one_overtakes_only_where_the_profile_says_so() -> None:
    assert order_of_ends(urgent_first=True, late_priority=4) == ["late", "long"]
    assert order_of_ends(urgent_first=False, late_priority=4) == ["long", "late"]


def test_the_less_urgent_one_waits_anyhow() -> None:
    assert order_of_ends(urgent_first=True, late_priority=101) == ["long", "late"]
    assert order_of_ends(urgent_first=True, late_priority=100) == ["long", "late"]
