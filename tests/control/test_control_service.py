"""The service delivers every verdict once, never re-enters the core, and survives its bugs."""

from collections.abc import Sequence
from random import Random

import pytest

from pointsman.control import service as service_module
from pointsman.control.service import SchedulerService
from pointsman.control.watcher import NodeWatcher
from pointsman.core.blocks import Prompt
from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.events import (
    Admitted,
    Left,
    ModelCard,
    NodeDescribed,
    NodeFacts,
    NodeJoined,
    NodeJudged,
    NodeSpec,
    PolicyChosen,
)
from pointsman.core.ids import ModelName, NodeId, NodeName, RequestId
from pointsman.core.options import SchedulerOptions
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Held, Placed, Recalled, Refused, Verdict
from pointsman.core.row import Row
from pointsman.core.scheduler import Scheduler
from pointsman.core.scheme import Namespace
from pointsman.telemetry.decisions import DecisionRing
from tests.support.waiting import eventually

FINISHED = Outcome(end=EndCause.FINISHED, ttft_s=0.1, decode_s=0.1, output_tokens=5)


class Objectives:
    """Counts what the service sees."""

    def __init__(self) -> None:
        self.decisions = 0
        self.met: list[bool] = []

    def decided(self, seconds: float) -> None:
        assert seconds >= 0
        self.decisions += 1

    def slo_met(self, model: ModelName, met: bool) -> None:
        assert model == "m"
        self.met.append(met)


class House:
    """A service on a clock of its own, with `nodes` ready nodes."""

    def __init__(self, nodes: int = 1) -> None:
        self.time_s = 100.0
        self.scheduler = Scheduler(SchedulerOptions(policy="round_robin"))
        self.ring = DecisionRing()
        self.objectives = Objectives()
        self.service = SchedulerService(
            self.scheduler,
            decisions=self.ring,
            clock=lambda: self.time_s,
            observer=self.objectives,
        )
        for number in range(nodes):
            self.join(f"n{number}")

    def join(self, name: str) -> None:
        admitted: list[NodeId] = []

        class Watcher(NodeWatcher):
            def admitted(self, effect: Admitted) -> None:
                admitted.append(effect.node_id)

        self.service.watch(Watcher())
        spec = NodeSpec(name=NodeName(name), url=f"http://{name}", concurrency_max=1)
        self.service.submit(NodeJoined(spec))
        facts = NodeFacts(models=(ModelCard(ModelName("m")),))
        self.service.submit(NodeDescribed(admitted[0], facts))

    def arrive(
        self, name: str, slo_ttft_s: float | None = None, priority: int = 0
    ) -> list[Verdict]:
        verdicts: list[Verdict] = []
        self.service.arrive(request(name, slo_ttft_s, priority), verdicts.append)
        return verdicts

    def settle(self, name: str, outcome: Outcome = FINISHED) -> None:
        self.service.settle(RequestId(name), outcome)


def request(name: str, slo_ttft_s: float | None = None, priority: int = 0) -> Request:
    return Request(
        id=RequestId(name),
        model=ModelName("m"),
        prompt=Prompt(Namespace("m"), text=b"x"),
        slo_ttft_s=slo_ttft_s,
        stream=True,
        priority=priority,
    )


def kinds(verdicts: list[Verdict]) -> list[type]:
    return [type(verdict) for verdict in verdicts]


def test_a_verdict_comes_before_the_call_returns() -> None:
    house = House()
    assert kinds(house.arrive("r")) == [Placed]
    assert house.service.unsettled == 1
    house.settle("r")
    house.settle("r")
    assert house.service.unsettled == 0
    assert house.scheduler.in_flight == 0


def test_a_held_request_is_placed_when_room_is_made() -> None:
    house = House()
    house.arrive("first")
    waiting = house.arrive("second")
    assert kinds(waiting) == [Held]
    house.settle("first")
    assert kinds(waiting) == [Held, Placed]
    house.settle("second")
    assert house.service.unsettled == 0


