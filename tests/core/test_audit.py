"""What is booked for a request that its engine does not know of is given back, once."""

from pointsman.core.audit import REPORTS
from pointsman.core.decision import Ruling
from pointsman.core.events import Effect, NodeReported, NodeSignals, RulesChanged
from pointsman.core.limits import LEASE_S_MAX, RESERVATION_S, RESERVATION_S_MAX
from pointsman.core.request_events import Compensated, CompensationCause, Placed
from pointsman.core.rules import Rules
from pointsman.core.views import NodeView
from tests.support.driver import Driver, told

LATE_S = RESERVATION_S + 1


def driver(**facts: object) -> Driver:
    driver = Driver()
    driver.ready("a", **{"kv_blocks": 100, **facts})
    return driver


def report(driver: Driver, **signals: float | None) -> list[Effect]:
    """As many reports as it takes, with the scrapes' own distance."""
    effects: list[Effect] = []
    for _ in range(REPORTS):
        driver.now_s += 0.5
        event = NodeReported(driver.ids["a"], driver.now_s, NodeSignals(**signals))  # type: ignore[arg-type]  # test keywords
        effects += driver.step(event)
    return effects


def node(driver: Driver) -> NodeView:
    driver.scheduler.check()
    (view,) = driver.scheduler.nodes(driver.now_s)
    return view


def test_what_an_engine_does_not_count_is_given_back() -> None:
    d = driver()
    d.arrive("r1")
    leased = node(d).kv_blocks_leased
    assert leased > 0
    d.now_s += LATE_S
    (compensated,) = report(d, running=0, waiting=0)
    assert isinstance(compensated, Compensated)
    assert (compensated.cause, compensated.blocks) == (CompensationCause.MISSING, leased)
    assert (node(d).inflight, node(d).kv_blocks_leased, node(d).queue_s) == (0, 0, 0.0)
    assert d.scheduler.compensations == {CompensationCause.MISSING: 1}
    assert d.scheduler.stats.compensated == 1


def test_the_record_tells_why() -> None:
    d = driver()
    d.arrive("r1")
    d.now_s += LATE_S
    (line,) = told(report(d, running=0, waiting=0))
    assert line.startswith("compensated r1 on #1: missing: the engine showed 0 of 1 requests; ")
    (compensated,) = [e for e in _again(d) if isinstance(e, Compensated)]
    decision = compensated.decision
    assert (decision.ruling, decision.node) == (Ruling.COMPENSATED, "a")
    assert "KV blocks are released after" in decision.why


def _again(d: Driver) -> list[Effect]:
    d.arrive("again")
    d.now_s += LATE_S
    return report(d, running=0, waiting=0)


def test_what_is_young_is_not_missing() -> None:
    d = driver()
    d.arrive("r1")
    d.now_s += RESERVATION_S - 1 - REPORTS
    assert report(d, running=0, waiting=0) == []


def test_what_the_engine_counts_is_let_wait() -> None:
    d = driver()
    d.arrive("r1")
    d.now_s += 5 * RESERVATION_S
    assert report(d, running=0, waiting=1) == []
    assert report(d, running=1, waiting=0) == []


def test_one_report_in_between_that_counts_it_is_enough() -> None:
    d = driver()
    d.arrive("r1")
    d.now_s += LATE_S
    for _ in range(3):
        for _ in range(REPORTS - 1):
            signals = NodeSignals(running=0, waiting=0)
            assert d.step(NodeReported(d.ids["a"], d.now_s, signals)) == []
        d.step(NodeReported(d.ids["a"], d.now_s, NodeSignals(running=1, waiting=0)))


def test_a_slow_prefill_behind_a_long_one_is_not_expired() -> None:
    """Its own expected wait says when it may be missed."""
    d = driver(kv_blocks=100_000)
    d.arrive("long", "x " * 400_000, max_output_tokens=1)
    (placed,) = d.arrive("short", max_output_tokens=1)
    assert isinstance(placed, Placed)
    expected_s = placed.decision.candidates[0].first_token_s
    assert expected_s > RESERVATION_S
    d.now_s += 2 * expected_s
    assert report(d, running=0, waiting=0) == []
    d.now_s += 2 * expected_s
    assert len(report(d, running=0, waiting=0)) == 2


