"""The spine: events in, effects out."""

import pytest

from pointsman.core.decision import Ruling
from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.events import (
    IndexTrust,
    ModelCard,
    NodeDraining,
    NodeProbed,
    NodeReported,
    NodeSignals,
    PolicyChosen,
)
from pointsman.core.ids import NodeId, RequestId
from pointsman.core.limits import (
    BUSY_ATTEMPTS_MAX,
    BUSY_MEMORY_S,
    PRIORITY_HIGH,
    PROBE_FAILURES_MAX,
    STARTING_S,
)
from pointsman.core.options import SchedulerOptions
from pointsman.core.policies import catalog
from pointsman.core.request import Outcome
from pointsman.core.request_events import Held, Placed, Refused, Settled
from tests.support.driver import MODEL, Driver, request, teach, told


def placed(driver: Driver, request_id: str, text: str = "hello", **fields: object) -> Placed:
    (effect,) = driver.arrive(request_id, text, **fields)
    assert isinstance(effect, Placed), effect
    return effect


def refused(driver: Driver, request_id: str, **fields: object) -> Refused:
    (effect,) = driver.arrive(request_id, "hello", **fields)
    assert isinstance(effect, Refused), effect
    return effect


def learned(driver: Driver) -> None:
    for node in driver.nodes:
        teach(node.calibration)


@pytest.mark.parametrize("policy", [n for n in catalog.names() if n not in {"random"}])
@pytest.mark.parametrize("calibrated", [False, True])
def test_sixty_distinct_prompts_are_spread_over_two_idle_engines(
    policy: str, calibrated: bool
) -> None:
    driver = Driver(SchedulerOptions(policy=policy))
    driver.ready("a", "b")
    if calibrated:
        learned(driver)
    nodes = [driver.serve(f"r{i}", f"prompt number {i} is its own") for i in range(60)]
    spread = {name: nodes.count(name) for name in ("a", "b")}
    assert 25 <= spread["a"] <= 35, spread


def test_tenants_stay_with_their_prefix_and_spread_over_engines() -> None:
    driver = Driver()
    driver.ready("a", "b", "c", "d")
    homes: dict[int, list[str]] = {tenant: [] for tenant in range(8)}
    for turn in range(20):
        for tenant in range(8):
            text = f"system prompt of tenant {tenant} ".ljust(32, ".") * 500 + f"question {turn}"
            homes[tenant].append(driver.serve(f"t{tenant}-{turn}", text))
    assert all(len(set(nodes)) == 1 for nodes in homes.values()), homes
    first = [nodes[0] for nodes in homes.values()]
    assert all(first.count(name) == 2 for name in "abcd"), first


def test_one_prefix_shared_by_all_spreads_once_its_holder_is_busy() -> None:
    driver = Driver()
    driver.ready("a", "b", "c", "d", kv_blocks=100_000)
    learned(driver)
    text = "one system prompt for everybody " * 500
    nodes: list[str] = [
        placed(driver, f"r{i}", text, max_output_tokens=128).node for i in range(64)
    ]
    assert all(nodes.count(name) >= 8 for name in "abcd"), nodes


def test_a_decision_says_why_and_what_it_knew() -> None:
    driver = Driver()
    driver.ready("a", "b")
    learned(driver)
    decision = placed(driver, "r1").decision
    assert decision.ruling is Ruling.PLACED
    assert decision.policy == "marginal_cost"
    assert decision.why == "least delay for all"
    assert (decision.candidate_count, decision.tie_count) == (2, 2)
    assert {c.node for c in decision.candidates} == {"a", "b"}
    assert decision.candidates[0].node == decision.node
    assert decision.candidates[0].prefill_s > 0


def test_the_default_falls_back_to_lmetric_while_uncalibrated() -> None:
    driver = Driver()
    driver.ready("a", "b")
    assert (
        placed(driver, "r1").decision.why
        == "speeds not learned yet: least tokens to prefill times requests"
    )


def test_explain_changes_nothing() -> None:
    driver = Driver(SchedulerOptions(policy="power_of_two"))
    driver.ready("a", "b", "c")
    twin = Driver(SchedulerOptions(policy="power_of_two"))
    twin.ready("a", "b", "c")
    for i in range(40):
        driver.scheduler.explain(request(f"x{i}", "some prompt " * 99), driver.now_s)
    decisions = [placed(driver, f"r{i}").node for i in range(20)]
    assert decisions == [placed(twin, f"r{i}").node for i in range(20)]


