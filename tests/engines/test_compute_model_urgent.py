"""`urgent_first`: who is more urgent does not wait for the prompts of others."""

from msgspec.structs import replace

from pointsman.engines.compute_model import ComputeModel, Job
from tests.support.profiles import CRAMPED


def order_of_ends(*, urgent_first: bool, late_priority: int) -> list[str]:
    """A long prompt has begun when a short one comes."""
    model = ComputeModel(replace(CRAMPED, kv_blocks=64, urgent_first=urgent_first))
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
