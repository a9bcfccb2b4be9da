"""One node's health: the table, and what a condition makes of what is reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.condition import Condition
from pointsman.core.errors import FAILURE_WORDS, FailureKind
from pointsman.core.health import SERVING, TRANSITIONS, Cause, Health, Step, Turn
from pointsman.core.health_limits import SLOW_SAMPLES
from pointsman.core.ids import RequestId
from pointsman.core.limits import PRIORITY_LOW, PRIORITY_NORMAL
from pointsman.core.rules import HealthRules
from tests.support.state_diagram import expect_drawn

RULES = HealthRules()


class Patient:
    """A condition, its turns, and a clock that is set by hand."""

    def __init__(self, rules: HealthRules = RULES, *, warms: bool = False) -> None:
        self.turns: list[Turn] = []
        self.now_s = 0.0
        self.condition = Condition(rules, self.turns.append)
        self.condition.described(0.0, warms=warms)

    def state(self) -> Health:
        return self.condition.state

    def fail(
        self, times: int = 1, kind: FailureKind = FailureKind.ERROR, *, spared: bool = False
    ) -> None:
        for _ in range(times):
            self.condition.failed(kind, self.now_s, spared=spared, began=False)

    def probe(self, *results: bool) -> None:
        for healthy in results:
            self.condition.probed(healthy, "", self.now_s)

    def succeed(self, *, whole: bool = True) -> None:
        self.condition.succeeded(self.now_s, whole=whole)

    def wait(self, seconds: float) -> None:
        """In ticks of a second."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(self.now_s + 1.0, until_s)
            self.condition.pass_time(self.now_s)
            self.condition.check()


def broken(rules: HealthRules = RULES) -> Patient:
    patient = Patient(rules)
    patient.fail(3)
    assert patient.state() is Health.OPEN
    return patient


def test_the_document_shows_the_table() -> None:
    expect_drawn("health.md", TRANSITIONS, Health.JOINING, Health.GONE)


def test_every_state_can_be_reached_and_only_the_last_has_no_way_on() -> None:
    reached = {following for steps in TRANSITIONS.values() for following in steps.values()}
    assert reached | {Health.JOINING} == set(Health) == set(TRANSITIONS)
    assert [state for state, steps in TRANSITIONS.items() if not steps] == [Health.GONE]
    assert all(steps[Step.LEAVE] is Health.GONE for state, steps in TRANSITIONS.items() if steps)


def test_failures_in_a_row_raise_suspicion_and_then_take_a_node_out() -> None:
    patient = Patient()
    patient.fail()
    assert patient.state() is Health.READY
    patient.fail()
    assert (patient.state(), patient.condition.weight) == (Health.SUSPECT, 0.25)
    patient.fail()
    assert (patient.state(), patient.condition.cause) == (Health.OPEN, Cause.ERRORS)
    assert patient.condition.detail == "requests fail: it answers with an error of its own (5xx)"


def test_every_failure_has_words_for_the_operator() -> None:
    assert set(FAILURE_WORDS) == set(FailureKind)


def test_a_success_between_failures_starts_the_count_again() -> None:
    patient = Patient()
    for _ in range(5):
        patient.fail(2)
        patient.succeed(whole=False)
    assert patient.state() is Health.READY


def test_failures_far_apart_are_one_trouble_only_if_they_are_many() -> None:
    patient = Patient()
    for failures in range(1, 7):
        patient.fail()
        assert (patient.state() is Health.OPEN) == (failures == 6)
        patient.now_s += 20.0


def test_who_breaks_off_every_answer_is_not_cleared_by_beginning_the_next() -> None:
    patient = Patient()
    for _ in range(3):
        patient.succeed(whole=False)
        patient.condition.failed(FailureKind.CLOSED, 0.0, spared=False, began=True)
    assert patient.state() is Health.OPEN


def test_the_last_node_stays_in_service_suspected() -> None:
    patient = Patient()
    patient.fail(20, spared=True)
    assert patient.state() is Health.SUSPECT


