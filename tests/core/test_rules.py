"""Bounds that change while the scheduler runs."""

import pytest

from pointsman.core.admission.held import HeldQueue
from pointsman.core.admission.retry_budget import RetryBudget
from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.blocks import Prompt
from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.events import (
    Admitted,
    ModelCard,
    NodeChanged,
    NodeDescribed,
    NodeFacts,
    NodeJoined,
    NodeProbed,
    NodeSpec,
    PolicyChosen,
    RulesChanged,
)
from pointsman.core.exchange import Exchange
from pointsman.core.health import Health
from pointsman.core.ids import ModelName, NodeId, NodeName, RequestId
from pointsman.core.options import SchedulerOptions
from pointsman.core.placement import Attempt
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Arrived, Failed, Held, Placed, Refused, Settled, Started
from pointsman.core.rules import (
    CostWeights,
    HealthRules,
    HotPrefixRules,
    RetryRules,
    Rules,
    Timeouts,
)
from pointsman.core.scheduler import Scheduler
from pointsman.core.scheme import Namespace
from tests.support.driver import teach

MODEL = ModelName("m")


def request(name: str, **fields: object) -> Request:
    prompt = Prompt(Namespace(MODEL, ""), text=name.encode() * 2_000)
    return Request(RequestId(name), MODEL, prompt, max_output_tokens=8, **fields)  # type: ignore[arg-type]  # any field


def spec(name: str, **fields: object) -> NodeSpec:
    return NodeSpec(name=NodeName(name), url=f"http://{name}", **fields)  # type: ignore[arg-type]  # any field


def joined(scheduler: Scheduler, *specs: NodeSpec) -> list[NodeId]:
    ids = []
    for each in specs:
        (admitted,) = scheduler.step(NodeJoined(each), 0.0)
        assert isinstance(admitted, Admitted)
        facts = NodeFacts(models=(ModelCard(MODEL),), block_tokens=16, kv_blocks=10_000)
        scheduler.step(NodeDescribed(admitted.node_id, facts), 0.0)
        ids.append(admitted.node_id)
    return ids


def test_options_and_rules_name_the_same_things() -> None:
    options = SchedulerOptions(queue_length_max=7, hold_s=3.0)
    assert options.rules == Rules(queue_length_max=7, hold_s=3.0)


def test_a_shorter_queue_keeps_who_waits_and_refuses_newcomers() -> None:
    scheduler = Scheduler()
    joined(scheduler, spec("a", concurrency_max=1))
    verdicts = [scheduler.step(Arrived(request(name)), 0.0)[0] for name in "abc"]
    assert [type(verdict) for verdict in verdicts] == [Placed, Held, Held]
    scheduler.step(RulesChanged(Rules(queue_length_max=1, hold_s=5.0)), 0.0)
    scheduler.check()
    (refused,) = scheduler.step(Arrived(request("d")), 0.0)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.QUEUE_FULL
    assert scheduler.held == 2
    for name in "bc":
        scheduler.step(Settled(RequestId(name), Outcome(end=EndCause.CLIENT_GONE)), 0.0)
    assert isinstance(scheduler.step(Arrived(request("e")), 1.0)[0], Held)
    assert scheduler.next_deadline_s() == 6.0
    scheduler.check()


def test_health_is_judged_by_the_rules_in_force() -> None:
    scheduler = Scheduler(SchedulerOptions(health=HealthRules(probe_failures_max=2)))
    (node_id,) = joined(scheduler, spec("a"))
    scheduler.step(NodeProbed(node_id, healthy=False), 0.0)
    assert scheduler.ready()
    scheduler.step(NodeProbed(node_id, healthy=False), 0.0)
    assert not scheduler.ready()
    scheduler.step(RulesChanged(Rules(health=HealthRules(probe_successes_min=1))), 0.0)
    scheduler.step(NodeProbed(node_id, healthy=True), 0.0)
    assert scheduler.ready()
    (other,) = joined(scheduler, spec("b"))
    for _ in range(2):
        scheduler.step(NodeProbed(other, healthy=False), 0.0)
    assert [view.health for view in scheduler.nodes(0.0)] == [Health.WARMING, Health.SUSPECT]


