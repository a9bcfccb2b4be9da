"""Retry storms: who comes back too early is refused first, and nobody else is hurt."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.admission.amplification import HALF_LIFE_S, Amplification
from pointsman.core.admission.pressure import JITTER, PRESSURE_S_MAX, Pressure, spread_s
from pointsman.core.admission.remembered import STRIKES_MAX
from pointsman.core.admission.retry_guard import RetryGuard
from pointsman.core.errors import EndCause, Reason
from pointsman.core.limits import CLIENTS_REMEMBERED_MAX, REFUSALS_REMEMBERED_MAX, RETRY_AFTER_MAX_S
from pointsman.core.options import SchedulerOptions
from pointsman.core.placement import Refusal
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Held, Placed, Refused
from pointsman.core.rules import GuardRules
from tests.support.driver import Driver, request

GONE = Outcome(EndCause.CLIENT_GONE)


class Guarded:
    """A guard before a cluster that has room or not, and a clock set by hand."""

    def __init__(self, *, room: bool = False, rules: GuardRules | None = None) -> None:
        self.room = room
        self.asked = 0
        self._sent = 0
        self.now_s = 100.0
        self.guard = RetryGuard(rules or GuardRules(), self._is_contended, seed=0)

    def _is_contended(self, request: Request, now_s: float) -> bool:
        self.asked += 1
        return not self.room

    def send(self, client: str, text: str, **fields: object) -> Reason | None:
        """Why it is turned away; else the cluster refuses it as it is full."""
        asked = request("r", text, client=client, **fields)
        early = self.guard.arrived(asked, self.now_s)
        reason = Reason.QUEUE_FULL if early is None else early.reason
        self.told_s = self.guard.refused(asked, reason, 1.0, self.now_s, ran=False) or 0.0
        self._sent += 1
        if self._sent % 16 == 0:
            self.guard.check()
        return None if early is None else early.reason

    def arrive(self, client: str, text: str) -> Refusal | None:
        """It arrives, and is served if this is None."""
        return self.guard.arrived(request("r", text, client=client), self.now_s)

    def place(self, client: str, text: str) -> None:
        self.guard.placed(request("r", text, client=client), self.now_s, again=False)

    def leave(self, client: str, text: str, *, ran: bool = True) -> None:
        self.guard.settled(request("r", text, client=client), GONE, self.now_s, ran=ran)


def test_the_same_request_back_too_early_is_refused_first() -> None:
    it = Guarded()
    assert it.send("a", "x") is None
    it.now_s += 0.01
    assert it.send("a", "x") is Reason.RETRY_EARLY
    assert it.guard.penalties == 1


def test_who_waits_as_told_is_let_in() -> None:
    it = Guarded()
    for _ in range(20):
        assert it.send("a", "x") is None
        it.now_s += it.told_s


def test_a_hammering_client_is_told_to_wait_longer_and_longer_up_to_a_bound() -> None:
    it = Guarded(rules=GuardRules(penalty_s_max=20.0))
    it.send("a", "x")
    waits = []
    for _ in range(40):
        it.now_s += 0.5
        assert it.send("a", "x") is Reason.RETRY_EARLY
        waits.append(it.told_s)
    assert waits[0] <= 4.0 * (1 + JITTER)
    assert 20.0 <= waits[-1] <= 20.0 * (1 + JITTER)


def test_what_ends_without_a_retry_after_runs_no_more() -> None:
    """Else it would count as running for ever, and whoever sends it again as one too many."""
    it = Guarded(room=True)
    for _ in range(2):
        it.arrive("a", "x")
        it.leave("a", "x")
        it.now_s += 10.0
    it.arrive("a", "x")
    asked = request("r", "x", client="a")
    assert it.guard.refused(asked, Reason.FIRST_TOKEN_TIMEOUT, None, it.now_s, ran=True) is None
    it.room = False
    it.now_s += 30.0
    assert it.arrive("a", "x") is None


def test_strikes_are_forgotten_with_time() -> None:
    it = Guarded()
    it.send("a", "x")
    for _ in range(20):
        it.now_s += 1.0
        it.send("a", "x")
    worst_s = it.told_s
    it.now_s += 3 * GuardRules().strike_half_life_s
    assert it.send("a", "x") is None
    it.now_s += 0.1
    assert it.send("a", "x") is Reason.RETRY_EARLY
    assert it.told_s < worst_s / 2


def test_a_burst_of_equal_requests_is_one_strike() -> None:
    """Samples of one prompt that are sent together are refused together, and come together."""
    it = Guarded()
    for _ in range(20):
        it.send("a", "x")
    assert it.told_s <= 2.0 * (1.0 + PRESSURE_S_MAX) * (1 + JITTER)
    (turned,) = it.guard._turned.values()
    assert turned.strikes(it.now_s, 30.0) == 1.0


def test_strikes_count_from_the_first_moment_on() -> None:
    it = Guarded()
    it.now_s = 0.0
    it.send("a", "x")
    assert it.send("a", "x") is Reason.RETRY_EARLY
    (turned,) = it.guard._turned.values()
    assert turned.strikes(it.now_s, 30.0) == 1.0


def test_another_request_of_the_same_client_is_served_as_anybody() -> None:
    """A key or an address may be many people."""
    it = Guarded()
    it.send("a", "storm")
    for number in range(40):
        it.now_s += 0.05
        assert it.send("a", "storm") is Reason.RETRY_EARLY
        if number % 4 == 0:
            assert it.arrive("a", f"calm {number}") is None


def test_another_client_with_the_same_words_is_served_as_anybody() -> None:
    it = Guarded()
    it.send("a", "x")
    assert it.arrive("b", "x") is None


def test_what_is_nobodys_is_served_as_anybodys() -> None:
    it = Guarded()
    for _ in range(5):
        assert it.send("", "x") is None
    assert it.guard.repeats_after_refusal == 0


def test_while_there_is_room_nobody_is_punished() -> None:
    it = Guarded()
    it.send("a", "x")
    it.room = True
    for _ in range(5):
        assert it.send("a", "x") is None
    assert it.guard.penalties == 0
    assert it.guard.repeats_after_refusal == 5


def test_in_calm_nothing_is_hashed_and_room_is_not_asked_for() -> None:
    it = Guarded()
    asked = request("r", "x", client="a")
    for _ in range(10):
        assert it.guard.arrived(asked, it.now_s) is None
        it.guard.placed(asked, it.now_s, again=False)
    assert it.asked == 0
    assert asked.prompt._fingerprint is None


def test_switched_off_it_only_counts() -> None:
    it = Guarded(rules=GuardRules(enabled=False))
    for _ in range(10):
        assert it.send("a", "x") is None
    assert it.guard.repeats_after_refusal == 9
    assert it.guard.penalties == 0


def test_what_is_simply_sent_often_is_no_repeat() -> None:
    """One refusal explains one comeback."""
    it = Guarded()
    it.send("a", "ping")
    it.now_s += it.told_s
    for _ in range(20):
        assert it.arrive("a", "ping") is None
    assert it.guard.repeats_after_refusal == 1


def test_who_gave_up_and_comes_at_once_is_early() -> None:
    it = Guarded()
    it.leave("a", "x")
    it.now_s += 0.01
    assert it.send("a", "x") is Reason.RETRY_EARLY
    assert it.guard.repeats_after_giving_up == 1


def test_who_gave_up_and_waits_a_moment_is_let_in() -> None:
    it = Guarded()
    it.leave("a", "x")
    it.now_s += 1.0
    assert it.arrive("a", "x") is None


def test_one_more_of_what_was_given_up_while_that_still_runs_is_early() -> None:
    """The end of the old connection may come after the new one, or never."""
    it = Guarded()
    it.leave("a", "x")
    it.now_s += 5.0
    assert it.arrive("a", "x") is None
    it.now_s += 5.0
    assert it.arrive("a", "x") is not None
    it.guard.settled(request("r", "x", client="a"), GONE, it.now_s, ran=True)
    it.now_s += 10.0
    assert it.arrive("a", "x") is None
    it.guard.settled(request("r", "x", client="a"), Outcome(EndCause.FINISHED), it.now_s, ran=True)
    assert it.arrive("a", "x") is None


def test_who_gives_up_again_and_again_has_to_wait_longer_each_time() -> None:
    """Each time an engine works for nobody."""
    it = Guarded()
    pauses_s = []
    for _ in range(5):
        it.leave("a", "x")
        began_s = it.now_s
        while it.guard._turned["a", "", request("r", "x").prompt.fingerprint()].until_s > it.now_s:
            it.now_s += 0.1
        pauses_s.append(it.now_s - began_s)
        assert it.arrive("a", "x") is None
        it.now_s += 10.0
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] > 4 * pauses_s[0] > 0.0


@pytest.mark.parametrize("end", [EndCause.FINISHED, EndCause.TRUNCATED, EndCause.ENGINE_ERROR])
def test_whose_answer_ended_otherwise_owes_nothing(end: EndCause) -> None:
    it = Guarded()
    asked = request("r", "x", client="a")
    it.guard.settled(asked, Outcome(end, ttft_s=0.5), it.now_s, ran=True)
    assert it.arrive("a", "x") is None
    assert it.guard.repeats_after_giving_up == 0


def test_a_timeout_in_the_middle_of_the_answer_is_one_too() -> None:
    it = Guarded()
    asked = request("r", "x", client="a")
    it.guard.settled(asked, Outcome(EndCause.CLIENT_GONE, ttft_s=0.5), it.now_s, ran=True)
    assert it.arrive("a", "x") is not None


def test_a_client_whose_requests_differ_is_known_by_its_rate() -> None:
    """A storm of one client's, each body with a number of its own."""
    it = Guarded()
    verdicts = []
    for number in range(400):
        verdicts.append(it.send("a", f"x {number}"))
        it.now_s += 0.01
    assert verdicts[:50] == [None] * 50
    assert verdicts[-100:].count(Reason.RETRY_STORM) >= 85
    assert it.send("b", "x") is None


