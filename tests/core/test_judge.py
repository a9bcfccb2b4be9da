"""What speaks for a node and against it, told by its requests and seen beside its peers."""

from collections.abc import Iterator
from math import log

import pytest

from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import (
    Effect,
    Event,
    NodeDraining,
    NodeJudged,
    NodeProbed,
    NodeReported,
    NodeSignals,
    Turned,
)
from pointsman.core.health import Cause, Health
from pointsman.core.health_limits import (
    OVERDUE_MIN_S,
    POISON_PROMPTS_MAX,
    POISON_S,
    QUEUE_GROWTHS_MAX,
    SLOW_SAMPLES,
    SLOW_START_S,
    SUSPECT_S,
)
from pointsman.core.limits import PRIORITY_LOW
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Placed, Refused
from pointsman.core.rules import HealthRules
from pointsman.core.views import NodeView
from tests.support.driver import Driver, request, teach

OUT_S = 5.0


class Ward(Driver):
    """Nodes whose speeds are known, in turn; what turned is kept."""

    def __init__(self, *names: str, policy: str = "round_robin", **rules: float) -> None:
        super().__init__(SchedulerOptions(policy=policy, health=HealthRules(**rules)))  # type: ignore[arg-type]  # test keywords
        self.turns: list[Turned] = []
        self._ids: Iterator[int] = iter(range(10_000))
        self.ready(*names)
        for node in self.nodes:
            teach(node.calibration)

    def step(self, event: Event) -> list[Effect]:
        effects = super().step(event)
        self.turns += [effect for effect in effects if isinstance(effect, Turned)]
        return effects

    def view(self, name: str) -> NodeView:
        return next(v for v in self.scheduler.nodes(self.now_s) if v.name == name)

    def health(self, name: str) -> Health:
        return self.view(name).health

    def decode_s(self, name: str) -> float:
        """What an answer is expected to take there."""
        rows = self.scheduler.explain(request("asked"), self.now_s).candidates
        return next(row.decode_s for row in rows if row.node == name)

    def place(self, name: str, text: str = "hello", **fields: object) -> str:
        """A request that is placed on `name`, now."""
        for _ in range(50):
            request_id = f"r{next(self._ids)}"
            (effect,) = self.arrive(request_id, text, stream=True, **fields)
            assert isinstance(effect, Placed), effect
            if effect.node == name:
                return request_id
            self.settle(request_id, EndCause.CLIENT_GONE)
        raise AssertionError(f"nothing goes to {name}")

    def answer(self, name: str, after_s: float, *, decode_s: float = 0.5) -> None:
        """A whole answer of `name`, its first token after so long."""
        request_id = self.place(name)
        self.now_s += after_s
        self.start(request_id)
        self.settle(request_id, streamed=True, ttft_s=after_s, decode_s=decode_s, output_tokens=50)

    def break_(self, name: str, kind: FailureKind = FailureKind.ERROR) -> None:
        """Requests fail there, and are answered elsewhere, until it is out."""
        for _ in range(3):
            request_id = self.place(name)
            self.fail(request_id, kind)
            self.start(request_id)
            self.settle(request_id)
        assert self.health(name) is Health.OPEN


# --- failures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [kind for kind in FailureKind if kind not in (FailureKind.BUSY, FailureKind.RECALLED)],
)
def test_a_node_whose_every_answer_fails_is_out_whatever_its_probes_say(kind: FailureKind) -> None:
    ward = Ward("a", "b")
    for _ in range(3):
        ward.step(NodeProbed(ward.ids["a"], healthy=True))
        request_id = ward.place("a")
        ward.fail(request_id, kind)
        ward.settle(request_id)
    assert ward.health("a") is Health.OPEN
    assert [(t.name, t.before, t.after) for t in ward.turns] == [
        ("a", Health.READY, Health.SUSPECT),
        ("a", Health.SUSPECT, Health.OPEN),
    ]


def test_answers_that_break_off_count_like_any_failure() -> None:
    ward = Ward("a", "b")
    for end in (EndCause.TRUNCATED, EndCause.ENGINE_ERROR, EndCause.TIMEOUT):
        request_id = ward.place("a")
        ward.start(request_id)
        ward.settle(request_id, end, streamed=True)
    assert ward.health("a") is Health.OPEN