def test_explain_shows_every_candidate_and_exclusion() -> None:
    driver = Driver()
    driver.ready(*(f"n{i}" for i in range(100)))
    driver.join("late")
    decision = driver.scheduler.explain(request("x"), 0.0)
    assert len(decision.candidates) == decision.candidate_count == 100
    assert [(x.node, x.why) for x in decision.excluded] == [("late", "joining")]


def test_the_same_events_and_seed_give_the_same_decisions() -> None:
    def play() -> list[str]:
        driver = Driver(SchedulerOptions(policy="random", seed=7))
        driver.ready("a", "b", "c")
        return [placed(driver, f"r{i}").node for i in range(50)]

    assert play() == play()
    assert len(set(play())) == 3


def test_the_policy_is_switched_while_running_and_a_wrong_name_changes_nothing() -> None:
    driver = Driver()
    driver.ready("a")
    with pytest.raises(ValueError, match="choose one of round_robin"):
        driver.step(PolicyChosen("fastest"))
    assert driver.scheduler.policy == "marginal_cost"
    driver.step(PolicyChosen("round_robin"))
    assert placed(driver, "r1").decision.policy == "round_robin"


def test_settling_twice_or_after_the_end_changes_nothing() -> None:
    driver = Driver()
    driver.ready("a")
    driver.serve("r1")
    before = driver.scheduler.nodes(0.0)
    driver.settle("r1")
    driver.step(Settled(RequestId("never"), Outcome(EndCause.FINISHED)))
    assert driver.scheduler.nodes(0.0) == before
    assert driver.scheduler.stats.stale_events == 2


def test_a_request_id_in_use_is_the_callers_error() -> None:
    driver = Driver()
    driver.ready("a")
    driver.arrive("r1")
    with pytest.raises(AssertionError, match="r1 is in use"):
        driver.arrive("r1")


def test_a_busy_cluster_is_asked_at_most_once_per_node() -> None:
    driver = Driver()
    driver.ready("a", "b", "c", "d", "e")
    first = placed(driver, "r1").node
    asked = [first]
    while True:
        (effect,) = driver.fail("r1", FailureKind.BUSY)
        if isinstance(effect, Refused):
            break
        assert isinstance(effect, Placed)
        asked.append(effect.node)
    assert len(asked) == len(set(asked)) == BUSY_ATTEMPTS_MAX
    assert effect.reason is Reason.NODE_BUSY


def test_one_that_failed_waits_where_the_other_nodes_have_all_that_they_may() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.join(name, concurrency_max=1)
        driver.describe(name)
    first, other = placed(driver, "r1").node, placed(driver, "r2").node
    (held,) = driver.fail("r1", FailureKind.CLOSED)
    assert isinstance(held, Held), held
    (second,) = driver.settle("r2")
    assert isinstance(second, Placed)
    assert (second.request_id, second.node) == ("r1", other) != ("r1", first)


def test_one_that_failed_and_waits_takes_the_place_of_a_less_urgent_one() -> None:
    driver = Driver(SchedulerOptions(queue_length_max=1))
    for name in ("a", "b"):
        driver.join(name, concurrency_max=1)
        driver.describe(name)
    urgent = placed(driver, "urgent", priority=PRIORITY_HIGH)
    placed(driver, "other")
    (waits,) = driver.arrive("less urgent")
    assert isinstance(waits, Held), waits
    driver.step(NodeDraining(urgent.node_id, draining=True))
    held, refusal = driver.fail("urgent", FailureKind.CLOSED)
    assert isinstance(held, Held), held
    assert isinstance(refusal, Refused), refusal
    assert (refusal.request_id, refusal.reason) == ("less urgent", Reason.QUEUE_FULL)
    assert driver.scheduler.held == 1


def test_a_request_that_fails_on_a_rank_goes_to_another_server_before_another_rank() -> None:
    """What ends one rank of a vLLM server ends them all."""
    driver = Driver()
    driver.ready("a#0", "a#1", "b", "c")
    for n in range(4):
        before = placed(driver, f"r{n}").node
        (again,) = driver.fail(f"r{n}", FailureKind.CLOSED)
        assert isinstance(again, Placed), again
        assert again.node.partition("#")[0] != before.partition("#")[0]
        driver.settle(f"r{n}")


def test_a_request_that_fails_on_a_rank_of_the_only_server_goes_to_another_rank() -> None:
    driver = Driver()
    driver.ready("a#0", "a#1")
    before = placed(driver, "r").node
    (again,) = driver.fail("r", FailureKind.CLOSED)
    assert isinstance(again, Placed), again
    assert {before, again.node} == {"a#0", "a#1"}


