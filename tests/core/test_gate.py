"""Watermarks: who comes in, waits or is refused while the cluster fills up."""

import pytest

from pointsman.core.admission.load import PARTS_MAX
from pointsman.core.admission_rules import URGENT_HEADROOM, URGENT_MEMORY_S, AdmissionRules
from pointsman.core.errors import FailureKind, Reason
from pointsman.core.events import Effect, NodeProbed, RulesChanged
from pointsman.core.limits import PROBE_FAILURES_MAX
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Held, Placed, Refused
from pointsman.core.rules import Rules
from tests.support.driver import MODEL, Driver, request

LOW, HIGH = -10, 10
NO_BACKLOG = 1e9


def fleet(
    *names: str, limit: int = 10, options: SchedulerOptions | None = None, **rules: object
) -> Driver:
    """Nodes of `limit` slots each, under the rules that are the default but for the backlog."""
    admission = AdmissionRules(**{"backlog_s": NO_BACKLOG, **rules})  # type: ignore[arg-type]  # test keywords
    driver = Driver(options, admission)
    for name in names:
        driver.join(name, concurrency_max=limit)
        driver.describe(name, kv_blocks=100_000)
    return driver


def fill(driver: Driver, count: int, **fields: object) -> None:
    for i in range(count):
        assert isinstance(arrive(driver, f"fill{i}", **fields), Placed), i  # type: ignore[arg-type]  # test keywords


def arrive(driver: Driver, name: str, text: str = "hello", **fields: object) -> Effect:
    return driver.arrive(name, text, **fields)[0]


def refused(effect: Effect) -> Reason:
    assert isinstance(effect, Refused), effect
    return effect.reason


def test_nobody_is_refused_while_the_cluster_has_room() -> None:
    """5 nodes of 200 slots, 800 requests at once, and all want the node that has their prefix."""
    driver = fleet("a", "b", "c", "d", "e", limit=200)
    driver.serve("first", "one system prompt " * 100)
    effects = [arrive(driver, f"r{i}", "one system prompt " * 100) for i in range(800)]
    assert all(isinstance(effect, Placed) for effect in effects)


def test_low_priority_is_held_to_its_share_above_yellow_only() -> None:
    driver = fleet("a", "b")
    fill(driver, 16, priority=LOW)
    refusal = driver.arrive("low", priority=LOW)[0]
    assert refused(refusal) is Reason.LOW_PRIORITY
    assert isinstance(refusal, Refused)
    assert refusal.retry_after_s is not None
    assert "80% of the nodes is taken" in refusal.detail
    assert isinstance(arrive(driver, "normal"), Placed)


def test_low_priority_within_its_share_comes_in_above_yellow() -> None:
    driver = fleet("a", "b")
    fill(driver, 16)
    assert isinstance(arrive(driver, "low", priority=LOW), Placed)


def test_above_red_only_high_priority_passes_and_the_rest_waits() -> None:
    driver = fleet("a", "b")
    fill(driver, 18)
    assert isinstance(arrive(driver, "normal"), Held)
    assert isinstance(arrive(driver, "low", priority=LOW), Held)
    assert isinstance(arrive(driver, "high", priority=HIGH), Placed)
    room = [driver.settle(f"fill{i}") for i in range(3)]
    assert [[e.request_id for e in effects if isinstance(e, Placed)] for effects in room] == [
        [],
        ["normal"],
        ["low"],
    ]


def test_a_held_decision_says_where_it_stands_and_how_full_it_is() -> None:
    driver = fleet("a", "b")
    fill(driver, 18)
    arrive(driver, "one")
    held = arrive(driver, "two")
    assert isinstance(held, Held)
    assert held.position == 2
    assert held.decision.load == pytest.approx(0.9)
    assert held.decision.prospect is not None
    prospect = held.decision.prospect
    assert (prospect.position, prospect.wait_s) == (2, None), "nothing has shown how long it takes"
    assert held.decision.why == "red: 90% of the nodes is taken"
    assert driver.scheduler.explain(request("x"), 0.0).why == held.decision.why


def test_memory_counts_like_slots() -> None:
    driver = fleet("a", limit=100)
    driver.describe("a", kv_blocks=100)
    arrive(driver, "big", "x" * 6_300, max_output_tokens=0)
    assert driver.scheduler.explain(request("x"), 0.0).load == pytest.approx(1.0, abs=0.02)
    assert isinstance(arrive(driver, "next"), Held)