def test_a_recall_reaches_its_request_and_is_answered() -> None:
    house = House()
    taken_back = house.arrive("low", priority=-10)
    house.arrive("high", priority=10)
    assert kinds(taken_back) == [Placed, Recalled]
    house.service.failed(RequestId("low"), FailureKind.RECALLED)
    assert kinds(taken_back) == [Placed, Recalled, Held]
    house.settle("high")
    assert kinds(taken_back) == [Placed, Recalled, Held, Placed]
    house.settle("low")
    assert house.service.unsettled == 0


def test_a_recall_answered_from_inside_its_delivery_waits_its_turn() -> None:
    house = House()
    seen: list[type] = []

    def give_back_at_once(verdict: Verdict) -> None:
        seen.append(type(verdict))
        if isinstance(verdict, Recalled):
            house.service.failed(verdict.request_id, FailureKind.RECALLED)

    house.service.arrive(request("low", priority=-10), give_back_at_once)
    high = house.arrive("high", priority=10)
    assert kinds(high) == [Held, Placed]
    assert seen == [Placed, Recalled, Held]


def test_a_held_request_may_be_settled() -> None:
    house = House()
    house.arrive("first")
    waiting = house.arrive("second")
    house.settle("second", Outcome(end=EndCause.CLIENT_GONE))
    house.settle("first")
    assert kinds(waiting) == [Held]
    assert house.scheduler.held == 0


def test_a_settlement_from_inside_a_verdict_waits_its_turn() -> None:
    house = House()
    seen: list[str] = []

    def settle_at_once(verdict: Verdict) -> None:
        seen.append(verdict.request_id)
        house.service.settle(verdict.request_id, Outcome(end=EndCause.CLIENT_GONE))

    house.arrive("first")
    house.service.arrive(request("second"), lambda v: None)
    house.service.arrive(request("third"), settle_at_once)
    assert seen == ["third"]
    house.settle("second")
    house.settle("first")
    assert house.scheduler.held == 0
    assert house.service.unsettled == 0


def test_a_failed_attempt_is_answered_with_another_node() -> None:
    house = House(nodes=2)
    verdicts = house.arrive("r")
    house.service.failed(RequestId("r"), FailureKind.UNREACHABLE)
    assert kinds(verdicts) == [Placed, Placed]
    first, second = verdicts
    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    assert first.node != second.node
    assert [d.attempt for d in house.ring.of(RequestId("r"))] == [1, 2]


def test_a_refusal_needs_no_settlement() -> None:
    house = House(nodes=0)
    (verdict,) = house.arrive("r")
    assert isinstance(verdict, Refused)
    assert house.service.unsettled == 0


class Broken(PolicyBase):
    """A policy that fails when everything is booked."""

    name = "broken"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        return pick(rows, why="any")

    def placed(self, request: Request, row: Row) -> None:
        raise RuntimeError("a bug")


def test_a_bug_in_the_core_refuses_one_request_and_leaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    house.scheduler._policy = Broken()
    (verdict,) = house.arrive("r")
    assert isinstance(verdict, Refused)
    assert verdict.reason is Reason.INTERNAL
    assert house.service.counters.steps_failed == 1
    assert house.service.unsettled == 0
    assert house.scheduler.in_flight == 0, "what the failed step had booked is undone"
    assert "Arrived(r, model m)" in caplog.text
    house.service.submit(PolicyChosen("none of the catalog"))
    assert house.service.counters.steps_failed == 2


def test_a_bug_in_a_verdict_s_owner_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    house = House(nodes=2)

    def fail(verdict: Verdict) -> None:
        raise RuntimeError("not the core's bug")

    house.service.arrive(request("bad"), fail)
    assert kinds(house.arrive("good")) == [Placed]
    assert house.service.counters.sinks_failed == 1
    assert "a verdict on bad could not be delivered" in caplog.text


