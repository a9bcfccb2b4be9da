"""What a candidate's row says of its node, and where that comes from."""

import msgspec
import pytest

from pointsman.core.calibration import PRIOR
from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import RulesChanged
from pointsman.core.limits import PREFILL_MEMORY_S, RETURN_MEMORY_S
from pointsman.core.options import SchedulerOptions
from pointsman.core.row import Row
from pointsman.core.rules import HealthRules, Rules
from tests.support.driver import Driver, request
from tests.support.rows import row


def seen(driver: Driver, name: str = "a", **fields: object) -> Row:
    """The row of `name` for a short request that is not placed."""
    asked = request("x", "hello", **fields)
    decision = driver.scheduler.explain(asked, driver.now_s)
    return next(each for each in decision.candidates if each.node == name)


def two_nodes(policy: str = "round_robin") -> Driver:
    driver = Driver(SchedulerOptions(policy=policy))
    driver.ready("a", "b", kv_blocks=100)
    return driver


def test_what_is_told_of_a_row_is_all_of_it() -> None:
    known = row("a", hit=7, score=0.5, shared_s=0.25, restored_tokens=3)
    told = msgspec.json.encode(known, enc_hook=Row.fields)
    assert msgspec.json.decode(told, type=Row, dec_hook=lambda _, told: Row(**told)) == known
    assert row("a", score=0.5) != row("a", score=0.75)


def test_the_share_of_leased_blocks() -> None:
    driver = two_nodes()
    assert seen(driver).kv_share == 0.0
    driver.arrive("r1", max_output_tokens=320)
    driver.arrive("r2", max_output_tokens=320)
    leased = driver.scheduler.nodes(driver.now_s)[0].kv_blocks_leased
    assert seen(driver).kv_share == leased / 100 > 0
    driver.settle("r1")
    assert seen(driver).kv_share == 0.0


def test_a_node_of_unknown_capacity_counts_as_empty() -> None:
    driver = Driver()
    driver.ready("a", kv_blocks=None)
    driver.arrive("r1")
    assert seen(driver).kv_share == 0.0


def test_who_waits_for_a_first_token() -> None:
    driver = two_nodes()
    for number in range(4):
        driver.arrive(f"r{number}")
    assert (seen(driver).waiting, seen(driver).inflight) == (2, 2)
    driver.start("r0")
    assert (seen(driver).waiting, seen(driver).inflight) == (1, 2)
    driver.settle("r2", EndCause.CLIENT_GONE)
    driver.settle("r0")
    assert (seen(driver).waiting, seen(driver).inflight) == (0, 0)


def test_failures_in_a_row() -> None:
    driver = two_nodes()
    for count in (1, 2):
        driver.arrive(f"r{count}")
        driver.fail(f"r{count}", FailureKind.UNREACHABLE)  # then it is placed on b
        driver.settle(f"r{count}", EndCause.CLIENT_GONE)
        driver.arrive(f"keeps the turn of b {count}")
    assert seen(driver, "a").unhealthy + seen(driver, "b").unhealthy == pytest.approx(2 / 3)
    for name in ("c1", "c2"):
        driver.serve(name)
    assert seen(driver, "a").unhealthy + seen(driver, "b").unhealthy == 0


def test_failures_count_by_how_many_of_them_take_a_node_out() -> None:
    driver = two_nodes()
    driver.step(RulesChanged(Rules(health=HealthRules(request_failures_max=10))))
    driver.arrive("r1")
    driver.fail("r1", FailureKind.UNREACHABLE)
    assert seen(driver, "a").unhealthy + seen(driver, "b").unhealthy == pytest.approx(1 / 10)


@pytest.mark.parametrize(("late_s", "share"), [(1.0, 1.0), (1.1, 15 / 16)])
def test_a_first_token_within_its_bound_or_late(late_s: float, share: float) -> None:
    driver = two_nodes()
    driver.arrive("r1", slo_ttft_s=1.0)
    driver.advance(late_s)
    driver.start("r1")
    driver.start("r1")
    assert seen(driver).slo_share == share


def test_without_a_bound_or_a_stream_nothing_is_late() -> None:
    driver = two_nodes()
    driver.arrive("r1")
    driver.arrive("r2", slo_ttft_s=1.0, stream=False)
    driver.advance(9.0)
    driver.start("r1")
    driver.start("r2")
    assert (seen(driver, "a").slo_share, seen(driver, "b").slo_share) == (1.0, 1.0)