def test_leases_where_memory_is_unknown_fill_nobody_elses() -> None:
    driver = fleet("a", limit=100)
    driver.describe("a", kv_blocks=100)
    driver.join("b", concurrency_max=100, pool="b")
    driver.describe("b", kv_blocks=None)
    arrive(driver, "big", "x" * 6_300, max_output_tokens=0, pool="b")
    assert driver.scheduler.explain(request("x"), 0.0).load == 1 / 200


def test_whoever_has_to_go_to_one_node_does_not_stand_for_the_others() -> None:
    driver = fleet("a", "b", limit=2)
    asked = request("r", pool="default", home=driver.ids["a"])
    loads = driver.scheduler._admission.loads
    assert loads.part(asked).nodes == loads.part(request("s", pool="default")).nodes == 2


def test_load_is_of_the_nodes_that_could_serve_the_request() -> None:
    driver = fleet("a", limit=2)
    driver.join("b", concurrency_max=2, pool="other")
    driver.describe("b")
    assert isinstance(arrive(driver, "r0", pool="other"), Placed)
    assert isinstance(arrive(driver, "r1", pool="other"), Placed)
    assert isinstance(arrive(driver, "r2", pool="other"), Held)
    assert isinstance(arrive(driver, "r3"), Placed)


def test_prompts_that_wait_on_engines_beyond_the_backlog_wait_here() -> None:
    driver = fleet("a", backlog_s=0.1)
    serve_urgent(driver)
    text = "a prompt of some length " * 400
    effects = [arrive(driver, f"r{i}", f"{i} {text}") for i in range(3)]
    assert [type(effect) for effect in effects] == [Placed, Held, Held]
    assert isinstance(arrive(driver, "urgent", text, priority=HIGH), Placed)
    assert not [e for e in driver.start("r0") if isinstance(e, Placed)], "the urgent one waits"
    (placed,) = [e for e in driver.start("urgent") if isinstance(e, Placed)]
    assert placed.request_id == "r1"


def test_where_nobody_is_urgent_engines_may_have_what_they_can_hold() -> None:
    driver = fleet("a", backlog_s=0.1)
    text = "a prompt of some length " * 400
    assert isinstance(arrive(driver, "r0", text), Placed)
    assert isinstance(arrive(driver, "r1", f"another {text}"), Placed)
    serve_urgent(driver)
    driver.now_s += URGENT_MEMORY_S - 1.0
    assert isinstance(arrive(driver, "r2", f"a third {text}"), Held)
    driver.advance(1.0)
    assert isinstance(arrive(driver, "r3", f"a fourth {text}"), Placed)


def test_how_long_that_lasts_and_how_many_may_wait_is_configured() -> None:
    driver = fleet("a", backlog_s=0.1, backlog_prefills=2, urgent_memory_s=5.0)
    serve_urgent(driver)
    text = "a prompt of some length " * 400
    effects = [arrive(driver, f"r{i}", f"{i} {text}") for i in range(3)]
    assert [type(effect) for effect in effects] == [Placed, Placed, Held]
    assert [e.request_id for e in driver.advance(5.0) if isinstance(e, Placed)] == ["r2"]


def serve_urgent(driver: Driver) -> None:
    """A request of high priority comes and goes."""
    driver.serve("urgent before", "short", priority=HIGH)


def test_the_urgent_keep_room_free_for_more_of_them() -> None:
    driver = fleet("a", limit=100)
    fill(driver, 40, priority=HIGH)
    effects = [arrive(driver, f"r{i}") for i in range(45)]
    placed = [effect for effect in effects if isinstance(effect, Placed)]
    assert len(placed) == 90 - 40 * URGENT_HEADROOM - 40


def test_who_does_not_stream_makes_room_when_its_prefill_is_taken_to_be_over() -> None:
    driver = fleet("a", backlog_s=0.1)
    serve_urgent(driver)
    text = "a prompt of some length " * 400
    effects = [arrive(driver, f"r{i}", f"{i} {text}", stream=False) for i in range(2)]
    assert [type(effect) for effect in effects] == [Placed, Held]
    due_s = driver.scheduler.next_deadline_s()
    assert due_s is not None
    assert due_s < 5.0, "not first when its time in the queue is up"
    assert [type(effect) for effect in driver.advance(due_s)] == [Placed]