@pytest.mark.parametrize("end", [EndCause.ENGINE_REFUSED, EndCause.CLIENT_GONE])
def test_what_the_client_does_wrong_counts_for_nothing(end: EndCause) -> None:
    ward = Ward("a", "b")
    for _ in range(10):
        request_id = ward.place("a")
        ward.start(request_id)
        ward.settle(request_id, end)
    assert ward.turns == []


def test_a_request_that_fails_alike_on_two_nodes_counts_on_neither() -> None:
    ward = Ward("a", "b", "c")
    for number in range(30):
        ward.arrive(f"poison {number}")
        ward.fail(f"poison {number}", FailureKind.ERROR)
        ward.fail(f"poison {number}", FailureKind.ERROR)
        ward.advance(0.1)
    assert {ward.health(name) for name in "abc"} == {Health.READY}
    assert {ward.view(name).failures for name in "abc"} <= {0}


def test_a_prompt_that_has_failed_on_two_nodes_counts_nowhere_when_it_is_sent_again() -> None:
    ward = Ward("a", "b", "c")
    for again in range(20):
        ward.arrive(f"poison {again}", "a prompt that chokes every engine")
        ward.fail(f"poison {again}", FailureKind.ERROR)
        ward.settle(f"poison {again}", EndCause.CLIENT_GONE)  # its client sends it again instead
    assert {ward.health(name) for name in "abc"} == {Health.READY}
    ward.advance(POISON_S + 1)
    request_id = ward.place("a")
    ward.fail(request_id, FailureKind.ERROR)
    assert ward.view("a").failures == 1, "that is a while ago"


def test_prompts_that_failed_are_remembered_up_to_a_bound() -> None:
    ward = Ward("a", "b", request_failures_max=10_000)
    for number in range(POISON_PROMPTS_MAX + 20):
        ward.fail(ward.place("a", f"prompt {number}"), FailureKind.ERROR)
    assert len(ward.scheduler._judge._failed) == POISON_PROMPTS_MAX


def test_a_prompt_that_is_answered_elsewhere_is_no_poison() -> None:
    ward = Ward("a", "b", "c")
    for number in range(3):
        ward.arrive(f"r{number}", "hello")
        node = ward.fail(f"r{number}", FailureKind.ERROR)[0]
        assert isinstance(node, Placed)
        ward.start(f"r{number}")
        ward.settle(f"r{number}")
    assert sum(ward.view(name).failures for name in "abc") == 1, "answered ones clear the others"


def test_many_poison_requests_at_once_take_a_node_out_for_a_moment_only() -> None:
    ward = Ward("a", "b", "c")
    poison = [ward.place("a") for _ in range(6)]
    for request_id in poison:
        ward.fail(request_id, FailureKind.ERROR)
    assert ward.health("a") is Health.OPEN
    for request_id in poison:
        ward.fail(request_id, FailureKind.ERROR)
    assert {ward.health(name) for name in "abc"} == {Health.READY}
    assert Cause.FORGIVEN in {turn.cause for turn in ward.turns}


def test_more_failures_than_are_kept_are_forgiven_one_by_one() -> None:
    """The last node fails on whatever comes, and stays; then a second one fails alike."""
    ward = Ward("a")
    poison = [f"poison {number}" for number in range(80)]
    for prompt in poison:
        ward.arrive(f"{prompt} first", prompt)
        ward.fail(f"{prompt} first", FailureKind.ERROR)
    assert ward.view("a").failures == 80
    ward.ready("b")
    ward.step(NodeDraining(ward.ids["a"], draining=True))
    for prompt in poison:
        ward.arrive(f"{prompt} again", prompt)
        ward.fail(f"{prompt} again", FailureKind.ERROR)
    assert [ward.view(name).failures for name in "ab"] == [0, 0]


def test_two_nodes_that_fail_differently_are_both_counted() -> None:
    ward = Ward("a", "b", "c")
    ward.arrive("r")
    ward.fail("r", FailureKind.ERROR)
    ward.fail("r", FailureKind.CLOSED)
    assert sorted(ward.view(name).failures for name in "abc") == [0, 1, 1]


def test_the_last_node_of_a_pool_stays_whatever_its_requests_say() -> None:
    ward = Ward("a")
    ward.join("b", pool="other")
    ward.describe("b")
    for number in range(20):
        ward.arrive(f"r{number}", pool="default")
        ward.fail(f"r{number}", FailureKind.ERROR)
    assert ward.health("a") is Health.SUSPECT
    (effect,) = ward.arrive("r", pool="default")
    assert isinstance(effect, Placed)