def test_probes_count_down_and_up() -> None:
    patient = Patient()
    patient.probe(False)
    assert patient.state() is Health.READY
    patient.probe(False)
    assert patient.state() is Health.SUSPECT
    patient.succeed()
    assert patient.state() is Health.SUSPECT, "requests that are answered do not mend probes"
    patient.probe(False)
    assert (patient.state(), patient.condition.detail) == (Health.OPEN, "health probes fail")
    patient.wait(120.0)
    assert patient.state() is Health.OPEN, "time does not bring back who fails its probes"
    patient.probe(True, False, True, False, True)
    assert patient.state() is Health.OPEN
    patient.probe(True)
    assert patient.state() is Health.WARMING


def test_good_probes_do_not_close_the_circuit_to_an_engine_that_fails_requests() -> None:
    patient = broken()
    patient.probe(*[True] * 50)
    assert patient.state() is Health.OPEN


def test_who_could_not_be_reached_may_try_when_probes_reach_it() -> None:
    patient = Patient()
    patient.fail(3, FailureKind.UNREACHABLE)
    patient.probe(True)
    assert patient.state() is Health.OPEN
    patient.probe(True)
    assert patient.state() is Health.HALF_OPEN


def test_an_open_node_tries_again_later_each_time_up_to_a_bound() -> None:
    patient = broken()
    waits = []
    for _ in range(6):
        began_s = patient.now_s
        while patient.state() is Health.OPEN:
            patient.wait(1.0)
        waits.append(patient.now_s - began_s)
        patient.fail()
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    patient.wait(60.0)
    patient.succeed()
    patient.wait(200.0)
    patient.fail(3)
    assert patient.condition.open_s == 5.0, "old trouble is forgotten"


def may_take(condition: Condition, inflight: int, priority: int) -> bool:
    return condition.may_take(inflight, 0.0, peers_mean=10.0, peers_s=0.0, priority=priority)


def test_a_trial_is_one_request_of_low_priority_until_that_takes_too_long() -> None:
    patient = broken()
    patient.wait(5.0)
    condition = patient.condition
    assert patient.state() is Health.HALF_OPEN
    assert may_take(condition, 0, PRIORITY_LOW)
    assert not may_take(condition, 0, PRIORITY_NORMAL)
    patient.wait(1.0)
    assert may_take(condition, 0, PRIORITY_NORMAL)
    condition.placed(RequestId("trial"))
    assert not may_take(condition, 1, PRIORITY_LOW)
    condition.ended(RequestId("trial"))
    assert may_take(condition, 0, PRIORITY_LOW)


def test_a_suspects_share_and_its_queue_are_configured() -> None:
    patient = Patient(HealthRules(suspect_weight=0.6, shared_queue_s=2.0))
    patient.fail(2)
    condition = patient.condition
    assert (condition.state, condition.weight) == (Health.SUSPECT, 0.6)
    assert may_take(condition, 5, PRIORITY_NORMAL)
    assert not may_take(condition, 6, PRIORITY_NORMAL)
    for queue_s, takes in ((1.9, True), (2.1, False)):
        assert takes is condition.may_take(0, queue_s, peers_mean=10.0, peers_s=0.0, priority=0)


def test_a_new_node_begins_with_the_configured_share() -> None:
    assert Patient(HealthRules(slow_start_weight=0.4), warms=True).condition.weight == 0.4


def test_a_trial_that_is_answered_lets_the_node_warm_up() -> None:
    patient = broken()
    patient.wait(5.0)
    patient.succeed(whole=False)
    assert (patient.state(), patient.condition.weight) == (Health.WARMING, 0.5)
    patient.wait(10.0)
    assert (patient.state(), patient.condition.weight) == (Health.READY, 1.0)


def test_what_a_request_does_wrong_is_taken_back() -> None:
    patient = broken()
    patient.condition.forgive(0.0)
    assert (patient.state(), patient.condition.cause) == (Health.READY, Cause.FORGIVEN)
    patient.condition.forgive(0.0)
    assert patient.condition.failures == 0


def test_a_trial_with_a_poison_request_decides_nothing() -> None:
    patient = broken()
    patient.wait(5.0)
    patient.fail()
    assert patient.state() is Health.OPEN
    patient.condition.forgive(patient.now_s)
    assert patient.state() is Health.HALF_OPEN


