"""The central queue: order, bounds, deadlines; and against a slow twin."""

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman.core.admission.fair import lane_of
from pointsman.core.admission.held import HeldQueue
from pointsman.core.admission_rules import AdmissionRules, QueueOrder
from pointsman.core.ids import RequestId
from pointsman.core.placement import Attempt, Waiting
from pointsman.core.request import Request
from tests.support.driver import request


def attempt(request_id: str, arrived_s: float = 0.0, **fields: object) -> Attempt:
    return Attempt(request(request_id, **fields), arrived_s)  # type: ignore[arg-type]  # test keywords


def anybody(_: Request, is_very_long: bool, priority: int) -> bool:
    return True


def drained(queue: HeldQueue) -> list[str]:
    """The order in which all would be served; they are back at their places afterwards."""
    taken = list(queue.turns(anybody))
    queue.put_back(taken)
    queue.check()
    return [waiting.request.id for waiting in taken]


def test_urgency_comes_before_arrival() -> None:
    queue = HeldQueue()
    queue.add(attempt("a"), 0.0)
    queue.add(attempt("b"), 0.0)
    queue.add(attempt("c", priority=5), 0.0)
    queue.add(attempt("d", priority=10), 9.0)
    assert drained(queue) == ["d", "c", "a", "b"]
    assert drained(queue) == ["d", "c", "a", "b"], "as if nobody had been taken"


def test_waiting_counts_like_priority_but_never_like_high() -> None:
    queue = HeldQueue(rules=AdmissionRules(aging_s=20.0))
    queue.add(attempt("low", 0.0, priority=-10), 0.0)
    queue.add(attempt("normal", 19.0), 19.0)
    assert drained(queue) == ["normal", "low"]
    queue.add(attempt("later", 21.0), 21.0)
    assert drained(queue) == ["normal", "low", "later"]
    queue.add(attempt("high", 500.0, priority=10), 500.0)
    assert drained(queue)[0] == "high"


def test_without_aging_priority_is_all() -> None:
    queue = HeldQueue(rules=AdmissionRules(aging_s=0.0))
    queue.add(attempt("low", 0.0, priority=-10), 0.0)
    queue.add(attempt("normal", 900.0), 900.0)
    assert drained(queue) == ["normal", "low"]


def test_long_prompts_of_one_tenant_do_not_starve_the_short_ones_of_another() -> None:
    """Fair by requests would serve one of each in turn: 320 times as many tokens for one."""
    queue = HeldQueue()
    for i in range(8):
        queue.add(attempt(f"long{i}", tenant="a"), 0.0, prompt_tokens=32_000)
    for i in range(8):
        queue.add(attempt(f"short{i}", tenant="b"), 0.0, prompt_tokens=100)
    served = drained(queue)
    assert served[:2] == ["long0", "short0"]
    assert served[2:9] == [f"short{i}" for i in range(1, 8)]


def test_short_requests_do_not_wait_behind_all_long_ones_nor_the_long_for_ever() -> None:
    queue = HeldQueue()
    for i in range(4):
        queue.add(attempt(f"long{i}"), 0.0, prompt_tokens=8_000)
    for i in range(40):
        queue.add(attempt(f"short{i}"), 0.0, prompt_tokens=800)
    served = drained(queue)
    assert served.index("short0") == 0
    assert [served.index(f"long{i}") for i in range(4)] == [1, 12, 23, 34]


def test_who_has_had_nothing_for_long_has_no_claim_saved_up() -> None:
    queue = HeldQueue()
    for i in range(6):
        queue.add(attempt(f"a{i}", tenant="a"), 0.0, prompt_tokens=1_000)
    for _ in range(3):
        taken = next(queue.turns(anybody), None)
        assert taken is not None
    queue.put_back([])
    for i in range(6):
        queue.add(attempt(f"b{i}", tenant="b"), 0.0, prompt_tokens=1_000)
    assert drained(queue) == ["a3", "b0", "a4", "b1", "a5", "b2", "b3", "b4", "b5"]