# --- trials -------------------------------------------------------------------------------


def test_a_node_on_trial_takes_one_request_of_low_priority_and_then_warms_up() -> None:
    ward = Ward("a", "b")
    ward.break_("a")
    ward.advance(OUT_S)
    assert ward.health("a") is Health.HALF_OPEN
    for number in range(4):
        (effect,) = ward.arrive(f"normal {number}")
        assert isinstance(effect, Placed)
        assert effect.node == "b"
    trial = ward.place("a", priority=PRIORITY_LOW)
    (second,) = ward.arrive("second", priority=PRIORITY_LOW)
    assert isinstance(second, Placed)
    assert second.node == "b"
    ward.start(trial)
    assert ward.health("a") is Health.WARMING


def test_without_low_priority_traffic_any_request_is_the_trial_after_a_second() -> None:
    ward = Ward("a", "b")
    ward.break_("a")
    ward.advance(OUT_S)
    ward.advance(1.0)
    assert ward.place("a")


def test_a_trial_that_fails_keeps_the_node_out_for_longer() -> None:
    ward = Ward("a", "b")
    ward.break_("a")
    ward.advance(OUT_S)
    ward.fail(ward.place("a", priority=PRIORITY_LOW), FailureKind.ERROR)
    assert ward.health("a") is Health.OPEN
    ward.advance(OUT_S)
    assert ward.health("a") is Health.OPEN
    ward.advance(OUT_S)
    assert ward.health("a") is Health.HALF_OPEN


def test_where_only_suspected_nodes_are_left_they_take_everything() -> None:
    ward = Ward("a", "b")
    ward.break_("a")
    ward.advance(OUT_S)
    for _ in range(3):
        ward.step(NodeProbed(ward.ids["b"], healthy=False))
    assert [ward.health(name) for name in "ab"] == [Health.HALF_OPEN, Health.OPEN]
    for number in range(9):
        (effect,) = ward.arrive(f"all {number}")
        assert isinstance(effect, Placed)
        assert effect.node == "a"


# --- beside the peers ---------------------------------------------------------------------


def test_a_node_that_takes_much_longer_than_foreseen_is_suspected_if_its_peers_do_not() -> None:
    ward = Ward("a", "b", "c")
    for _ in range(SLOW_SAMPLES):
        for name in "abc":
            ward.answer(name, 0.05)
    assert ward.turns == []
    for _ in range(SLOW_SAMPLES):
        ward.answer("a", 1.0)
    assert (ward.health("a"), ward.view("a").health_cause) == (Health.SUSPECT, Cause.SLOW)
    assert 0 < ward.view("a").weight < 0.5
    assert "times as long as foreseen" in ward.view("a").health_detail


def ward_of_a_slow_node(slow: str, *others: str) -> Ward:
    """One that has become ten times as slow as it was, and as the others are."""
    ward = Ward(slow, *others)
    for factor in (1, 10):
        for _ in range(SLOW_SAMPLES):
            for name in others:
                ward.answer(name, 0.1)
            ward.answer(slow, 0.1 * factor, decode_s=0.5 * factor)
    return ward


def test_a_slow_node_is_priced_as_slow_and_stays_suspected_until_it_is_not() -> None:
    ward = ward_of_a_slow_node("a", "b", "c")
    assert ward.health("a") is Health.SUSPECT
    assert ward.decode_s("a") > 3 * ward.decode_s("b"), "before its own samples have told"
    ward.advance(2 * SUSPECT_S)
    assert ward.health("a") is Health.SUSPECT, "nothing has come that shows otherwise"
    ward.answer("a", 0.1)
    ward.advance(1.0)
    assert (ward.health("a"), ward.view("a").health_cause) == (Health.WARMING, Cause.RECOVERED)
    assert ward.decode_s("a") == ward.decode_s("b")


def test_what_a_node_that_is_alone_of_its_kind_has_become_is_no_sickness_for_good() -> None:
    """No peer tells how fast it should be. In a fleet of many kinds it kept a third of its work."""
    ward = Ward("a", "b", "c")
    ward.describe("a", kv_blocks=77)
    teach(ward.node("a").calibration)
    for factor in (1, 10):
        for _ in range(SLOW_SAMPLES):
            ward.answer("b", 0.1)
            ward.answer("c", 0.1)
            ward.answer("a", 0.1 * factor, decode_s=0.5 * factor)
    assert ward.health("a") is Health.SUSPECT
    for _ in range(64):
        ward.answer("a", 1.0, decode_s=5.0)
    ward.advance(2 * SUSPECT_S)
    assert ward.health("a") in (Health.WARMING, Health.READY)
    assert ward.decode_s("a") > 3 * ward.decode_s("b")