def test_what_an_engine_says_of_itself_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    house = House(nodes=2)
    for _ in range(2):
        (node, *_others) = house.scheduler.nodes(house.time_s)
        detail = "bad\r\nERROR forged"
        house.service.submit(NodeJudged(node.incarnation, healthy=False, detail=detail))
    (said,) = [record.getMessage() for record in caplog.records if "suspect" in record.getMessage()]
    assert said.endswith(r"bad\r\nERROR forged")


def test_an_id_in_use_is_refused_and_the_first_one_keeps_it() -> None:
    house = House(nodes=2)
    first = house.arrive("r")
    (second,) = house.arrive("r")
    assert isinstance(second, Refused)
    assert kinds(first) == [Placed]
    house.settle("r")
    assert house.scheduler.in_flight == 0


def test_what_is_open_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "OPEN_MAX", 1)
    house = House(nodes=2)
    house.arrive("first")
    (verdict,) = house.arrive("second")
    assert isinstance(verdict, Refused)
    assert house.service.counters.open_full == 1


def test_objectives_are_judged_at_the_first_byte() -> None:
    house = House(nodes=4)
    for name in ("soon", "late", "never", "gone"):
        house.arrive(name, slo_ttft_s=1.0)
    house.service.started(RequestId("soon"))
    house.service.started(RequestId("soon"))
    house.time_s += 2.0
    house.service.started(RequestId("late"))
    house.settle("never", Outcome(end=EndCause.TIMEOUT))
    house.settle("gone", Outcome(end=EndCause.CLIENT_GONE))
    house.settle("soon")
    assert house.objectives.met == [True, False, False]
    assert house.objectives.decisions == 4


def test_watchers_follow_nodes() -> None:
    told: list[object] = []

    class Watcher(NodeWatcher):
        def left(self, effect: Left) -> None:
            told.append(("left", effect.node_id))

    class Traffic:
        def placed(self, node_id: NodeId) -> None:
            told.append(("placed", node_id))

        def alive(self, node_id: NodeId) -> None:
            told.append(("alive", node_id))

        def failed(self, node_id: NodeId) -> None:
            told.append(("failed", node_id))

    house = House()
    house.service.watch(Watcher())
    house.service.watch_traffic(Traffic())
    house.arrive("r")
    house.service.started(RequestId("r"))
    house.service.submit(NodeJoined(NodeSpec(name=NodeName("n0"), url="http://n0")))
    assert told == [("placed", 1), ("alive", 1), ("left", 1)]


def test_explaining_changes_nothing() -> None:
    house = House(nodes=2)
    decision = house.service.explain(request("dry"))
    assert decision.candidate_count == 2
    assert house.service.unsettled == house.scheduler.in_flight == 0
    assert len(house.ring) == 0


def test_the_policy_changes_for_the_next_decision() -> None:
    house = House(nodes=2)
    house.service.choose_policy("least_request")
    (verdict,) = house.arrive("r")
    assert isinstance(verdict, Placed)
    assert verdict.decision.policy == "least_request"


async def test_a_held_request_is_refused_in_time_without_traffic() -> None:
    house = House()
    service = SchedulerService(
        Scheduler(SchedulerOptions(policy="round_robin")), decisions=DecisionRing()
    )
    house.service, house.scheduler = service, service.scheduler
    house.join("n0")
    service.start()
    house.arrive("first")
    verdicts: list[Verdict] = []
    prompt = Prompt(Namespace("m"), text=b"x")
    service.arrive(
        Request(id=RequestId("r"), model=ModelName("m"), prompt=prompt, hold_s=0.05),
        verdicts.append,
    )
    await eventually(lambda: len(verdicts) == 2)
    service.stop()
    service.stop()
    assert isinstance(verdicts[1], Refused)
    assert verdicts[1].reason is Reason.QUEUE_TIMEOUT


def test_an_engine_whose_circuit_is_open_is_called_out_of_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House(nodes=2)
    for _ in range(3):
        (node, *_others) = house.scheduler.nodes(house.time_s)
        house.service.submit(NodeJudged(node.incarnation, healthy=False, detail="gibberish"))
    assert f"engine {node.name} is out of service (open): feedback: gibberish" in caplog.text
