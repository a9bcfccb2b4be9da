"""What a request takes of a node's memory, beside what runs there."""

from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.events import RulesChanged
from pointsman.core.request_events import Held, Placed
from pointsman.core.row import Row
from pointsman.core.rules import Rules
from tests.support.driver import Driver, request

PREFIX = tuple(range(320))
"""Twenty blocks of 16."""


def tokens(own: int) -> tuple[int, ...]:
    return (*PREFIX, *range(1_000 * own, 1_000 * own + 32))


def one_node(kv_blocks: int = 100) -> Driver:
    driver = Driver()
    driver.ready("a", kv_blocks=kv_blocks)
    return driver


def row(driver: Driver, own: int) -> Row:
    asked = request("x", tokens=tokens(own), max_output_tokens=0)
    (candidate,) = driver.scheduler.explain(asked, driver.now_s).candidates
    return candidate


def leased(driver: Driver) -> int:
    driver.scheduler.check()
    return driver.scheduler.nodes(driver.now_s)[0].kv_blocks_leased


def test_what_runs_there_shares_its_prefix() -> None:
    driver = one_node()
    driver.arrive("r1", tokens=tokens(1), max_output_tokens=0)
    assert leased(driver) == 23
    assert row(driver, 2).kv_blocks == 3
    driver.arrive("r2", tokens=tokens(2), max_output_tokens=0)
    assert leased(driver) == 26


def test_a_hit_on_what_nobody_holds_frees_no_room() -> None:
    driver = one_node()
    driver.serve("r1", tokens=tokens(1), max_output_tokens=0)
    seen = row(driver, 2)
    assert (seen.hit_tokens, seen.kv_blocks) == (320, 23)


def test_the_prefix_stays_when_who_brought_it_has_gone() -> None:
    driver = one_node()
    for name, own in (("r1", 1), ("r2", 2)):
        driver.arrive(name, tokens=tokens(own), max_output_tokens=0)
    driver.settle("r1")
    assert leased(driver) == 23
    driver.settle("r2")
    assert leased(driver) == 0


def test_more_fit_where_they_share() -> None:
    driver = one_node(kv_blocks=50)
    placed = [
        isinstance(driver.arrive(f"r{n}", tokens=tokens(n), max_output_tokens=0)[0], Placed)
        for n in range(1, 12)
    ]
    assert placed == [True] * 10 + [False], "20 blocks together, and 3 each"


def test_texts_share_as_well() -> None:
    driver = one_node()
    driver.arrive("r1", "system " * 300 + "one", max_output_tokens=0)
    alone = leased(driver)
    driver.arrive("r2", "system " * 300 + "two", max_output_tokens=0)
    assert leased(driver) - alone < alone / 4


def test_an_engine_that_caches_nothing_shares_nothing() -> None:
    driver = one_node()
    for n in range(30):
        name = f"r{n}"
        driver.arrive(name, tokens=tokens(1), max_output_tokens=1)
        driver.start(name)
        driver.settle(name, streamed=True, cached_tokens=0, prompt_tokens=352, ttft_s=0.1)
        driver.now_s += 1
    driver.arrive("r", tokens=tokens(1), max_output_tokens=0)
    assert row(driver, 1).kv_blocks == 23


def test_output_counts_by_half_and_with_its_margin() -> None:
    driver = one_node()
    asked = request("x", tokens=range(32), max_output_tokens=160)
    (candidate,) = driver.scheduler.explain(asked, 0.0).candidates
    assert candidate.kv_blocks == 2 + 6 + 1
    driver.step(RulesChanged(Rules(admission=AdmissionRules(footprint_safety=2.0))))
    (candidate,) = driver.scheduler.explain(asked, 0.0).candidates
    assert candidate.kv_blocks == 2 + 10 + 1


def test_who_does_not_fit_beside_them_waits() -> None:
    driver = one_node(kv_blocks=30)
    driver.arrive("r1", tokens=tokens(1), max_output_tokens=0)
    (held,) = driver.arrive("other", tokens=range(5_000, 5_320), max_output_tokens=0)
    assert isinstance(held, Held)