def test_a_busy_client_that_was_busy_before_goes_on_as_before() -> None:
    it = Guarded()
    for number in range(6_000):
        assert it.arrive("a", f"before {number}") is None
        it.now_s += 0.01
    for number in range(3_000):
        assert it.send("a", f"since {number}") is None
        it.now_s += 0.01


def test_a_client_that_hardly_ever_waits_is_refused_as_a_whole() -> None:
    it = Guarded()
    for number in range(5):
        it.send("a", f"x {number}")
        it.send("a", f"x {number}")
    assert it.send("a", "new") is Reason.RETRY_STORM
    assert it.send("b", "new") is None
    it.room = True
    it.now_s += GuardRules().room_s + 0.1
    assert it.send("a", "other") is None


def test_one_in_a_hurry_does_not_make_all_others_at_its_address_so() -> None:
    it = Guarded()
    for number in range(20):
        it.send("nat", "in a hurry")
        it.send("nat", f"calm {number}")
        it.now_s += 0.2
    assert it.send("nat", "new") is None


def test_when_a_client_is_refused_as_a_whole_is_configured() -> None:
    lenient = Guarded(rules=GuardRules(hasty_share=1.0))
    for number in range(40):
        lenient.send("a", f"hammer {number}")
        assert lenient.send("a", f"hammer {number}") is Reason.RETRY_EARLY
        assert lenient.send("a", f"calm {number}") is None
        lenient.now_s += 0.2
    strict = Guarded(rules=GuardRules(hasty_share=0.4))
    for number in range(5):
        strict.send("a", f"hammer {number}")
        strict.send("a", f"hammer {number}")
        strict.send("a", f"calm {number}")
    assert strict.send("a", "new") is Reason.RETRY_STORM