def test_requests_alone_do_not_take_the_last_node_out_but_probes_do() -> None:
    """Engines that fail some of their requests were all out at once: 503 for everything."""
    driver = Driver()
    driver.ready("a", "b")
    for i in range(30):
        placed(driver, f"r{i}")
        driver.fail(f"r{i}", FailureKind.CLOSED)
        driver.settle(f"r{i}", EndCause.TRUNCATED)
    assert sorted(view.health for view in driver.scheduler.nodes(0.0)) == ["open", "suspect"]
    for _ in range(PROBE_FAILURES_MAX):
        for node_id in driver.ids.values():
            driver.step(NodeProbed(node_id, healthy=False))
    assert refused(driver, "x").reason is Reason.NO_NODE


def test_retries_stop_when_the_budget_is_spent() -> None:
    driver = Driver()
    driver.ready("a", "b")
    told_no = []
    for i in range(40):
        driver.advance(BUSY_MEMORY_S)
        placed(driver, f"r{i}")
        (effect,) = driver.fail(f"r{i}", FailureKind.BUSY)
        if isinstance(effect, Refused):
            told_no.append(effect.detail)
        else:
            driver.settle(f"r{i}")
    assert told_no
    assert all("retry budget" in detail for detail in told_no)


def test_all_down_is_503_and_contention_is_429() -> None:
    driver = Driver(SchedulerOptions(queue_length_max=1))
    assert refused(driver, "r0").reason is Reason.NO_NODE
    driver.join("a", concurrency_max=1)
    assert "starting" in refused(driver, "r1").detail
    driver.advance(STARTING_S)
    assert "/pointsman/v1/state" in refused(driver, "r1b").detail
    driver.describe("a")
    placed(driver, "r2")
    assert isinstance(driver.arrive("r3")[0], Held)
    assert refused(driver, "r4").reason is Reason.QUEUE_FULL


def test_an_unknown_model_is_named_and_a_missing_one_means_the_only_one() -> None:
    driver = Driver()
    driver.ready("a")
    refusal = refused(driver, "r1", model="gpt-9")
    assert refusal.reason is Reason.MODEL_NOT_FOUND
    assert "gpt-9" in refusal.detail
    assert placed(driver, "r2", model="").decision.model == MODEL


@pytest.mark.parametrize("prompt", [{"tokens": range(640)}, {"text": "words " * 600}])
def test_a_request_without_a_model_is_cached_under_the_one_that_it_means(
    prompt: dict[str, object],
) -> None:
    for first, second in (("", MODEL), (MODEL, "")):
        driver = Driver()
        driver.ready("a")
        [effect] = driver.arrive("r1", **{"model": first, **prompt})  # type: ignore[arg-type]  # keywords
        assert isinstance(effect, Placed)
        driver.settle("r1")
        again = request("r2", **{"model": second, **prompt})  # type: ignore[arg-type]  # keywords
        assert driver.scheduler.explain(again, driver.now_s).candidates[0].hit_tokens > 600


def test_an_adapter_is_served_where_it_is_loaded() -> None:
    driver = Driver()
    driver.ready("a", "b")
    adapter = ModelCard(name="sql-lora", parent=MODEL)  # type: ignore[arg-type]  # a plain name
    driver.describe("b", models=(ModelCard(name=MODEL), adapter))
    assert {placed(driver, f"r{i}", model="sql-lora").node for i in range(4)} == {"b"}


def test_pool_zone_and_labels_are_hard_constraints() -> None:
    driver = Driver()
    driver.join("a", pool="long", zone="eu", labels=(("gpu", "h100"),))
    driver.join("b")
    driver.describe("a")
    driver.describe("b")
    constraints: list[dict[str, object]] = [
        {"pool": "long"},
        {"zone": "eu"},
        {"labels": (("gpu", "h100"),)},
    ]
    for i, fields in enumerate(constraints):
        assert placed(driver, f"r{i}", "hello", **fields).node == "a"
    assert refused(driver, "x", zone="mars").reason is Reason.NO_MATCHING_NODE


def test_scraped_load_of_others_counts_and_own_load_is_not_counted_twice() -> None:
    driver = Driver(SchedulerOptions(policy="least_request"))
    driver.ready("a", "b")
    assert placed(driver, "r1").node == "a"
    for _ in range(2):
        report(driver, "a", running=1)
        report(driver, "b", running=3)
    views = {v.name: (v.inflight, v.foreign) for v in driver.scheduler.nodes(0.0)}
    assert views == {"a": (1, 0), "b": (0, 3)}
    assert [placed(driver, f"s{i}").node for i in range(2)] == ["a", "a"]


