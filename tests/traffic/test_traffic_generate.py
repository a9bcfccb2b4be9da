"""Generators: what is shared is shared exactly, and shares and rates are those asked for."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from pointsman.traffic.generate import (
    bursts,
    long_tail,
    priority_mix,
    shared_prefix,
    tenant_mix,
)
from pointsman.traffic.ideal import ideal_hit_ratio
from pointsman.traffic.sessions import agentic, chat


def test_shared_prefix_gives_each_tenant_its_share() -> None:
    made = shared_prefix(requests=40, rate_rps=10, rng=Random(3), tenants=8, system_tokens=100)
    by_tenant = [request.tenant for request in made]
    assert all(by_tenant.count(f"tenant-{tenant}") == 5 for tenant in range(8))
    assert {len(request.block_ids) for request in made} == {7}  # 100 tokens, in whole blocks
    assert ideal_hit_ratio(made) == pytest.approx(32 / 40 * 112 / 240)


def test_long_tail_shares_nothing_and_has_a_tail() -> None:
    made = long_tail(requests=2000, rate_rps=10, rng=Random(3))
    inputs = sorted(request.input_tokens for request in made)
    assert ideal_hit_ratio(made) is None
    assert 400 < inputs[1000] < 650
    assert inputs[1980] > 10 * inputs[1000]
    assert inputs[-1] <= 32_768


def test_bursts_come_at_their_mean_rate_with_pauses_between() -> None:
    made = bursts(requests=6_000, rate_rps=10, rng=Random(3), on_s_mean=1, off_s_mean=3)
    assert made[-1].at_s == pytest.approx(600, rel=0.15)
    gaps_s = [after.at_s - before.at_s for before, after in pairwise(made)]
    in_bursts = [gap_s for gap_s in gaps_s if gap_s < 0.3]
    assert sum(in_bursts) / len(in_bursts) == pytest.approx(1 / 40, rel=0.1)
    assert sum(gap_s > 1 for gap_s in gaps_s) > 80  # 150 pauses of 3 s
    assert ideal_hit_ratio(made) is None


def test_bursts_without_pauses_are_plain() -> None:
    made = bursts(requests=4_000, rate_rps=10, rng=Random(3), off_s_mean=0)
    assert made[-1].at_s == pytest.approx(400, rel=0.1)


def test_priorities_come_in_their_shares() -> None:
    made = priority_mix(requests=4_000, rate_rps=10, rng=Random(3))
    shares = Counter((request.tenant, request.priority) for request in made)
    assert shares.keys() == {("high", 10), ("normal", 0), ("low", -10)}
    assert shares["high", 10] == pytest.approx(800, rel=0.1)
    assert shares["low", -10] == pytest.approx(1_200, rel=0.1)
    with pytest.raises(ValueError, match="normal_share"):
        priority_mix(requests=4, rate_rps=10, rng=Random(3), high_share=0.8, low_share=0.3)


def test_heavy_tenants_send_most_and_each_has_its_own_prompt() -> None:
    made = tenant_mix(requests=4_000, rate_rps=10, rng=Random(3), system_tokens=64)
    heavy = [request for request in made if request.tenant.startswith("heavy")]
    light = [request for request in made if request.tenant.startswith("light")]
    assert len(heavy) == pytest.approx(3_200, rel=0.05)
    assert len({request.tenant for request in heavy}) == 2
    assert len({request.tenant for request in light}) == 18
    mean = [sum(r.input_tokens for r in part) / len(part) for part in (heavy, light)]
    assert mean[0] > 5 * mean[1]
    prompts: dict[str, set[tuple[int, ...]]] = {}
    for request in made:
        prompts.setdefault(request.tenant, set()).add(request.block_ids)
    assert all(len(own) == 1 for own in prompts.values())
    assert len({block for own in prompts.values() for ids in own for block in ids}) == 20 * 4


@pytest.mark.parametrize(
    "make", [shared_prefix, long_tail, chat, agentic, bursts, priority_mix, tenant_mix]
)
def test_same_seed_same_requests(make: object) -> None:
    assert callable(make)
    first = make(requests=50, rate_rps=5, rng=Random(7))
    assert first == make(requests=50, rate_rps=5, rng=Random(7))
    assert first != make(requests=50, rate_rps=5, rng=Random(8))
    assert len(first) == 50
    assert [r.at_s for r in first] == sorted(r.at_s for r in first)
    with pytest.raises(ValueError, match="above 0"):
        make(requests=50, rate_rps=0, rng=Random(7))