def test_order_by_utility_is_priority_for_size_and_ages() -> None:
    rules = AdmissionRules(order=QueueOrder.UTILITY, aging_s=20.0)
    queue = HeldQueue(rules=rules)
    queue.add(attempt("long"), 0.0, prompt_tokens=8_000)
    queue.add(attempt("short"), 0.0, prompt_tokens=100)
    queue.add(attempt("urgent", priority=10), 0.0, prompt_tokens=8_000)
    assert drained(queue) == ["short", "urgent", "long"]
    queue.add(attempt("new", 100.0), 100.0, prompt_tokens=100)
    assert drained(queue) == ["short", "urgent", "long", "new"]


def test_the_order_may_change_while_requests_wait() -> None:
    queue = HeldQueue()
    queue.add(attempt("long"), 0.0, prompt_tokens=900)
    queue.add(attempt("short"), 0.0, prompt_tokens=100)
    assert drained(queue) == ["long", "short"]
    queue.apply(8, 30.0, AdmissionRules(order=QueueOrder.UTILITY))
    assert drained(queue) == ["short", "long"]


def test_a_full_queue_gives_up_the_latest_of_the_least_urgent() -> None:
    queue = HeldQueue(length_max=2)
    queue.add(attempt("a", priority=-1), 0.0)
    queue.add(attempt("b", 1.0, priority=-1), 1.0)
    assert queue.full
    assert not queue.has_less_urgent(request("x", priority=-1))
    assert queue.has_less_urgent(request("x"))
    queue.add(attempt("c", 1.5), 1.5)
    assert [w.request.id for w in queue.surplus()] == ["b"]
    assert drained(queue) == ["c", "a"]


def test_deadlines_expire_in_order_and_only_once() -> None:
    queue = HeldQueue()
    queue.add(attempt("late", hold_s=9.0), 0.0)
    queue.add(attempt("soon", hold_s=1.0), 0.0)
    queue.add(attempt("due", hold_s=9.0, slo_ttft_s=2.0), 0.0)
    assert queue.next_deadline_s() == 1.0
    assert [w.request.id for w in queue.expired(2.0)] == ["soon", "due"]
    assert queue.expired(2.0) == []
    assert queue.next_deadline_s() == 9.0


def test_a_request_that_leaves_is_forgotten() -> None:
    queue = HeldQueue()
    queue.add(attempt("a"), 0.0)
    assert queue.remove(RequestId("a")) is not None
    assert queue.remove(RequestId("a")) is None
    assert queue.next_deadline_s() is None


def test_who_is_ahead_waits_for_the_same_nodes_and_is_as_urgent() -> None:
    queue = HeldQueue()
    queue.add(attempt("other", model="z"), 0.0)
    queue.add(attempt("elsewhere", pool="long"), 0.0)
    queue.add(attempt("low", priority=-1), 0.0)
    queue.add(attempt("same"), 0.0)
    assert queue.as_urgent(request("x")) == 1
    assert queue.as_urgent(request("x", priority=-1)) == 2


@given(st.lists(st.sampled_from("abcd"), max_size=20), st.sampled_from("abe"))
def test_whose_turn_comes_before_a_newcomers_is_foretold(tenants: list[str], tenant: str) -> None:
    queue = HeldQueue()
    for place, each in enumerate(tenants):
        queue.add(attempt(str(place), tenant=each), 0.0)
    newcomer = request("new", tenant=tenant)
    foretold = queue.before(newcomer)
    queue.add(attempt("new", tenant=tenant), 0.0)
    queue.check()
    actual = drained(queue).index("new")
    assert actual <= foretold <= len(tenants)
    if len(dict.fromkeys(tenants)) == 1 and tenant not in tenants:
        assert foretold == 1


def test_who_comes_back_has_lost_no_place_and_waits_from_now_on() -> None:
    queue = HeldQueue()
    queue.add(attempt("later", 5.0, hold_s=10.0), 5.0)
    queue.add(attempt("back", 1.0, hold_s=10.0), 8.0)
    assert drained(queue) == ["back", "later"]
    assert queue.next_deadline_s() == 15.0
    assert [w.request.id for w in queue.expired(18.0)] == ["later", "back"]


