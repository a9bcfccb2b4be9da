"""Each formula once by hand, and what makes it that policy."""

from math import inf
from random import Random

import pytest

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import Policy
from pointsman.core.policies.jffc import Jffc
from pointsman.core.policies.llmd_sticky import LlmdSticky
from pointsman.core.policies.llmd_weighted import LlmdWeighted
from pointsman.core.policies.pick import NO_ROOM
from pointsman.core.policies.smg_cache_aware import SmgCacheAware
from pointsman.core.policies.weighted_score import WeightedScore
from pointsman.core.policies.weighted_score_jffc import WeightedScoreJffc
from pointsman.core.row import Row
from tests.support.driver import request
from tests.support.rows import row


def chosen(policy: Policy, *rows: Row) -> str:
    choice = policy.choose(request("r"), rows, Random(0))
    assert isinstance(choice, Choice), choice
    return choice.row.node


def scores(policy: Policy, *rows: Row) -> list[float]:
    policy.choose(request("r"), rows, Random(0))
    return [candidate.score for candidate in rows]


class TestWeightedScore:
    def test_its_terms(self) -> None:
        got = scores(
            WeightedScore(),
            row("cached", hit=600),
            row("leased", kv_share=0.5),
            row("queued", waiting=4),
            row("busy", inflight=60),
            row("failing", unhealthy=1 / 3),
            row("late", slo_share=0.75),
        )
        assert got == pytest.approx(
            [
                -0.5 * 0.6 - 0.1,
                0.3 * 0.5 - 0.1,
                0.3 * 0.4 - 0.1,
                0.3 * 0.6 - 0.1,
                0.1 / 3 - 0.1,
                -0.1 * 0.75,
            ]
        )

    def test_a_cache_fades_where_it_cannot_be_used(self) -> None:
        got = scores(
            WeightedScore(),
            *(row("a", hit=1_000, prompt=1_001, kv_share=share) for share in (0.7, 0.85, 1.0)),
        )
        ratio = 1_000 / 1_001
        assert got == pytest.approx(
            [
                0.3 * 0.70 - 0.5 * ratio - 0.1,
                0.3 * 0.85 - 0.5 * ratio * 0.5 - 0.1,
                0.3 * 1.00 - 0.1,
            ]
        )

    def test_a_cache_is_worth_a_load_until_it_fades(self) -> None:
        idle = row("idle")
        assert chosen(WeightedScore(), idle, row("cached", hit=960, kv_share=0.7)) == "cached"
        assert chosen(WeightedScore(), idle, row("cached", hit=960, kv_share=0.9)) == "idle"

    def test_more_leased_than_there_is_counts_as_full(self) -> None:
        assert scores(WeightedScore(), row("a", kv_share=1.5)) == pytest.approx([0.3 - 0.1])


class TestWeightedScoreJffc:
    def test_its_terms(self) -> None:
        got = scores(
            WeightedScoreJffc(),
            row("cached", hit=400),
            row("used", kv_share=0.5, waiting=2),
            row("sick", unhealthy=1.0, slo_share=0.5),
            row("late", slo_share=0.5),
        )
        assert got == pytest.approx(
            [-0.5 * 0.4 - 0.2, 0.3 * (0.4 * 0.5 + 0.3 * 0.2) - 0.2, 0.0, -0.2 * 0.5]
        )

    def test_the_holder_is_taken_while_it_is_not_full(self) -> None:
        others = [row("idle"), row("half", hit=512)]
        assert chosen(WeightedScoreJffc(), row("a", hit=800, kv_share=0.69), *others) == "a"
        assert chosen(WeightedScoreJffc(), row("a", hit=800, kv_share=0.70), *others) == "half"

    def test_a_full_holder_still_has_its_score(self) -> None:
        assert chosen(WeightedScoreJffc(), row("idle"), row("a", hit=800, kv_share=0.9)) == "a"

    def test_of_several_holders_the_better_scored(self) -> None:
        rows = [row("a", hit=800, kv_share=0.5), row("b", hit=800, kv_share=0.3)]
        assert chosen(WeightedScoreJffc(), *rows) == "b"