def test_now_and_then_a_slow_answer_does_not_keep_a_node_suspected() -> None:
    ward = ward_of_a_slow_node("a", "b", "c")
    for _ in range(20):
        ward.answer("a", 2.0)
        for _ in range(2):
            ward.answer("a", 0.1)
        ward.advance(1.0)
        if ward.health("a") is not Health.SUSPECT:
            return
    raise AssertionError("a third of the answers has kept it suspected")


def test_answers_that_are_all_slow_keep_a_node_suspected() -> None:
    ward = ward_of_a_slow_node("a", "b", "c")
    for second in range(int(2 * SUSPECT_S)):
        ward.answer("a", 20.0 + 10 * second)
        assert ward.health("a") is Health.SUSPECT


@pytest.mark.parametrize(("factor", "stays"), [(1.4, False), (2.0, True)])
def test_a_node_is_suspected_as_slow_while_it_is_nearly_that_slow(
    factor: float, stays: bool
) -> None:
    """Three times as slow brings it there; a little slower is a matter of price."""
    ward = ward_of_a_slow_node("a", "b", "c")
    pace = ward.node("a").calibration
    for deviation in (pace._prefill, pace._decode):
        deviation.become(log(factor))
    ward.advance(2 * SUSPECT_S)
    assert (ward.health("a") is Health.SUSPECT) == stays


def test_slow_decoding_is_seen_too() -> None:
    ward = Ward("a", "b", "c")
    for _ in range(SLOW_SAMPLES):
        for name in "abc":
            ward.answer(name, 0.05)
    for _ in range(SLOW_SAMPLES):
        ward.answer("a", 0.05, decode_s=30.0)
    assert ward.health("a") is Health.SUSPECT


def test_when_all_are_slow_it_is_the_load_and_nobody_is_suspected() -> None:
    ward = Ward("a", "b", "c", "d")
    for _ in range(20):
        for name in "abcd":
            ward.answer(name, 2.0)
    assert {ward.health(name) for name in "abcd"} == {Health.READY}


def test_at_most_half_of_the_nodes_are_found_slow() -> None:
    ward = Ward("a", "b", "c", "d", "e", suspect_s=1e6)
    for _ in range(SLOW_SAMPLES):
        for name in "abcde":
            ward.answer(name, 0.05)
    for _ in range(SLOW_SAMPLES):
        for name in "abcd":
            ward.answer(name, 5.0)
    suspects = [name for name in "abcde" if ward.health(name) is Health.SUSPECT]
    assert len(suspects) == 2


def test_how_many_may_be_found_slow_is_configured() -> None:
    ward = Ward("a", "b", "c", slow_share_max=0.0)
    for _ in range(SLOW_SAMPLES):
        for name, first_token_s in (("a", 5.0), ("b", 0.05), ("c", 0.05)):
            ward.answer(name, first_token_s)
    assert ward.health("a") is Health.READY


def test_a_hanging_node_is_suspected_then_out_while_its_peers_answer() -> None:
    ward = Ward("a", "b", "c")
    ward.place("a")
    health = []
    for _ in range(8):
        ward.answer("b", 0.05)
        ward.advance(1.0)
        health.append(ward.health("a"))
    assert health.index(Health.SUSPECT) + 1 > OVERDUE_MIN_S
    assert Health.OPEN in health
    assert ward.view("a").health_cause is Cause.OVERDUE


def test_engines_that_pause_for_long_may_be_given_more_time() -> None:
    ward = Ward("a", "b", "c", overdue_min_s=20.0)
    ward.place("a")
    for _ in range(19):
        ward.answer("b", 0.05)
        ward.advance(1.0)
        assert ward.health("a") is Health.READY
    for _ in range(4):
        ward.answer("b", 0.05)
        ward.advance(1.0)
    assert ward.health("a") is Health.SUSPECT