def test_a_closed_gate_lets_those_above_it_pass() -> None:
    queue = HeldQueue()
    queue.add(attempt("very long"), 0.0, prompt_tokens=80_000)
    queue.add(attempt("normal"), 0.0)
    queue.add(attempt("high", priority=10), 0.0)

    def only_high(_: Request, is_very_long: bool, priority: int) -> bool:
        return priority >= 10

    def no_very_long(_: Request, is_very_long: bool, priority: int) -> bool:
        return not is_very_long

    taken = next(queue.turns(only_high), None)
    assert taken is not None
    assert taken.request.id == "high"
    assert next(queue.turns(only_high), None) is None
    queue.put_back([taken])
    passed = [next(queue.turns(no_very_long), None), next(queue.turns(no_very_long), None)]
    assert [w.request.id for w in passed if w is not None] == ["high", "normal"]
    assert next(queue.turns(no_very_long), None) is None


class SlowTwin:
    """The same order, looked for among all at each step."""

    def __init__(self, aging_s: float) -> None:
        self.waiting: list[Waiting] = []
        self.served: dict[tuple[int, str], int] = {}
        self.lane_served: dict[tuple[int, str, int], int] = {}
        self.step_s = aging_s / 10

    def add(self, waiting: Waiting) -> None:
        level, tenant, lane = _kind(waiting)
        here = [w for w in self.waiting if w.request.priority == level]
        mine = [w for w in here if w.request.tenant == tenant]
        if not here:
            self.served = {k: v for k, v in self.served.items() if k[0] != level}
            self.lane_served = {k: v for k, v in self.lane_served.items() if k[0] != level}
        if not mine:
            least = min((self.served[level, w.request.tenant] for w in here), default=0)
            self.served[level, tenant] = max(self.served.get((level, tenant), 0), least)
        if not any(w.lane == lane for w in mine):
            least = min((self.lane_served[level, tenant, w.lane] for w in mine), default=0)
            before = self.lane_served.get((level, tenant, lane), 0)
            self.lane_served[level, tenant, lane] = max(before, least)
        self.waiting.append(waiting)

    def head(self, waiting: list[Waiting]) -> Waiting:
        """By levels, of each its next one."""
        levels = {w.request.priority for w in waiting}
        heads = [self._of_level([w for w in waiting if w.request.priority == p]) for p in levels]
        return min(heads, key=self._rank)

    def _of_level(self, waiting: list[Waiting]) -> Waiting:
        def turn(w: Waiting) -> tuple[int, str, int, int, int]:
            level, tenant, lane = _kind(w)
            lanes = self.lane_served[level, tenant, lane]
            return (self.served[level, tenant], tenant, lanes, lane, waiting.index(w))

        return min(waiting, key=turn)

    def _rank(self, w: Waiting) -> tuple[int, float]:
        priority = w.request.priority
        if priority >= 10:
            return (-priority, w.arrived_s)
        return (0, w.arrived_s - priority * self.step_s)

    def serve(self, waiting: Waiting) -> None:
        level, tenant, lane = _kind(waiting)
        self.served[level, tenant] += waiting.tokens
        self.lane_served[level, tenant, lane] += waiting.tokens

    def drained(self) -> list[str]:
        served, lanes = dict(self.served), dict(self.lane_served)
        left, order = list(self.waiting), list[str]()
        while left:
            head = self.head(left)
            left.remove(head)
            self.serve(head)
            order.append(head.request.id)
        self.served, self.lane_served = served, lanes
        return order


def _kind(waiting: Waiting) -> tuple[int, str, int]:
    return (waiting.request.priority, waiting.request.tenant, waiting.lane)


class HeldMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = HeldQueue(length_max=64, rules=AdmissionRules(aging_s=20.0))
        self.twin = SlowTwin(20.0)
        self.count = 0
        self.now_s = 0.0

    @rule(
        priority=st.sampled_from([-10, 0, 3, 10, 20]),
        hold_s=st.integers(1, 40),
        tenant=st.sampled_from(["", "a", "b"]),
        tokens=st.sampled_from([50, 100, 2_000, 20_000]),
    )
    def add(self, priority: int, hold_s: int, tenant: str, tokens: int) -> None:
        self.count += 1
        fields = {"priority": priority, "hold_s": hold_s, "tenant": tenant}
        made = attempt(f"r{self.count}", self.now_s, **fields)
        waiting = self.queue.add(made, self.now_s, prompt_tokens=tokens)
        assert waiting.lane == lane_of(tokens)
        self.twin.add(waiting)

    @rule(which=st.integers(1, 40))
    def remove(self, which: int) -> None:
        name = f"r{which}"
        known = any(w.request.id == name for w in self.twin.waiting)
        assert (self.queue.remove(RequestId(name)) is not None) == known
        self.twin.waiting = [w for w in self.twin.waiting if w.request.id != name]

    @rule(misses=st.integers(0, 3), serves=st.integers(0, 3))
    def scan(self, misses: int, serves: int) -> None:
        """Some find no place and some do; who found none is as if never taken."""
        turns = self.queue.turns(anybody)
        missed, served = list(islice(turns, misses)), list(islice(turns, serves))
        self.queue.put_back(missed)
        for waiting in served:
            self.twin.waiting.remove(waiting)
            self.twin.serve(waiting)

    @rule(seconds=st.integers(0, 10))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        late = {w.request.id for w in self.queue.expired(self.now_s)}
        assert late == {w.request.id for w in self.twin.waiting if w.deadline_s <= self.now_s}
        self.twin.waiting = [w for w in self.twin.waiting if w.deadline_s > self.now_s]

    @invariant()
    def same_as_twin(self) -> None:
        self.queue.check()
        assert len(self.queue) == len(self.twin.waiting)
        assert drained(self.queue) == self.twin.drained()
        deadlines = [w.deadline_s for w in self.twin.waiting]
        assert self.queue.next_deadline_s() == min(deadlines, default=None)


HeldMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestHeldMachine = HeldMachine.TestCase


class _ClosingGate:
    """Lets so many of each part pass, and the urgent always."""

    def __init__(self, rooms: dict[str, int]) -> None:
        self.rooms = rooms

    def __call__(self, request: Request, is_very_long: bool, priority: int) -> bool:
        return priority >= 20 or self.rooms.get(_part(request), 0) > 0

    def taken(self, waiting: Waiting) -> None:
        self.rooms[_part(waiting.request)] = self.rooms.get(_part(waiting.request), 0) - 1


def _part(request: Request) -> str:
    return "".join(name for name, _ in request.labels)


WAITERS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.sampled_from([-10, 0, 10, 20]),
        st.sampled_from(["", "t"]),
        st.sampled_from([50, 2_000, 40_000]),
        st.integers(0, 5),
    ),
    max_size=30,
)


@given(waiters=WAITERS, rooms=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 6)))
def test_one_scan_takes_whom_asking_every_line_each_time_would(
    waiters: list[tuple[str, int, str, int, int]], rooms: dict[str, int]
) -> None:
    def queue() -> HeldQueue:
        made = HeldQueue()
        for number, (label, priority, tenant, tokens, at_s) in enumerate(waiters):
            fields = {"priority": priority, "tenant": tenant, "labels": ((label, "v"),)}
            made.add(attempt(f"r{number}", float(at_s), **fields), 0.0, prompt_tokens=tokens)
        return made

    fast, slow = queue(), queue()
    gates = _ClosingGate(dict(rooms)), _ClosingGate(dict(rooms))
    order: list[str] = []
    for waiting in fast.turns(gates[0]):
        gates[0].taken(waiting)
        order.append(waiting.request.id)
    expected: list[str] = []
    while (waiting_ := next(slow.turns(gates[1]), None)) is not None:
        gates[1].taken(waiting_)
        expected.append(waiting_.request.id)
    assert order == expected