def test_suspicion_fades_when_nothing_confirms_it() -> None:
    patient = Patient()
    patient.fail(2)
    patient.wait(9.0)
    assert patient.state() is Health.SUSPECT
    patient.wait(1.0)
    assert patient.state() is Health.READY


def test_one_long_answer_is_no_slow_node() -> None:
    tokens = Patient().condition.first_tokens
    for ratio in (1, 1, 50, 1, 1, 1, 50, 1):
        tokens.observe(ratio)
        assert tokens.typical <= 1
    for _ in range(SLOW_SAMPLES):
        tokens.observe(9.0)
    assert tokens.typical == 9.0
    tokens.forget()
    assert tokens.typical == 0.0


def test_a_new_node_warms_with_time_and_sooner_with_good_first_tokens() -> None:
    slowly, soon, badly = (Patient(warms=True) for _ in range(3))
    assert slowly.condition.weight == 0.1
    for patient, ratio in ((slowly, None), (soon, 1.0), (badly, 5.0)):
        while patient.state() is Health.WARMING:
            patient.wait(1.0)
            for _ in range(5 if ratio else 0):
                patient.condition.first_token(ratio or 0.0, patient.now_s)
    assert [round(patient.now_s) for patient in (slowly, soon, badly)] == [30, 10, 30]


def test_slow_start_can_be_switched_off() -> None:
    assert Patient(HealthRules(slow_start_s=0.0), warms=True).state() is Health.READY


def test_suspicion_in_the_middle_of_warming_goes_back_to_warming() -> None:
    patient = Patient(warms=True)
    patient.wait(3.0)
    patient.fail(2)
    assert patient.state() is Health.SUSPECT
    patient.succeed()
    assert patient.state() is Health.WARMING
    patient.wait(30.0)
    assert patient.state() is Health.READY


def test_nothing_moves_who_is_gone() -> None:
    patient = Patient()
    patient.condition.left()
    patient.fail(9)
    patient.probe(False, False, False, True, True)
    patient.wait(99.0)
    assert patient.state() is Health.GONE
    with pytest.raises(AssertionError):
        patient.condition.left()


reports = st.one_of(
    st.tuples(st.just("fail"), st.sampled_from(FailureKind), st.booleans(), st.booleans()),
    st.tuples(st.just("succeed"), st.booleans()),
    st.tuples(st.just("probe"), st.booleans()),
    st.tuples(st.just("time"), st.floats(0, 40)),
    st.tuples(st.just("timed"), st.floats(0, 40)),
    st.tuples(st.just("suspect"), st.sampled_from(Cause)),
    st.tuples(st.just("give_up"), st.sampled_from(Cause)),
    st.tuples(st.just("forgive")),
)


@given(st.lists(reports, max_size=60), st.booleans())
def test_whatever_is_reported_every_step_is_in_the_table(
    events: list[tuple[object, ...]], warms: bool
) -> None:
    patient = Patient(warms=warms)
    condition = patient.condition
    for name, *arguments in events:
        match name, *arguments:
            case "fail", FailureKind() as kind, bool(spared), bool(began):
                condition.failed(kind, patient.now_s, spared=spared, began=began)
            case "succeed", bool(whole):
                condition.succeeded(patient.now_s, whole=whole)
            case "probe", bool(healthy):
                condition.probed(healthy, "", patient.now_s)
            case "time", float(seconds):
                patient.now_s += seconds
                condition.pass_time(patient.now_s)
            case "timed", float(ratio):
                condition.first_token(ratio, patient.now_s)
            case "suspect", Cause() as cause:
                condition.suspect(cause, "", patient.now_s)
            case "give_up", Cause() as cause:
                condition.give_up(cause, "", patient.now_s)
            case "forgive", *_:
                condition.forgive(patient.now_s)
        condition.check()
    for turn in patient.turns:
        assert turn.after in TRANSITIONS[turn.before].values(), turn
    patient.probe(True)
    patient.succeed()
    patient.probe(True, True)
    for _ in range(9):
        patient.wait(60.0)
        patient.succeed()
    assert patient.state() is Health.READY, "whoever is well again is back some time"
    assert patient.state() in SERVING