def test_who_waits_behind_a_long_prefill_is_not_overdue() -> None:
    ward = Ward("a", "b")
    ward.place("a", text="a very long prompt " * 20_000)
    ward.place("a")
    for _ in range(12):
        ward.answer("b", 0.05)
        ward.advance(1.0)
    assert ward.health("a") is Health.READY


def test_at_most_half_of_the_nodes_are_found_overdue() -> None:
    ward = Ward("a", "b", "c", "d")
    for name in "abc":
        ward.place(name)
    for _ in range(6):
        ward.answer("d", 0.05)
        ward.advance(1.0)
    assert [ward.health(name) for name in "abcd"].count(Health.READY) == 2


def test_a_hang_of_the_whole_cluster_takes_nobody_out() -> None:
    ward = Ward("a", "b", "c")
    for name in "abc":
        ward.place(name)
    for _ in range(60):
        ward.advance(1.0)
    assert {ward.health(name) for name in "abc"} == {Health.READY}


def test_what_its_engine_does_not_know_of_does_not_keep_a_node_out() -> None:
    """The gateway's word of its end is lost: it is compensated, and nothing is owed any more."""
    ward = Ward("a", "b")
    ward.place("a")
    none = NodeSignals(running=0, waiting=0)
    seen = []
    for _ in range(60):
        ward.answer("b", 0.05)
        ward.advance(1.0)
        ward.step(NodeReported(ward.ids["a"], ward.now_s, none))
        seen.append(ward.health("a"))
    assert seen[40:].count(Health.HALF_OPEN) > 10


def test_of_a_node_on_trial_only_the_trial_tells() -> None:
    ward = Ward("a", "b")
    ward.place("a")
    seen = []
    for _ in range(30):
        ward.answer("b", 0.05)
        ward.advance(1.0)
        seen.append(ward.health("a"))
    assert Health.OPEN in seen
    assert seen[-1] is Health.HALF_OPEN, "it waits for one"
    ward.place("a")
    for _ in range(8):
        ward.answer("b", 0.05)
        ward.advance(1.0)
    assert ward.health("a") is Health.OPEN


def test_a_sign_of_life_clears_a_hanging_node_at_once() -> None:
    ward = Ward("a", "b")
    late = ward.place("a")
    for _ in range(5):
        ward.answer("b", 0.05)
        ward.advance(1.0)
    assert ward.health("a") is Health.SUSPECT
    ward.start(late)
    assert ward.health("a") is Health.READY


def test_nothing_new_goes_to_a_node_on_which_nothing_comes() -> None:
    ward = Ward("a", "b")
    ward.place("a")
    for _ in range(5):
        ward.answer("b", 0.05)
        ward.advance(1.0)
    for number in range(9):
        (effect,) = ward.arrive(f"r {number}")
        assert isinstance(effect, Placed)
        assert effect.node == "b"


def test_a_queue_that_grows_while_nothing_comes_is_seen_before_anything_is_overdue() -> None:
    ward = Ward()
    for name in "ab":
        ward.join(name, pool=name)
        ward.describe(name)
        teach(ward.node(name).calibration)
    ward.place("a", pool="a")
    ward.now_s += 1.5
    for waiting in range(QUEUE_GROWTHS_MAX + 2):
        ward.start(ward.place("b", pool="b"))
        signals = NodeSignals(running=1, waiting=waiting)
        ward.step(NodeReported(ward.ids["a"], ward.now_s, signals))
        ward.now_s += 0.2
    assert ward.now_s < OVERDUE_MIN_S
    assert (ward.health("a"), ward.view("a").health_cause) == (Health.SUSPECT, Cause.QUEUE)


# --- what people say ----------------------------------------------------------------------


def test_feedback_counts_as_a_failed_or_an_answered_request() -> None:
    ward = Ward("a", "b")
    for _ in range(2):
        ward.step(NodeJudged(ward.ids["a"], healthy=False, detail="gibberish"))
    assert ward.health("a") is Health.SUSPECT
    assert ward.view("a").health_detail == "gibberish"
    ward.step(NodeJudged(ward.ids["a"], healthy=True))
    assert ward.health("a") is Health.READY
    for _ in range(3):
        ward.step(NodeJudged(ward.ids["a"], healthy=False))
    assert (ward.health("a"), ward.view("a").health_cause) == (Health.OPEN, Cause.FEEDBACK)


# --- slow start ---------------------------------------------------------------------------