@pytest.mark.parametrize("attempts_max", [1, 3])
def test_attempts_are_counted_by_the_rules_in_force(attempts_max: int) -> None:
    scheduler = Scheduler()
    joined(scheduler, *(spec(name) for name in "abcd"))
    scheduler.step(RulesChanged(Rules(retries=RetryRules(attempts_max=attempts_max))), 0.0)
    verdict = scheduler.step(Arrived(request("r")), 0.0)[0]
    for _ in range(attempts_max - 1):
        assert isinstance(verdict, Placed)
        verdict = scheduler.step(Failed(RequestId("r"), FailureKind.CLOSED), 0.0)[0]
    assert isinstance(verdict, Placed)
    verdict = scheduler.step(Failed(RequestId("r"), FailureKind.CLOSED), 0.0)[0]
    assert isinstance(verdict, Refused)


@pytest.mark.parametrize(
    ("kind", "field"), [("closed", "attempts_max"), ("busy", "busy_attempts_max")]
)
def test_an_exchange_counts_by_the_same_rules(kind: str, field: str) -> None:
    rules = RetryRules(**{field: 4})
    exchange = Exchange(RequestId("r"), Timeouts(), 0.0, rules)
    for _ in range(4):
        assert exchange.may_be_placed
        exchange.placed(0.0)
        exchange.failed(FailureKind(kind))
    assert not exchange.may_be_placed


def test_rules_reach_the_policy_whichever_is_chosen_and_hot_prefixes() -> None:
    scheduler, weights = Scheduler(), CostWeights(first_token_weight=1.0)
    joined(scheduler, spec("a"), spec("b"))
    for node in scheduler._cluster.nodes:
        teach(node.calibration)
    scores = [_score(scheduler)]
    rules = Rules(marginal_cost=weights, hot_prefixes=HotPrefixRules(holders_slack=0.0))
    scheduler.step(RulesChanged(rules), 0.0)
    scores.append(_score(scheduler))
    for policy in ("round_robin", "marginal_cost"):
        scheduler.step(PolicyChosen(policy), 0.0)
    scores.append(_score(scheduler))
    assert scores[0] > scores[1] == scores[2]
    assert scheduler._residency.hot._slack == 0.0


def _score(scheduler: Scheduler) -> float:
    """What the placement of a prompt would cost on an idle node."""
    return scheduler.explain(request("asked"), 0.0).candidates[0].score


def test_a_smaller_retry_budget_counts_at_once() -> None:
    budget = RetryBudget()
    budget.apply(RetryRules(budget_min=0, budget_ratio=0.5))
    assert not budget.take()
    budget.apply(RetryRules(budget_min=1, budget_ratio=0.5))
    for _ in range(100):
        budget.attempted()
    assert sum(budget.take() for _ in range(20)) == 10


def test_a_queue_is_checked_against_what_it_was_allowed() -> None:
    queue = HeldQueue(length_max=3)
    for name in "abc":
        queue.add(Attempt(request(name), 0.0), 0.0)
    queue.apply(1, 1.0, AdmissionRules())
    queue.check()
    assert queue.full
    assert queue.surplus() == []


def test_a_node_that_is_configured_otherwise_keeps_what_it_holds_and_runs() -> None:
    scheduler = Scheduler()
    (node_id,) = joined(scheduler, spec("a"))
    (placed,) = scheduler.step(Arrived(request("r")), 0.0)
    assert isinstance(placed, Placed)
    scheduler.step(Started(RequestId("r")), 0.1)
    blocks = scheduler.nodes(0.1)[0].index_blocks
    assert blocks > 0
    changed = spec("a", pool="long", concurrency_max=1, labels=(("gpu", "h100"),))
    assert scheduler.step(NodeChanged(node_id, changed), 0.2) == []
    (view,) = scheduler.nodes(0.2)
    assert (view.incarnation, view.pool, view.concurrency_max) == (node_id, "long", 1)
    assert (view.inflight, view.index_blocks) == (1, blocks)
    assert scheduler.inflight_on(node_id) == 1
    (held,) = scheduler.step(Arrived(request("s")), 0.2)
    assert isinstance(held, Held)
    effects = scheduler.step(NodeChanged(node_id, spec("a")), 0.3)
    assert [type(effect) for effect in effects] == [Placed], "there is room again"
    scheduler.check()


def test_a_node_may_be_told_what_it_serves() -> None:
    scheduler = Scheduler()
    (node_id,) = joined(scheduler, spec("a"))
    scheduler.step(NodeChanged(node_id, spec("a", models=(ModelName("n"),))), 0.0)
    assert [card.name for card in scheduler.models()] == ["n"]
    (refused,) = scheduler.step(Arrived(request("r")), 0.0)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.MODEL_NOT_FOUND
    assert scheduler.inflight_on(NodeId(99)) == 0