def test_very_long_prompts_have_a_share_and_leave_the_rest_to_others() -> None:
    driver = fleet("a", limit=10, long_context_tokens=1_000)
    long = "w" * 8_000
    effects = []
    for number in range(6):
        effects.append(arrive(driver, f"long{number}", long))
        driver.start(f"long{number}")
    assert [type(effect) for effect in effects] == [*[Placed] * 5, Held]
    assert isinstance(arrive(driver, "short"), Placed)
    assert driver.settle("short") == []
    room = driver.settle("long0")
    assert [e.request_id for e in room if isinstance(e, Placed)] == ["long5"]


def test_half_of_the_nodes_are_never_busy_with_very_long_prompts() -> None:
    """A node that computes one begins nothing else for seconds, whatever room it has."""
    driver = fleet("a", "b", "c", "d", limit=10, long_context_tokens=1_000)
    effects = [arrive(driver, f"long{i}", f"{i}" * 8_000) for i in range(3)]
    assert [type(effect) for effect in effects] == [Placed, Placed, Held]
    begun = driver.start("long0")
    assert [e.request_id for e in begun if isinstance(e, Placed)] == ["long2"]


def test_very_long_prompts_go_to_their_pool_where_there_is_one() -> None:
    driver = fleet("a", limit=4, long_context_tokens=1_000, long_context_pool="long")
    assert isinstance(arrive(driver, "before", "w" * 8_000), Placed)
    driver.join("b", concurrency_max=4, pool="long")
    driver.describe("b")
    effects = [arrive(driver, f"long{i}", "w" * 8_000) for i in range(4)]
    assert [e.node for e in effects if isinstance(e, Placed)] == ["b"] * 4, "all of it is theirs"


def test_a_very_long_turn_goes_home_and_not_to_the_pool_for_such() -> None:
    driver = fleet("a", limit=4, long_context_tokens=1_000, long_context_pool="long")
    driver.join("b", concurrency_max=4, pool="long")
    driver.describe("b")
    driver.serve("long", "w" * 8_000)
    driver.arrive("first")
    driver.start("first")
    driver.settle("first", streamed=True, response_id="resp_1")
    turn = arrive(driver, "turn", "w" * 8_000, continues="resp_1")
    assert isinstance(turn, Placed)
    assert turn.node == "a"


# --- no node, or no time ---------------------------------------------------------------------


def test_scaled_to_zero_is_503_at_once_and_contention_waits_or_is_429() -> None:
    driver = fleet(limit=1)
    assert refused(arrive(driver, "r0")) is Reason.NO_NODE
    driver = fleet("a", limit=1, options=SchedulerOptions(queue_length_max=1))
    arrive(driver, "r0")
    assert isinstance(arrive(driver, "r1"), Held)
    assert refused(arrive(driver, "r2")) is Reason.QUEUE_FULL


def test_a_bounded_wait_for_nodes_ends_with_one_or_with_503() -> None:
    driver = fleet("a", wait_for_nodes_s=5.0)
    down(driver, "a")
    assert isinstance(arrive(driver, "r0"), Held)
    (late,) = driver.advance(5.0)
    assert refused(late) is Reason.NO_NODE
    arrive(driver, "r1")
    driver.join("b")
    effects = driver.describe("b")
    assert [e.request_id for e in effects if isinstance(e, Placed)] == ["r1"]


def down(driver: Driver, name: str) -> None:
    for _ in range(PROBE_FAILURES_MAX):
        driver.step(NodeProbed(driver.ids[name], healthy=False))


def test_a_full_queue_gives_the_place_of_the_least_urgent_to_a_more_urgent_one() -> None:
    driver = fleet("a", limit=1, options=SchedulerOptions(queue_length_max=2))
    arrive(driver, "r0", priority=HIGH)
    assert isinstance(arrive(driver, "low", priority=-1), Held)
    assert isinstance(arrive(driver, "r1"), Held)
    assert refused(arrive(driver, "lower", priority=-2)) is Reason.QUEUE_FULL
    held, displaced = driver.arrive("r2")[:2]
    assert isinstance(held, Held)
    assert isinstance(displaced, Refused)
    assert (displaced.request_id, displaced.reason) == ("low", Reason.QUEUE_FULL)


def busy(driver: Driver, execution_s: float) -> None:
    """One node of one slot, whose requests are known to run for so long."""
    for i in range(10):
        arrive(driver, f"run{i}")
        driver.start(f"run{i}")
        driver.now_s += execution_s
        driver.settle(f"run{i}", streamed=True)
    arrive(driver, "running")
    driver.start("running")


