"""marginal_cost by hand, and what each of its terms is for."""

from random import Random
from typing import Any

import pytest

from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_NORMAL
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.marginal_cost import MarginalCost
from pointsman.core.row import Row
from pointsman.core.rules import CostWeights
from tests.support.driver import request
from tests.support.rows import row


def scores(*rows: Row) -> list[float]:
    MarginalCost().choose(request("r"), rows, Random(0))
    return [candidate.score for candidate in rows]


def chosen(*rows: Row) -> str:
    choice = MarginalCost().choose(request("r"), rows, Random(0))
    assert isinstance(choice, Choice), choice
    return choice.row.node


def test_a_first_token_costs_more_a_second_the_later_it_is() -> None:
    waits_s = [0.0, 0.5, 1.0, 3.0]
    got = scores(*(row(f"n{s}", queue_s=s, uncached_s=1.0) for s in waits_s))
    assert got == pytest.approx([0.0, 5 * 0.5 + 2 * 0.25, 5 + 2, 7 + 2 * 9])


def test_waits_for_queue_memory_and_prefill_are_one_wait() -> None:
    waits: tuple[dict[str, Any], ...] = ({"queue_s": 0.4}, {"room_wait_s": 0.4}, {"prefill_s": 0.4})
    assert len({round(s, 9) for s in scores(*(row("n", **wait) for wait in waits))}) == 1


def test_decoding_and_what_others_lose_count_a_second_for_a_second() -> None:
    terms = ("decode_s", "interrupted_s", "stall_s", "slowdown_s")
    costs: list[dict[str, Any]] = [{term: 2.0} for term in terms]
    assert scores(*(row("n", **cost) for cost in costs)) == pytest.approx([2.0] * 4)


def test_what_others_lose_counts_half_for_the_urgent() -> None:
    for priority, seconds in ((PRIORITY_HIGH, 1.0), (PRIORITY_NORMAL, 2.0), (PRIORITY_LOW, 2.0)):
        for lost in (row("n", stall_s=2.0), row("n", slowdown_s=2.0)):
            MarginalCost().choose(request("r", priority=priority), [lost], Random(0))
            assert lost.score == pytest.approx(seconds)


def test_what_a_first_token_and_the_urgent_weigh_is_configured() -> None:
    policy = MarginalCost(CostWeights(first_token_weight=1.0, urgent_imposes=0.1))
    late = row("n", queue_s=3.0, uncached_s=1.0, stall_s=2.0)
    policy.choose(request("r", priority=PRIORITY_HIGH), [late], Random(0))
    assert late.score == pytest.approx(1.0 * 3 + 2 * (2 * 3 - 1) + 0.1 * 2.0)
    policy.weights = CostWeights()
    policy.choose(request("r", priority=PRIORITY_HIGH), [late], Random(0))
    assert late.score == pytest.approx(5.0 * 3 + 2 * (2 * 3 - 1) + 0.5 * 2.0)


def test_what_a_slow_node_takes_longer_is_work_and_no_wait() -> None:
    fast = row("fast", work_s=1.0, prefill_s=1.0, uncached_s=2.0)
    slow = row("slow", work_s=3.0, prefill_s=3.0, uncached_s=6.0)
    warm = row("warm", work_s=0.5, prefill_s=0.5, uncached_s=2.0)
    got = scores(fast, slow, warm)
    assert got[0] == pytest.approx(7 + 3 * 1.0)
    assert got[1] == pytest.approx(7 + 3 * 3.0)
    assert got[2] == pytest.approx(5 * 0.5 + 2 * 0.25 + 3 * 0.5)


def test_a_cached_prefix_is_worth_a_queue_and_not_any_queue() -> None:
    cold = row("cold", work_s=1.0, prefill_s=1.0, uncached_s=1.0)
    assert chosen(cold, row("warm", queue_s=0.5, uncached_s=1.0)) == "warm"
    assert chosen(cold, row("warm", queue_s=2.0, uncached_s=1.0)) == "cold"


def test_a_node_that_is_busy_with_prefills_is_left_to_who_decodes_little() -> None:
    busy, calm = (
        row("busy", decode_s=4.0, interrupted_s=6.0),
        row("calm", queue_s=0.5, decode_s=4.0),
    )
    assert chosen(busy, calm) == "calm"
    short = row("busy", decode_s=0.1, interrupted_s=0.15), row("calm", queue_s=0.5, decode_s=0.1)
    assert chosen(*short) == "busy"


def test_it_waits_for_a_full_node_that_is_cheapest_all_the_same() -> None:
    full = row("full", room_wait_s=0.1, fits=False)
    answer = MarginalCost().choose(request("r"), [full, row("far", queue_s=3.0)], Random(0))
    assert isinstance(answer, Hold)


def test_one_candidate_whose_speeds_are_unknown_leaves_it_to_lmetric() -> None:
    rows = [row("known", queue_tokens=9_000), row("new", calibrated=False)]
    answer = MarginalCost().choose(request("r"), rows, Random(0))
    assert isinstance(answer, Choice)
    assert answer.row.node == "new"
    assert "not learned yet" in answer.why