@pytest.mark.parametrize(("growth", "is_refused"), [(1.5, True), (8.0, False)])
def test_how_much_a_client_may_grow_is_configured(growth: float, is_refused: bool) -> None:
    it = Guarded(rules=GuardRules(growth=growth))
    for number in range(3_000):
        it.arrive("a", f"before {number}")
        it.now_s += 0.02
    refused = 0
    for number in range(600):
        refused += it.send("a", f"since {number}") is Reason.RETRY_STORM
        it.now_s += 0.006
    assert bool(refused) is is_refused


def test_a_crowd_is_never_refused_as_a_whole_for_who_is_hasty_there() -> None:
    """One program behind an ingress hammers with all that it has."""
    it = Guarded()
    for number in range(40):
        it.send("ingress", f"hammer {number}", is_crowd=True)
        assert it.send("ingress", f"hammer {number}", is_crowd=True) is Reason.RETRY_EARLY
        assert it.send("ingress", f"calm {number}", is_crowd=True) is None
        it.now_s += 0.05


def test_a_crowd_may_grow_at_any_time() -> None:
    it = Guarded()
    for number in range(400):
        assert it.send("ingress", f"x {number}", is_crowd=True) is None
        it.now_s += 0.01


def test_the_same_words_of_another_tenant_at_the_address_are_no_repeat() -> None:
    it = Guarded()
    it.send("ingress", "hi", is_crowd=True, tenant="hasty")
    for _ in range(5):
        it.now_s += 0.05
        told = it.send("ingress", "hi", is_crowd=True, tenant="hasty")
        assert told is Reason.RETRY_EARLY
    assert it.send("ingress", "hi", is_crowd=True, tenant="calm") is None
    it.now_s += it.told_s
    assert it.send("ingress", "hi", is_crowd=True, tenant="calm") is None