def test_an_engine_that_counts_nothing_is_asked_by_its_memory() -> None:
    d = driver()
    d.arrive("r1")
    d.now_s += LATE_S
    assert report(d, kv_usage=0.1) == []
    assert report(d, running=0, kv_usage=0.1) == [], "half of the count is none"
    assert len(report(d, kv_usage=0.0)) == 1


def test_as_many_as_are_missing_and_the_oldest() -> None:
    d = driver()
    for name in ("r1", "r2", "r3"):
        d.arrive(name)
        d.now_s += 1
    d.now_s += LATE_S
    found = report(d, running=1, waiting=0)
    assert [e.request_id for e in found if isinstance(e, Compensated)] == ["r1", "r2"]
    assert report(d, running=1, waiting=0) == []


def test_a_first_token_after_that_books_it_again() -> None:
    d = driver()
    d.arrive("r1")
    before = node(d)
    d.now_s += LATE_S
    report(d, running=0, waiting=0)
    d.start("r1")
    d.start("r1")
    assert (node(d).inflight, node(d).kv_blocks_leased) == (1, before.kv_blocks_leased)
    assert d.scheduler.stats.rebooked == 1
    d.settle("r1")
    assert (node(d).inflight, node(d).kv_blocks_leased) == (0, 0)


def test_an_end_after_that_finds_nothing_to_give_back() -> None:
    d = driver()
    d.arrive("r1")
    d.now_s += LATE_S
    report(d, running=0, waiting=0)
    d.arrive("r2")
    d.settle("r1")
    d.settle("r1")
    assert node(d).inflight == 1
    assert d.scheduler.in_flight == 1


def test_a_slow_readers_answer_holds_no_memory_when_its_engine_is_done() -> None:
    d = driver()
    d.arrive("r1", max_output_tokens=10)
    d.start("r1")
    d.now_s += LATE_S
    assert len(report(d, running=0, waiting=0)) == 1
    d.start("r1")
    assert node(d).inflight == 0, "a second first token books nothing"
    d.settle("r1")
    assert node(d).inflight == 0


def test_room_that_comes_of_it_goes_to_who_is_held() -> None:
    d = driver(kv_blocks=10)
    d.arrive("r1", "x " * 600)
    d.arrive("r2", "y " * 600, hold_s=1e6)
    assert d.scheduler.held == 1
    d.now_s += LATE_S
    compensated, placed = report(d, running=0, waiting=0)
    assert isinstance(compensated, Compensated)
    assert isinstance(placed, Placed)
    assert placed.request_id == "r2"


def test_where_engines_report_nothing_a_long_time_is_the_bound() -> None:
    d = driver()
    d.arrive("quiet")
    d.arrive("streaming")
    d.start("streaming")
    assert d.advance(RESERVATION_S_MAX - 1) == []
    (found,) = d.advance(1)
    assert isinstance(found, Compensated)
    assert (found.request_id, found.cause) == ("quiet", CompensationCause.SILENT)
    (found,) = d.advance(LEASE_S_MAX)
    assert isinstance(found, Compensated)
    assert found.request_id == "streaming"


def test_who_is_never_heard_of_again_is_forgotten() -> None:
    d = driver()
    d.arrive("r1")
    assert len(d.advance(LEASE_S_MAX)) == 1
    assert d.scheduler.in_flight == 0
    d.start("r1")
    d.settle("r1")
    assert d.scheduler.stats.stale_events == 2
    assert node(d).inflight == 0


def test_a_compensated_request_on_a_node_that_is_gone_is_not_booked_again() -> None:
    d = driver()
    d.arrive("r1")
    d.now_s += LATE_S
    report(d, running=0, waiting=0)
    d.join("a")
    d.describe("a", kv_blocks=100)
    d.start("r1")
    assert node(d).inflight == 0
    d.settle("r1")
    d.scheduler.check()


def test_nodes_that_are_gone_are_not_remembered() -> None:
    d = driver()
    d.arrive("r1")
    d.step(NodeReported(d.ids["a"], d.now_s, NodeSignals(running=0, waiting=0)))
    assert list(d.scheduler._audit._short) == [d.ids["a"]]
    d.join("a")
    d.advance(1.0)
    assert not d.scheduler._audit._short


def test_the_time_may_change_while_it_runs() -> None:
    d = driver()
    d.step(RulesChanged(Rules(reservation_s=5.0)))
    d.arrive("r1", max_output_tokens=1)
    d.now_s += 6.0
    assert len(report(d, running=0, waiting=0)) == 1
