"""The central queue: order, bounds, deadlines; and against a slow twin."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pointsman.core.admission.held import HeldQueue
from pointsman.core.ids import RequestId
from pointsman.core.placement import Attempt
from tests.support.driver import request


def attempt(request_id: str, arrived_s: float = 0.0, **fields: object) -> Attempt:
    return Attempt(request(request_id, **fields), arrived_s)


def ids(queue: HeldQueue) -> list[str]:
    return [waiting.request.id for waiting in queue]


def test_urgency_comes_before_arrival() -> None:
    queue = HeldQueue()
    assert queue.add(attempt("a"), 0.0) == 1
    assert queue.add(attempt("b"), 0.0) == 2
    assert queue.add(attempt("c", priority=5), 0.0) == 1
    assert ids(queue) == ["c", "a", "b"]


def test_a_full_queue_says_so_and_keeps_what_it_has() -> None:
    queue = HeldQueue(length_max=1)
    queue.add(attempt("a"), 0.0)
    assert queue.full
    assert ids(queue) == ["a"]


def test_deadlines_expire_in_order_and_only_once() -> None:
    queue = HeldQueue()
    queue.add(attempt("late", hold_s=9.0), 0.0)
    queue.add(attempt("soon", hold_s=1.0), 0.0)
    assert queue.next_deadline_s() == 1.0
    assert [w.request.id for w in queue.expired(1.0)] == ["soon"]
    assert queue.expired(1.0) == []
    assert queue.next_deadline_s() == 9.0


def test_a_request_that_leaves_is_forgotten() -> None:
    queue = HeldQueue()
    queue.add(attempt("a"), 0.0)
    assert queue.remove(RequestId("a")) is not None
    assert queue.remove(RequestId("a")) is None
    assert queue.next_deadline_s() is None


def test_who_is_ahead_is_of_the_same_model_and_as_urgent() -> None:
    queue = HeldQueue()
    queue.add(attempt("other", model="z"), 0.0)
    queue.add(attempt("low", priority=-1), 0.0)
    queue.add(attempt("same"), 0.0)
    assert [w.request.id for w in queue.ahead_of(request("x"))] == ["same"]


def test_how_many_are_ahead_is_a_place_in_the_queue_and_at_most_all_of_its_model() -> None:
    queue = HeldQueue()
    assert queue.ahead(request("x")) == 0
    for number in range(3):
        queue.add(attempt(f"same{number}"), 0.0)
        queue.add(attempt(f"low{number}", priority=-1), 0.0)
        queue.add(attempt(f"other{number}", model="z"), 0.0)
    assert queue.ahead(request("x")) == 6, "of either model, as urgent"
    assert queue.ahead(request("x", model="z")) == 3
    assert queue.ahead(request("x", model="y")) == 0
    assert queue.ahead(request("x", priority=1)) == 0
    assert queue.ahead(request("x", priority=-2)) == 6


def test_who_comes_back_has_lost_no_place_and_waits_from_now_on() -> None:
    queue = HeldQueue()
    queue.add(attempt("later", 5.0, hold_s=10.0), 5.0)
    assert queue.add(attempt("back", 1.0, hold_s=10.0), 8.0) == 1
    assert ids(queue) == ["back", "later"]
    assert queue.next_deadline_s() == 15.0
    assert [w.request.id for w in queue.expired(18.0)] == ["later", "back"]


class HeldMachine(RuleBasedStateMachine):
    """A list sorted at each look is the slow twin."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = HeldQueue(length_max=8)
        self.twin: list[tuple[int, int, str, float]] = []
        self.count = 0
        self.now_s = 0.0

    @precondition(lambda self: not self.queue.full)
    @rule(priority=st.integers(-2, 2), hold_s=st.integers(1, 20))
    def add(self, priority: int, hold_s: int) -> None:
        self.count += 1
        name = f"r{self.count}"
        position = self.queue.add(attempt(name, priority=priority, hold_s=hold_s), self.now_s)
        self.twin.append((-priority, self.count, name, self.now_s + hold_s))
        self.twin.sort()
        assert self.twin[position - 1][2] == name

    @rule(which=st.integers(1, 40))
    def remove(self, which: int) -> None:
        name = f"r{which}"
        known = any(entry[2] == name for entry in self.twin)
        assert (self.queue.remove(RequestId(name)) is not None) == known
        self.twin = [entry for entry in self.twin if entry[2] != name]

    @rule(seconds=st.integers(0, 10))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        late = {w.request.id for w in self.queue.expired(self.now_s)}
        assert late == {entry[2] for entry in self.twin if entry[3] <= self.now_s}
        self.twin = [entry for entry in self.twin if entry[3] > self.now_s]

    @invariant()
    def same_as_twin(self) -> None:
        self.queue.check()
        assert ids(self.queue) == [entry[2] for entry in self.twin]
        assert self.queue.next_deadline_s() == min((e[3] for e in self.twin), default=None)


HeldMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHeldMachine = HeldMachine.TestCase