def test_a_client_that_begins_to_wait_is_soon_served_as_anybody() -> None:
    it = Guarded()
    for number in range(4):
        it.send("a", f"x {number}")
        it.send("a", f"x {number}")
    assert it.send("a", "first") is Reason.RETRY_STORM
    it.now_s += it.told_s
    assert it.send("a", "first") is None
    for number in range(3):
        it.send("a", f"y {number}")
    assert it.send("a", "new") is None


def test_who_waited_is_let_in_even_if_the_client_as_a_whole_storms() -> None:
    it = Guarded()
    it.send("a", "polite")
    wait_s = it.told_s
    for number in range(200):
        it.send("a", f"x {number}")
    assert it.arrive("a", "x new") is not None
    it.now_s += wait_s
    assert it.arrive("a", "polite") is None


def test_memory_is_bounded() -> None:
    it = Guarded()
    for number in range(REFUSALS_REMEMBERED_MAX + 1_000):
        asked = request("r", str(number), client=str(number % (CLIENTS_REMEMBERED_MAX + 100)))
        it.guard.arrived(asked, it.now_s)
        it.guard.refused(asked, Reason.QUEUE_FULL, 1.0, it.now_s, ran=False)
    it.guard.check()
    it.now_s += 2 * GuardRules().memory_s
    for _ in range(REFUSALS_REMEMBERED_MAX):
        it.guard.refused(request("r", "y", client="z"), Reason.QUEUE_FULL, 1.0, it.now_s, ran=False)
    assert len(it.guard._turned) == 1


def test_reasons_for_which_waiting_does_not_help_are_not_told_to_wait() -> None:
    it = Guarded()
    asked = request("r", "x", client="a")
    assert it.guard.refused(asked, Reason.MODEL_NOT_FOUND, None, it.now_s, ran=False) is None
    assert it.guard.arrived(asked, it.now_s) is None
    assert it.guard.repeats_after_refusal == 0


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["send", "leave", "wait", "room", "place"]),
            st.sampled_from(["", "a", "b"]),
            st.sampled_from("xyz"),
            st.sampled_from([0.01, 0.3, 2.0, 50.0]),
        ),
        max_size=80,
    )
)
def test_whatever_happens_who_waits_as_told_is_never_early(
    steps: list[tuple[str, str, str, float]],
) -> None:
    it = Guarded()
    may_come_s: dict[tuple[str, str], float] = {}
    for what, client, text, seconds in steps:
        match what:
            case "send":
                has_waited = it.now_s >= may_come_s.get((client, text), it.now_s)
                told = it.send(client, text)
                assert not (has_waited and told is Reason.RETRY_EARLY)
                assert 0.0 < it.told_s <= RETRY_AFTER_MAX_S
                may_come_s[client, text] = it.now_s + it.told_s
            case "leave":
                it.leave(client, text)
                longest_s = 2.0**STRIKES_MAX
                may_come_s[client, text] = it.now_s + longest_s
            case "place":
                it.place(client, text)
            case "room":
                it.room = not it.room
            case _:
                it.now_s += seconds
        it.guard.check()
        assert it.guard.amplification.at_gateway >= 1.0
        assert it.guard.amplification.at_engines >= 1.0