def test_a_cluster_that_is_new_begins_at_full_weight() -> None:
    ward = Ward("a", "b", "c")
    assert {ward.view(name).weight for name in "abc"} == {1.0}
    ward.now_s = SLOW_START_S - 1
    ward.ready("d")
    assert ward.health("d") is Health.READY


def test_a_new_node_among_old_ones_has_a_tenth_of_their_work_at_first() -> None:
    ward = Ward("a", "b", policy="least_request")
    ward.now_s = SLOW_START_S
    for number in range(80):
        ward.arrive(f"old {number}")
    ward.ready("new")
    assert (ward.health("new"), ward.view("new").weight) == (Health.WARMING, 0.1)
    for number in range(20):
        ward.arrive(f"r {number}")
    assert ward.view("new").inflight == 5  # a tenth of 40 to 50
    ward.advance(SLOW_START_S)
    assert ward.view("new").weight == 1.0
    for number in range(20, 40):
        ward.arrive(f"r {number}")
    assert ward.view("new").inflight == 25


def test_a_new_node_has_one_long_prefill_at_a_time_while_its_peers_have_none_waiting() -> None:
    """Its cache is cold and it idles: it would be sent all that is new at once."""
    long = "what nobody has sent before " * 500
    ward = Ward("a", "b", policy="least_request")
    for number in range(80):
        ward.arrive(f"old {number}", stream=True)
        ward.start(f"old {number}")
    ward.now_s = SLOW_START_S
    ward.ready("new")
    for number in range(3):
        ward.arrive(f"r {number}", long, stream=True)
        assert ward.view("new").inflight == 1
    ward.start("r 0")
    ward.arrive("r 3", long, stream=True)
    assert ward.view("new").inflight == 2


def test_a_restarted_engine_begins_slowly_too() -> None:
    ward = Ward("a", "b")
    ward.now_s = 2 * SLOW_START_S
    ward.join("a")
    ward.describe("a")
    assert ward.health("a") is Health.WARMING


def test_an_engine_that_restarts_again_and_again_stays_out_for_longer_each_time() -> None:
    ward, waits_s = Ward("a", "b"), []
    for _ in range(6):
        ward.join("a")
        ward.describe("a")
        began_s = ward.now_s
        while ward.health("a") is Health.OPEN:
            ward.advance(1.0)
        waits_s.append(ward.now_s - began_s)
        ward.advance(1.0)
    assert waits_s == [0.0, 5.0, 10.0, 20.0, 40.0, 60.0]
    assert [t.cause for t in ward.turns if t.before is Health.JOINING] == [Cause.RESTARTS] * 5
    ward.advance(121.0)
    ward.join("a")
    ward.describe("a")
    assert ward.health("a") is Health.WARMING, "old trouble is forgotten"


def test_restarts_that_were_planned_do_not_count_and_the_last_node_is_trusted() -> None:
    ward = Ward("a", "b")
    for _ in range(3):
        ward.step(NodeDraining(ward.ids["a"], draining=True))
        ward.join("a")
        ward.describe("a")
        assert ward.health("a") is Health.WARMING
    alone = Ward("a")
    for _ in range(3):
        alone.join("a")
        alone.describe("a")
        assert alone.health("a") is not Health.OPEN


def test_what_a_node_holds_is_remembered_while_it_is_out() -> None:
    ward = Ward("a", "b", policy="marginal_cost")
    text = "a shared beginning " * 400
    node = ward.serve("first", text)
    held = ward.view(node).index_blocks
    assert held > 0
    for _ in range(3):
        ward.step(NodeProbed(ward.ids[node], healthy=False))
    assert ward.view(node).index_blocks == held
    for _ in range(2):
        ward.step(NodeProbed(ward.ids[node], healthy=True))
    assert ward.serve("second", text) == node


def test_a_share_that_is_used_up_is_told_as_such() -> None:
    ward = Ward("a", "b")
    ward.break_("a")
    ward.advance(OUT_S)
    (effect,) = ward.arrive("r")
    assert isinstance(effect, Placed)
    assert [(x.node, x.why) for x in effect.decision.excluded] == [("a", "share")]


def test_nobody_is_refused_for_a_node_s_low_share() -> None:
    ward = Ward("a", "b", policy="least_request")
    ward.break_("a")
    ward.advance(OUT_S)
    effects = [ward.arrive(f"r {number}")[0] for number in range(300)]
    assert not [effect for effect in effects if isinstance(effect, Refused)]