def test_a_service_time_knows_no_cache_and_no_queue() -> None:
    driver, text = two_nodes(), "a long prompt " * 2_000
    driver.serve("r1", text)
    driver.arrive("r2", text)  # waits on b
    asked = request("x", text, max_output_tokens=100)
    rows = {str(r.node): r for r in driver.scheduler.explain(asked, driver.now_s).candidates}
    assert rows["a"].hit_tokens
    assert rows["b"].queue_s
    prefill_s = rows["a"].service_s - rows["a"].decode_s
    assert rows["b"].service_s - rows["b"].decode_s == pytest.approx(prefill_s)
    assert prefill_s > rows["a"].prefill_s


def test_a_service_time_is_prefill_and_decode_of_what_is_not_cached() -> None:
    driver, text = two_nodes(), "a long prompt " * 2_000
    asked = request("x", text, max_output_tokens=100)
    idle = driver.scheduler.explain(asked, driver.now_s).candidates[0]
    assert idle.service_s == pytest.approx(idle.prefill_s + idle.decode_s)
    tokens = idle.new_tokens
    prefill_s = PRIOR.prefill_s_per_token * tokens + PRIOR.attention_s_per_token2 * tokens**2 / 2
    step_s = PRIOR.step_s + PRIOR.sequence_s + PRIOR.kv_token_s * (tokens + 50)
    assert idle.service_s == pytest.approx(PRIOR.dispatch_s + prefill_s + 100 * step_s)


def test_decoding_is_interrupted_by_as_much_as_prefills_took_of_late() -> None:
    driver = two_nodes()
    assert seen(driver).interrupted_s == 0.0
    driver.arrive("r1", "a long prompt " * 4_000, max_output_tokens=10)
    work_s = next(iter(driver.scheduler._bookings)).work.prefill_s
    driver.now_s += work_s
    driver.start("r1")
    driver.settle("r1")
    share = work_s / PREFILL_MEMORY_S
    row = seen(driver, "a")
    assert row.interrupted_s == pytest.approx(row.decode_s * share / (1 - share))
    assert seen(driver, "b").interrupted_s == 0.0
    driver.now_s += 10 * PREFILL_MEMORY_S
    assert seen(driver, "a").interrupted_s == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_clock_corrects_what_was_foreseen_of_prefills(factor: float) -> None:
    """Decoding stands still for as long as they took, and of those that wait as much more or less
    is over in a second."""
    driver, text = Driver(), "a long prompt " * 20_000
    driver.ready("a")
    (node,) = driver.nodes
    driver.arrive("r1", text, max_output_tokens=10)
    foreseen_s = node.queue_s
    driver.now_s += factor * foreseen_s
    driver.start("r1")
    took_share = factor * foreseen_s / PREFILL_MEMORY_S
    assert node.prefill_share(driver.now_s) == pytest.approx(took_share)
    driver.arrive("r2", "another " + text, max_output_tokens=10)
    before_s = node.queue_ahead_s(driver.now_s)
    driver.now_s += 1.0
    over_s = before_s - node.queue_ahead_s(driver.now_s)
    assert over_s == pytest.approx(1 / factor, rel=0.15)


def test_work_is_in_the_way_of_those_who_come_back() -> None:
    """To a node that holds their prefix; who came for nothing that is cached may go elsewhere."""
    driver, text = two_nodes(), "a long prompt " * 400
    driver.serve("r1", text)  # on a, which holds it from then on
    driver.serve("r2", "another " * 600)  # on b
    idle = seen(driver, "b")
    assert seen(driver, "a").stall_s == pytest.approx(idle.stall_s) == idle.work_s
    driver.serve("r3", text)
    row = seen(driver, "a")
    back = row.stall_s / row.work_s - 1
    assert back == pytest.approx(2 * row.work_s / RETURN_MEMORY_S, rel=0.1)
    assert seen(driver, "b").stall_s == pytest.approx(idle.work_s)
    driver.now_s += 10 * RETURN_MEMORY_S
    assert seen(driver, "a").stall_s == pytest.approx(row.work_s, rel=1e-6)


def test_dynamo_holds_what_is_in_flight_and_nothing_else() -> None:
    """A policy is told of every end: finished, failed elsewhere, gone."""
    driver = two_nodes("dynamo")
    text = "some shared words " * 400
    driver.arrive("r1", text)
    busy = seen(driver).score + seen(driver, "b").score
    driver.fail("r1", FailureKind.ERROR)  # placed on the other node
    assert seen(driver).score + seen(driver, "b").score == pytest.approx(busy)
    driver.start("r1")
    driver.settle("r1", EndCause.FINISHED)
    assert seen(driver).score == seen(driver, "b").score < busy