def test_the_queue_is_as_long_as_mean_executions_allow() -> None:
    """Little's law: one of 8 s at a time, and nobody is to wait for more than 24 s."""
    driver = fleet("a", limit=1, wait_factor=3.0)
    busy(driver, 8.0)
    effects = [arrive(driver, f"r{i}") for i in range(4)]
    assert [type(effect) for effect in effects] == [Held, Held, Held, Refused]
    last = effects[-1]
    assert isinstance(last, Refused)
    assert last.reason is Reason.QUEUE_FULL
    assert last.decision.prospect is not None
    assert (last.decision.prospect.position, last.decision.prospect.wait_s) == (4, 32.0)
    assert last.retry_after_s is not None
    assert last.retry_after_s >= 32.0, "it follows the wait"


def test_a_tenant_that_floods_the_queue_is_refused_and_others_are_not() -> None:
    """Tenants take turns, so another's request is next but one, however long the flood is."""
    driver = fleet("a", limit=1, wait_factor=3.0)
    busy(driver, 8.0)
    flood = [arrive(driver, f"r{i}", tenant="flood") for i in range(6)]
    assert [type(effect) for effect in flood] == [Held] * 3 + [Refused] * 3
    other = arrive(driver, "other", tenant="other")
    assert isinstance(other, Held)
    assert other.decision.prospect is not None
    assert (other.position, other.decision.prospect.wait_s) == (2, 16.0)
    assert refused(arrive(driver, "r6", tenant="flood")) is Reason.QUEUE_FULL


def test_a_shorter_execution_makes_the_queue_longer() -> None:
    driver = fleet("a", limit=1, wait_factor=3.0)
    busy(driver, 1.0)
    effects = [arrive(driver, f"r{i}") for i in range(12)]
    assert [type(effect) for effect in effects] == [*[Held] * 10, Refused, Refused]


def test_what_cannot_meet_its_objective_is_refused_early_or_when_its_time_is_up() -> None:
    driver = fleet("a", limit=1)
    busy(driver, 4.0)
    assert refused(arrive(driver, "r0", slo_ttft_s=3.0)) is Reason.DEADLINE
    assert isinstance(arrive(driver, "r1", slo_ttft_s=6.0), Held)
    (late,) = driver.advance(6.0)
    assert refused(late) is Reason.DEADLINE


def test_rules_change_while_requests_wait() -> None:
    driver = fleet("a", limit=10)
    fill(driver, 9)
    assert isinstance(arrive(driver, "r"), Held)
    open_gate = AdmissionRules(red_share=1.0, backlog_s=NO_BACKLOG)
    assert [type(e) for e in driver.step(RulesChanged(Rules(admission=open_gate)))] == [Placed]


def test_a_failed_attempt_does_not_come_to_the_gate_again() -> None:
    driver = fleet("a", "b", limit=10)
    fill(driver, 18)
    arrive(driver, "high", priority=HIGH)
    (again, *_) = driver.fail("fill0", FailureKind.CLOSED)
    assert isinstance(again, Placed)


def test_models_that_nobody_serves_do_not_push_out_what_is_known_of_others() -> None:
    driver = fleet("a")
    for number in range(3_000):
        driver.arrive(f"r{number}", model=f"no such model {number}")
        if number % 500 == 0:
            driver.arrive(f"s{number}")
    rates = driver.scheduler._admission._arrivals[MODEL]
    assert sum(rate.per_s(0.0) for rate in rates) == 6 / 5


def test_parts_are_bounded_and_what_is_beyond_goes_by_its_model() -> None:
    driver = fleet("b")
    labels = tuple((f"label-{n}", "yes") for n in range(PARTS_MAX + 10))
    driver.join("a", labels=labels)
    driver.describe("a")
    loads = driver.scheduler._admission.loads
    nodes = [loads.part(request("r", labels=(label,))).nodes for label in labels]
    assert nodes == [1] * PARTS_MAX + [2] * 10
    assert len(loads._parts) == PARTS_MAX + 1
    arrive(driver, "r", labels=labels[-1:])
    assert loads.part(request("s")).all.inflight == 1
    driver.scheduler.check()


def test_models_that_nobody_serves_take_no_memory() -> None:
    driver = fleet("a")
    for number in range(PARTS_MAX + 10):
        driver.arrive(f"r{number}", model=f"no such model {number}")
    loads = driver.scheduler._admission.loads
    assert len(loads._parts) <= 1
