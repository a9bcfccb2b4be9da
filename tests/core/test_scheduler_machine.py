"""The ledger never leaks: any order of arrivals, cancels, failures, node deaths, restarts, lost,
duplicate and late messages leaves exactly what is really held."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pointsman.core.admission_rules import AdmissionRules, QueueOrder
from pointsman.core.audit import REPORTS
from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import (
    Effect,
    NodeDraining,
    NodeLeft,
    NodeProbed,
    NodeReported,
    NodeSignals,
    NodeWarmed,
    PolicyChosen,
    RulesChanged,
)
from pointsman.core.ids import NodeId
from pointsman.core.limits import LEASE_S_MAX, RESERVATION_S
from pointsman.core.options import SchedulerOptions
from pointsman.core.policies import catalog
from pointsman.core.request_events import Compensated, Held, Placed, Recalled, Refused
from pointsman.core.rules import Preemption, Rules, WarmUpRules
from tests.support.driver import OPEN_GATE, Driver, request

NODES = st.sampled_from(["a", "b", "c"])
REQUESTS = st.integers(0, 15).map(lambda i: f"r{i}")


class SchedulerMachine(RuleBasedStateMachine):
    RULES = OPEN_GATE

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(SchedulerOptions(queue_length_max=4), self.RULES)
        self.placed: dict[str, NodeId] = {}
        self.placed_s: dict[str, float] = {}
        self.lost: set[str] = set()  # placed, and their gateway is dead
        self.started: set[str] = set()
        self.compensated: set[str] = set()
        self.held: set[str] = set()
        self.recalled: dict[str, NodeId] = {}
        self.count = 0
        self.driver.ready("a", "b", "c", kv_blocks=60)

    def take(self, effects: list[Effect]) -> None:
        """What the gateway would believe."""
        for effect in effects:
            match effect:
                case Placed():
                    self.held.discard(effect.request_id)
                    self.placed[effect.request_id] = effect.node_id
                    self.placed_s[effect.request_id] = self.driver.now_s
                case Compensated():
                    assert effect.request_id not in self.compensated, "given back twice"
                    assert effect.blocks >= 0
                    self.compensated.add(effect.request_id)
                case Held():
                    self.held.add(effect.request_id)
                case Refused():
                    self.held.discard(effect.request_id)
                    self.forget(effect.request_id)
                case Recalled():
                    assert self.placed[effect.request_id] == effect.node_id
                    assert effect.request_id not in self.recalled, "asked for twice"
                    self.recalled[effect.request_id] = effect.node_id
                case _:
                    pass

    def forget(self, request_id: str) -> None:
        """Its attempt is over, or all of it."""
        self.placed.pop(request_id, None)
        self.recalled.pop(request_id, None)
        for names in (self.lost, self.started, self.compensated):
            names.discard(request_id)

    @rule(
        request_id=REQUESTS,
        words=st.integers(1, 600),
        priority=st.sampled_from([-10, 0, 10]),
        stream=st.booleans(),
        output=st.integers(0, 200),
        slo_ttft_s=st.sampled_from([None, 0.01]),
    )
    def arrive(
        self,
        request_id: str,
        words: int,
        priority: int,
        stream: bool,
        output: int,
        slo_ttft_s: float | None,
    ) -> None:
        if request_id in self.placed or request_id in self.held:
            return
        self.take(
            self.driver.arrive(
                request_id,
                f"{words % 3} " * words,
                priority=priority,
                stream=stream,
                max_output_tokens=output,
                hold_s=5.0,
                slo_ttft_s=slo_ttft_s,
            )
        )

    @rule(request_id=REQUESTS)
    def start(self, request_id: str) -> None:
        self.recalled.pop(request_id, None)  # void: the first byte was sooner
        if request_id in self.placed and request_id not in self.started:
            if self.placed[request_id] in self.driver.ids.values():
                self.compensated.discard(request_id)
            self.started.add(request_id)
        self.take(self.driver.start(request_id))

    @rule(request_id=REQUESTS, kind=st.sampled_from(FailureKind))
    def fail(self, request_id: str, kind: FailureKind) -> None:
        """Recalls that nobody asked for are among them: they must do no harm."""
        self.forget(request_id)
        self.take(self.driver.fail(request_id, kind))

    @precondition(lambda self: self.recalled)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.fail(data.draw(st.sampled_from(sorted(self.recalled))), FailureKind.RECALLED)

    @rule(
        request_id=REQUESTS,
        end=st.sampled_from(EndCause),
        cached=st.none() | st.integers(0, 500),
        prompt=st.none() | st.integers(1, 500),
    )
    def settle(
        self, request_id: str, end: EndCause, cached: int | None, prompt: int | None
    ) -> None:
        self.forget(request_id)
        self.held.discard(request_id)
        effects = self.driver.settle(
            request_id, end, streamed=True, cached_tokens=cached, prompt_tokens=prompt, ttft_s=0.1
        )
        self.take(effects)

    @rule(request_id=REQUESTS)
    def lose(self, request_id: str) -> None:
        """Its gateway dies. What it had said before may still arrive, by the rules above."""
        if request_id in self.placed:
            self.lost.add(request_id)

    @rule(
        name=NODES,
        running=st.none() | st.integers(0, 4),
        waiting=st.none() | st.integers(0, 2),
        kv_usage=st.sampled_from([None, 0.0, 0.5]),
        times=st.integers(1, REPORTS),
    )
    def report(
        self,
        name: str,
        running: int | None,
        waiting: int | None,
        kv_usage: float | None,
        times: int,
    ) -> None:
        """Whatever an engine says of itself, true or not."""
        signals = NodeSignals(running=running, waiting=waiting, kv_usage=kv_usage)
        for _ in range(times):
            event = NodeReported(self.driver.ids[name], self.driver.now_s, signals)
            self.take(self.driver.step(event))

    @rule(name=NODES)
    def restart(self, name: str) -> None:
        self.take(self.driver.join(name))
        self.take(self.driver.describe(name, kv_blocks=60))

    @rule(name=NODES)
    def leave(self, name: str) -> None:
        self.take(self.driver.step(NodeLeft(self.driver.ids[name])))

    @rule(name=NODES, healthy=st.booleans())
    def probe(self, name: str, healthy: bool) -> None:
        self.take(self.driver.step(NodeProbed(self.driver.ids[name], healthy)))

    @rule(name=NODES, draining=st.booleans())
    def drain(self, name: str, draining: bool) -> None:
        self.take(self.driver.step(NodeDraining(self.driver.ids[name], draining)))

    @rule(preemption=st.sampled_from(Preemption), prefixes=st.integers(0, 2))
    def change_rules(self, preemption: Preemption, prefixes: int) -> None:
        warm_up = WarmUpRules(prefixes=prefixes, within_s=3.0)
        rules = Rules(queue_length_max=4, preemption=preemption, warm_up=warm_up)
        self.take(self.driver.step(RulesChanged(rules)))

    @rule(name=NODES, words=st.none() | st.integers(1, 600))
    def warm(self, name: str, words: int | None) -> None:
        prompt = None if words is None else request("w", "1 " * words).prompt
        self.take(self.driver.step(NodeWarmed(self.driver.ids[name], prompt)))

    @rule(policy=st.sampled_from(catalog.names()))
    def choose(self, policy: str) -> None:
        self.take(self.driver.step(PolicyChosen(policy)))

    @rule(seconds=st.sampled_from([0.1, 6.0, 40.0, 700.0, LEASE_S_MAX]))
    def wait(self, seconds: float) -> None:
        self.take(self.driver.advance(seconds))
        for request_id in list(self.placed):
            if self.driver.now_s - self.placed_s[request_id] >= LEASE_S_MAX:
                self.forget(request_id)

    @invariant()
    def nothing_leaks(self) -> None:
        scheduler = self.driver.scheduler
        assert scheduler.in_flight == len(self.placed)
        assert scheduler.held == len(self.held)
        views = scheduler.nodes(self.driver.now_s)
        for view in views:
            here = [r for r, node_id in self.placed.items() if node_id == view.incarnation]
            assert view.inflight == len([r for r in here if r not in self.compensated]), view

    def teardown(self) -> None:
        """When every client leaves, everything is back at zero: at once, but for those of whom
        nobody will tell, and soon what these had."""
        while living := [*self.held, *(r for r in self.placed if r not in self.lost)]:
            self.settle(living[0], EndCause.CLIENT_GONE, None, None)
        assert self.driver.scheduler.in_flight == len(self.lost)
        self.wait(2 * RESERVATION_S)
        for name in self.driver.ids:
            self.report(name, 0, 0, None, REPORTS)
        for view in self.driver.scheduler.nodes(self.driver.now_s):
            assert (view.inflight, view.kv_blocks_leased, view.queue_s) == (0, 0, 0.0), view


SchedulerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None
)
TestSchedulerMachine = SchedulerMachine.TestCase


class GatedMachine(SchedulerMachine):
    """With watermarks that are soon reached, and the order by utility."""

    RULES = AdmissionRules(
        yellow_share=0.3,
        red_share=0.5,
        low_share=0.1,
        order=QueueOrder.UTILITY,
        long_context_tokens=100,
        wait_for_nodes_s=3.0,
    )


GatedMachine.TestCase.settings = SchedulerMachine.TestCase.settings
TestGatedMachine = GatedMachine.TestCase