# --- what a request costs, and how long to wait ------------------------------------------


def test_amplification_is_attempts_for_each_distinct_request() -> None:
    it = Guarded()
    for _ in range(4):
        it.send("a", "x")
    assert it.guard.amplification.at_gateway == pytest.approx(4.0)
    assert it.guard.amplification.at_engines == 1.0


def test_work_that_engines_do_again_counts_at_the_engines() -> None:
    it = Guarded(room=True)
    for _ in range(3):
        it.arrive("a", "x")
        it.place("a", "x")
        it.leave("a", "x")
    it.arrive("a", "y")
    it.place("a", "y")
    assert it.guard.amplification.at_engines == pytest.approx(2.0)


def test_a_request_that_waited_in_vain_and_comes_again_is_placed_once() -> None:
    it = Guarded(room=True)
    it.arrive("a", "x")
    it.leave("a", "x", ran=False)
    it.arrive("a", "x")
    it.place("a", "x")
    assert it.guard.amplification.at_engines == 1.0
    assert it.guard.amplification.at_gateway == pytest.approx(2.0)


def test_a_storm_fades_from_the_measure() -> None:
    counts = Amplification()
    for number in range(100):
        counts.arrived(0.0)
        if number % 2:
            counts.repeated()
    assert counts.at_gateway == pytest.approx(2.0)
    now_s = 5 * HALF_LIFE_S
    for _ in range(100):
        counts.arrived(now_s)
    assert counts.at_gateway < 1.05


def test_the_more_are_refused_for_each_placed_the_longer_they_wait() -> None:
    waits_s = []
    for refused in (0, 1, 3, 50):
        pressure = Pressure()
        for _ in range(10):
            pressure.placed(5.0)
            for _ in range(refused):
                pressure.refused(5.0)
        waits_s.append(pressure.wait_s(1.0, 5.0))
    assert waits_s == [1.0, 2.0, 4.0, 1.0 + PRESSURE_S_MAX]


def test_pressure_is_over_soon_after_its_cause() -> None:
    pressure = Pressure()
    for _ in range(100):
        pressure.refused(0.0)
    pressure.placed(0.0)
    assert pressure.wait_s(1.0, 0.0) == 1.0 + PRESSURE_S_MAX
    for _ in range(100):
        pressure.placed(20.0)
    assert pressure.wait_s(1.0, 20.0) < 1.5


def test_refused_together_they_come_back_apart() -> None:
    rng = Random(1)
    told_s = [spread_s(4.0, rng) for _ in range(1_000)]
    assert min(told_s) >= 4.0
    assert max(told_s) <= 4.0 * (1 + JITTER)
    counts = [sum(4.0 + 0.2 * n <= s < 4.2 + 0.2 * n for s in told_s) for n in range(10)]
    assert min(counts) > 60
    assert spread_s(1e9, rng) == RETRY_AFTER_MAX_S


def test_the_same_seed_tells_the_same_waits() -> None:
    runs = []
    for _ in range(2):
        it, told_s = Guarded(), []
        for number in range(20):
            it.send("a", str(number))
            told_s.append(it.told_s)
        runs.append(told_s)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 20


# --- in the scheduler ------------------------------------------------------------------------


def test_who_gives_up_does_not_get_the_room_that_this_makes_while_others_wait() -> None:
    """A prompt waits that does not fit into it; the client's own request would."""
    driver = Driver(SchedulerOptions(queue_length_max=8))
    driver.ready("a", kv_blocks=200)
    (placed,) = driver.arrive("r1", "x", client="hasty", max_output_tokens=1_280)
    assert isinstance(placed, Placed)
    (placed,) = driver.arrive("r0", "z", client="other", max_output_tokens=1_280)
    assert isinstance(placed, Placed)
    (held,) = driver.arrive("long", "y " * 7_000, client="other", max_output_tokens=16)
    assert isinstance(held, Held)
    effects = driver.settle("r1", EndCause.CLIENT_GONE)
    assert not any(isinstance(effect, Placed) for effect in effects), effects
    (refused,) = driver.arrive("r2", "x", client="hasty", max_output_tokens=1_280)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.RETRY_EARLY