class TestJffc:
    """arXiv 2604.14993, algorithm 3."""

    def test_the_fastest_with_room(self) -> None:
        slow, fast = row("slow", uncached_s=2.0), row("fast", uncached_s=1.0, inflight=40)
        assert chosen(Jffc(), slow, fast) == "fast"
        assert chosen(Jffc(), slow, row("fast", uncached_s=1.0, fits=False)) == "slow"

    def test_none_has_room(self) -> None:
        full = [row("a", uncached_s=1.0, fits=False), row("b", uncached_s=2.0, fits=False)]
        assert Jffc().choose(request("r"), full, Random(0)) == Hold(NO_ROOM)

    def test_equally_fast_nodes_fill_evenly(self) -> None:
        rows = [row("a", uncached_s=1.0, inflight=3), row("b", uncached_s=1.04, inflight=2)]
        assert chosen(Jffc(), *rows) == "b"
        assert chosen(Jffc(), rows[0], row("c", uncached_s=1.06, inflight=0)) == "a"


class TestSmgCacheAware:
    def test_the_holder_of_more_than_half(self) -> None:
        assert chosen(SmgCacheAware(), row("idle"), row("holder", hit=501, inflight=9)) == "holder"
        assert chosen(SmgCacheAware(), row("idle"), row("half", hit=500, inflight=9)) == "idle"

    @pytest.mark.parametrize(
        ("loads", "imbalanced"),
        [((0, 32), False), ((0, 33), True), ((330, 363), False), ((329, 363), True)],
    )
    def test_an_imbalanced_fleet_forgets_the_cache(
        self, loads: tuple[int, int], imbalanced: bool
    ) -> None:
        least, most = loads
        rows = [row("idle", inflight=least), row("holder", hit=900, inflight=most)]
        assert chosen(SmgCacheAware(), *rows) == ("idle" if imbalanced else "holder")

    def test_of_equal_holders_the_less_busy(self) -> None:
        rows = [row("a", hit=900, inflight=3), row("b", hit=900, inflight=2), row("c", hit=800)]
        assert chosen(SmgCacheAware(), *rows) == "b"

    def test_of_equally_busy_nodes_the_smaller_tree(self) -> None:
        policy = SmgCacheAware()
        policy.placed(request("x"), row("a", hit=600))
        policy.placed(request("y"), row("b", hit=500))
        policy.placed(request("z"), row("c", hit=700))
        assert chosen(policy, row("a"), row("b"), row("c")) == "c"
        assert chosen(policy, row("a"), row("b"), row("c"), row("new")) == "new"


class TestLlmdSticky:
    def test_the_holder_until_it_is_saturated(self) -> None:
        idle = row("idle")
        assert chosen(LlmdSticky(), idle, row("a", hit=800, queue_tokens=10**6, queue_s=18.0)) == (
            "a"
        )
        assert chosen(LlmdSticky(), idle, row("a", hit=800, queue_tokens=10**6, queue_s=18.1)) == (
            "idle"
        )

    def test_less_than_four_fifths_is_no_hold(self) -> None:
        assert chosen(LlmdSticky(), row("idle"), row("a", hit=799, queue_tokens=800)) == "idle"
        assert chosen(LlmdSticky(), row("idle"), row("a", hit=799, queue_tokens=798)) == "a"

    def test_the_queue_is_what_the_least_loaded_of_each_side_has(self) -> None:
        holders = [row("a", hit=900, queue_s=40.0, queue_tokens=4_000), row("b", hit=900)]
        assert chosen(LlmdSticky(), row("idle"), *holders) == "b"

    def test_who_is_out_of_the_question_has_no_score(self) -> None:
        got = scores(LlmdSticky(), row("idle"), row("a", hit=900, queue_tokens=50))
        assert got == [inf, 150]

    def test_a_full_holder_is_not_offered(self) -> None:
        assert chosen(LlmdSticky(), row("idle"), row("a", hit=900, fits=False)) == "idle"

    def test_where_all_hold_it_the_fewest_tokens(self) -> None:
        assert chosen(LlmdSticky(), row("a", hit=900), row("b", hit=950)) == "b"


class TestLlmdWeighted:
    def test_its_terms(self) -> None:
        got = scores(
            LlmdWeighted(),
            row("a", hit=500, waiting=4, kv_share=0.25),
            row("b", waiting=1, kv_share=0.5),
            row("c", waiting=0, kv_share=1.0),
        )
        blend = [3 * 0.5 + 2 * 0.0 + 2 * 0.75, 0.0 + 2 * 0.75 + 2 * 0.5, 0.0 + 2 * 1.0 + 2 * 0.0]
        assert got == pytest.approx([7 - total for total in blend])

    def test_equal_queues_are_neutral(self) -> None:
        assert scores(LlmdWeighted(), row("a", waiting=3), row("b", waiting=3)) == [3.0, 3.0]
