"""What an engine reports is held against what was foretold; a long parting is doubt, and named."""

from array import array

import pytest

from pointsman.core.events import CacheChanged, IndexTrust, IndexTrusted
from pointsman.core.self_check import SAMPLES_MIN, Doubt, HitCheck
from tests.core.test_residency import stored
from tests.support.driver import Driver, request

BLOCK = 16


def check(*pairs: tuple[int, int], times: int = 1, text: bool = False) -> HitCheck:
    """Answers to prompts of 1,000 tokens: what the index said, and what the engine reported."""
    found = HitCheck()
    for indexed, reported in pairs * times:
        found.observe(
            indexed_tokens=indexed,
            reported_tokens=reported,
            prompt_tokens=1_000,
            block_tokens=BLOCK,
            from_text=text,
            from_events=not text,
        )
    return found


def test_equal_hits_match() -> None:
    found = check((160, 160), (992, 992), times=30)
    assert (found.match_share, found.doubt) == (1.0, Doubt.NONE)


def test_a_prompt_that_is_cached_in_full_computes_its_last_block() -> None:
    assert check((1_000, 992), (2_000, 992)).match_share == 1.0


def test_cold_answers_say_nothing() -> None:
    assert check((0, 0), times=100).samples == 0


def test_one_block_more_or_less_is_the_time_between() -> None:
    assert check((160, 176), (160, 144), times=50).match_share == 1.0


def test_a_texts_tokens_are_an_estimate() -> None:
    found = check((400, 320), times=50, text=True)
    assert (found.match_share, found.doubt) == (1.0, Doubt.NONE)
    assert check((400, 0), times=50, text=True).match_share < 0.3


@pytest.mark.parametrize(
    ("indexed", "reported", "doubt"),
    [
        (800, 0, Doubt.NOTHING_FOUND),
        (800, 160, Doubt.LESS_FOUND),
        (0, 800, Doubt.MORE_FOUND),
    ],
)
def test_a_long_parting_is_doubt_with_a_cause(indexed: int, reported: int, doubt: Doubt) -> None:
    assert check((indexed, reported), times=SAMPLES_MIN - 1).doubt is Doubt.NONE
    assert check((indexed, reported), times=2 * SAMPLES_MIN).doubt is doubt


def test_every_other_answer_is_no_doubt() -> None:
    """Siblings that arrive together are each counted on the first one's prefill."""
    assert check((800, 800), (800, 0), times=200).doubt is Doubt.NONE


def test_our_own_history_may_miss_what_others_sent() -> None:
    assert check((0, 800), times=200, text=True).doubt is Doubt.NONE


# --- what comes of it ---------------------------------------------------------------------


PROMPT = array("q", range(256))


def distrusted() -> Driver:
    """An engine that publishes events, and finds what they do not tell of."""
    driver = Driver()
    driver.ready("a", block_tokens=BLOCK)
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.EXACT))
    for number in range(2 * SAMPLES_MIN):
        assert driver.arrive(f"r{number}", "", tokens=PROMPT)
        driver.start(f"r{number}")
        driver.settle(f"r{number}", streamed=True, prompt_tokens=256, cached_tokens=240)
    return driver


def test_a_doubted_index_is_not_trusted_and_says_why() -> None:
    driver = distrusted()
    [node] = driver.scheduler.nodes(driver.now_s)
    assert node.index_trust is IndexTrust.DISTRUSTED
    assert node.index_doubt == Doubt.MORE_FOUND
    assert node.hit_match_share is not None
    assert node.hit_match_share < 0.9


def test_what_is_not_trusted_is_credited_by_history() -> None:
    driver = distrusted()
    decision = driver.scheduler.explain(request("x", "", tokens=PROMPT), driver.now_s)
    assert decision.candidates[0].index_hit_tokens == 256


def test_events_of_what_is_not_trusted_are_ignored() -> None:
    driver = distrusted()
    other = range(1_000, 1_000 + BLOCK)
    driver.step(CacheChanged(driver.ids["a"], (stored(other),)))
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.EXACT))
    asked = request("x", "", tokens=array("q", other))
    decision = driver.scheduler.explain(asked, driver.now_s)
    assert decision.candidates[0].index_hit_tokens == 0
    assert driver.scheduler.nodes(driver.now_s)[0].index_trust is IndexTrust.DISTRUSTED


def test_the_next_incarnation_starts_without_doubt() -> None:
    driver = distrusted()
    driver.ready("a", block_tokens=BLOCK)
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.EXACT))
    [node] = driver.scheduler.nodes(driver.now_s)
    assert (node.index_trust, node.index_doubt) == (IndexTrust.EXACT, "")
    assert node.hit_match_share is None