def test_one_odd_scrape_moves_nothing_and_an_old_one_is_ignored() -> None:
    driver = Driver()
    driver.ready("a")
    report(driver, "a", running=9)
    assert driver.scheduler.nodes(driver.now_s)[0].foreign == 0
    report(driver, "a", running=9)
    assert driver.scheduler.nodes(driver.now_s)[0].foreign == 9
    driver.advance(60)
    assert driver.scheduler.nodes(driver.now_s)[0].foreign == 0


def report(driver: Driver, name: str, running: int) -> None:
    signals = NodeSignals(running=running, waiting=0)
    driver.step(NodeReported(driver.ids[name], driver.now_s, signals))


def test_late_events_of_a_former_incarnation_are_ignored() -> None:
    driver = Driver()
    driver.ready("a")
    old = driver.ids["a"]
    placed(driver, "r1")
    driver.ready("a")
    driver.step(NodeReported(old, 0.0, NodeSignals(running=5)))
    driver.settle("r1")
    (view,) = driver.scheduler.nodes(0.0)
    assert (view.incarnation, view.inflight, view.signals.running) == (NodeId(old + 1), 0, None)
    assert view.index_blocks == 0


def test_an_engine_that_caches_nothing_is_no_longer_credited() -> None:
    driver = Driver()
    driver.ready("a", "b")
    text = "a long shared prefix of many words " * 100
    for i in range(60):
        placed(driver, f"r{i}", text)
        driver.start(f"r{i}")
        driver.settle(f"r{i}", streamed=True, prompt_tokens=900, cached_tokens=0)
    decision = driver.scheduler.explain(request("x", text), 0.0)
    assert all(c.hit_tokens == 0 for c in decision.candidates)


def test_unstreamed_answers_do_not_pile_up_as_prefills() -> None:
    driver = Driver()
    driver.ready("a")
    for i in range(20):
        placed(driver, f"r{i}", f"{i} words " * 2000, stream=False, max_output_tokens=500)
    assert driver.scheduler.nodes(driver.now_s)[0].queue_s > 1.0
    driver.advance(60.0)
    assert driver.scheduler.nodes(driver.now_s)[0].queue_s == 0.0


def test_a_prefill_that_failed_ends_none_elsewhere() -> None:
    driver = Driver()
    driver.ready("a", "b")
    first = placed(driver, "r", "words " * 20_000, stream=False, max_output_tokens=500)
    prefill_s = driver.node(first.node).queue_s
    driver.advance(prefill_s / 2)
    (second,) = driver.fail("r", FailureKind.CLOSED)
    assert isinstance(second, Placed)
    assert second.node != first.node
    driver.advance(prefill_s * 0.75)  # past the first one's end, not the second's
    assert driver.node(second.node).prefills
    driver.advance(prefill_s * 0.5)
    assert not driver.node(second.node).prefills


def test_hundreds_of_nodes_are_cut_to_a_shortlist_that_keeps_the_holder() -> None:
    driver = Driver()
    driver.ready(*(f"n{i}" for i in range(100)), kv_blocks=100_000)
    learned(driver)
    text = "a prefix that one of many nodes has seen before " * 400
    home = driver.serve("r0", text)
    for i in range(100):
        placed(driver, f"busy{i}", f"{i}", max_output_tokens=10)
    decision = placed(driver, "r1", text, max_output_tokens=10).decision
    assert decision.node == home
    assert decision.candidate_count == 100


def test_ready_and_models_come_from_the_registry() -> None:
    driver = Driver()
    assert not driver.scheduler.ready()
    driver.ready("a", "b")
    assert driver.scheduler.ready()
    assert [card.name for card in driver.scheduler.models()] == [MODEL]


def test_trust_is_shown() -> None:
    driver = Driver()
    driver.ready("a")
    assert driver.scheduler.nodes(0.0)[0].index_trust is IndexTrust.HISTORY


def test_effects_can_be_told() -> None:
    driver = Driver()
    driver.ready("a")
    assert told(driver.arrive("r1")) == [
        "placed r1 on a: speeds not learned yet: least tokens to prefill times requests"
    ]


def test_a_session_without_a_name_is_no_session() -> None:
    driver = Driver(SchedulerOptions(policy="session"))
    driver.ready("a", "b")
    driver.arrive("r1", session="")
    driver.arrive("r2")
    assert [view.inflight for view in driver.scheduler.nodes(0.0)] == [1, 1]


def test_the_home_of_a_session_is_seen_in_a_fleet_of_any_size() -> None:
    driver = Driver(SchedulerOptions(policy="session"))
    driver.ready(*(f"n{i}" for i in range(100)))
    home = placed(driver, "r0", "hello", session="s").node
    for i in range(150):
        placed(driver, f"busy{i}", f"{i}")
    assert placed(driver, "r1", "hello again", session="s").node == home
