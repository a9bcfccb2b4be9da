"""The life of one request: every step of the table, every bound, exactly one outcome."""

from itertools import product

import pytest

from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.exchange import (
    TRANSITIONS,
    Exchange,
    IllegalTransition,
    State,
    Step,
)
from pointsman.core.ids import RequestId
from pointsman.core.limits import ATTEMPTS_MAX, BUSY_ATTEMPTS_MAX
from pointsman.core.request import Outcome
from pointsman.core.rules import Timeouts
from tests.support.state_diagram import expect_drawn

TIMEOUTS = Timeouts(connect_s=5.0, first_byte_s=600.0, idle_s=300.0, total_s=3_600.0)

# One way into each state.
WAYS: dict[State, tuple[Step | EndCause, ...]] = {
    State.RECEIVED: (),
    State.QUEUED: (Step.HOLD,),
    State.PLACED: (Step.PLACE,),
    State.DIALLED: (Step.PLACE, Step.DIAL),
    State.STREAMING: (Step.PLACE, Step.DIAL, Step.START),
    State.SETTLED: (EndCause.CLIENT_GONE,),
}


def exchange() -> Exchange:
    return Exchange(RequestId("r"), TIMEOUTS, 100.0)


def take(one: Exchange, step: Step | EndCause, now_s: float = 100.0) -> None:
    match step:
        case Step.HOLD:
            one.held()
        case Step.PLACE:
            one.placed(now_s)
        case Step.DIAL:
            one.dialled(now_s)
        case Step.REDIAL:
            one.redialled(now_s)
        case Step.FAIL:
            one.failed(FailureKind.ERROR)
        case Step.RECALL:
            one.recalled()
        case Step.START:
            one.started(now_s)
        case _:
            one.ended(step, now_s)


def at(state: State) -> Exchange:
    one = exchange()
    for step in WAYS[state]:
        take(one, step)
    assert one.state is state
    return one


@pytest.mark.parametrize(("state", "step"), list(product(State, [*Step, *EndCause])))
def test_a_step_follows_the_table_or_ends_the_exchange_for_good(
    state: State, step: Step | EndCause
) -> None:
    one = at(state)
    following = TRANSITIONS[state].get(step)
    if following is not None:
        take(one, step)
        assert one.state is following
        return
    if step is Step.PLACE and not one.may_be_placed:
        with pytest.raises(AssertionError, match="attempts are enough"):
            take(one, step)
        return
    with pytest.raises(IllegalTransition, match=f"{step} while {state}"):
        take(one, step)
    assert one.state is State.SETTLED


@pytest.mark.parametrize("state", [state for state in State if state is not State.SETTLED])
def test_a_client_may_leave_at_any_time(state: State) -> None:
    one = at(state)
    assert one.ended(EndCause.CLIENT_GONE, 101.0).end is EndCause.CLIENT_GONE


def test_nothing_follows_the_end() -> None:
    one = at(State.SETTLED)
    outcome = one.outcome
    with pytest.raises(IllegalTransition):
        one.ended(EndCause.CLIENT_GONE, 101.0)
    assert one.outcome is outcome
    assert one.overdue(1e9) is None


def test_no_other_node_after_the_first_byte() -> None:
    one = at(State.STREAMING)
    assert not one.may_be_placed
    with pytest.raises(IllegalTransition):
        one.failed(FailureKind.CLOSED)


@pytest.mark.parametrize(
    ("kind", "attempts_max"),
    [(FailureKind.ERROR, ATTEMPTS_MAX), (FailureKind.BUSY, BUSY_ATTEMPTS_MAX)],
)
def test_attempts_are_bounded_by_kind(kind: FailureKind, attempts_max: int) -> None:
    one = exchange()
    for attempt in range(1, attempts_max + 1):
        assert one.may_be_placed
        one.placed(100.0)
        one.failed(kind)
        assert one.attempts == attempt
    assert not one.may_be_placed


@pytest.mark.parametrize("state", State)
def test_only_an_attempt_without_a_byte_may_be_recalled(state: State) -> None:
    assert at(state).may_be_recalled is (state in {State.PLACED, State.DIALLED})


def test_a_recall_leaves_the_attempts_for_faults() -> None:
    one = exchange()
    for _ in range(ATTEMPTS_MAX):
        one.placed(100.0)
        one.recalled()
        one.held()
    assert one.may_be_placed
    assert one.overdue(3_699.0) is None


def test_busy_answers_leave_the_attempts_for_faults() -> None:
    one = exchange()
    for kind in (FailureKind.BUSY, FailureKind.BUSY, FailureKind.ERROR):
        one.placed(100.0)
        one.failed(kind)
    assert one.may_be_placed


def test_each_state_has_its_deadline() -> None:
    one = exchange()
    assert one.deadline_s() == 3_700.0
    one.held()
    assert one.deadline_s() == 3_700.0
    one.placed(110.0)
    assert one.deadline_s() == 115.0
    one.dialled(111.0)
    assert one.deadline_s() == 711.0
    one.redialled(112.0)
    assert one.deadline_s() == 117.0
    one.dialled(113.0)
    one.started(120.0)
    assert one.deadline_s() == 420.0
    one.progressed(200.0)
    assert one.deadline_s() == 500.0
    one.progressed(3_650.0)
    assert one.deadline_s() == 3_700.0


def test_a_failed_attempt_waits_for_the_scheduler_again() -> None:
    one = at(State.PLACED)
    one.failed(FailureKind.UNREACHABLE)
    assert one.deadline_s() == 3_700.0


@pytest.mark.parametrize(
    ("state", "late_s", "reason"),
    [
        (State.RECEIVED, 3_700.0, Reason.TOTAL_TIMEOUT),
        (State.QUEUED, 3_700.0, Reason.TOTAL_TIMEOUT),
        (State.PLACED, 105.0, Reason.NODE_UNREACHABLE),
        (State.DIALLED, 700.0, Reason.FIRST_TOKEN_TIMEOUT),
        (State.STREAMING, 400.0, Reason.IDLE_TIMEOUT),
        (State.STREAMING, 3_700.0, Reason.TOTAL_TIMEOUT),
    ],
)
def test_what_is_overdue_has_a_name(state: State, late_s: float, reason: Reason) -> None:
    one = at(state)
    assert one.overdue(one.deadline_s() - 0.001) is None
    assert one.overdue(late_s) is reason


def test_the_outcome_tells_times_and_tokens() -> None:
    one = exchange()
    one.held()
    one.placed(102.0)
    one.dialled(102.5)
    one.started(104.5)
    outcome = one.ended(
        EndCause.FINISHED,
        110.0,
        status=200,
        streamed=True,
        prompt_tokens=10,
        output_tokens=5,
        cached_tokens=8,
        streamed_tokens=6,
        first_tokens=2,
    )
    assert outcome is one.outcome
    assert one.ended_s == 110.0
    assert one.queue_s == 2.0
    assert outcome == Outcome(
        end=EndCause.FINISHED,
        streamed=True,
        ttft_s=2.0,
        decode_s=5.5,
        prompt_tokens=10,
        output_tokens=5,
        cached_tokens=8,
        streamed_tokens=6,
        first_tokens=2,
        status=200,
    )


def test_times_that_never_came_are_none() -> None:
    outcome = exchange().ended(EndCause.REFUSED, 101.0, status=503)
    assert (outcome.ttft_s, outcome.decode_s) == (None, None)
    assert exchange().queue_s is None


def test_the_queue_ends_at_the_first_placement() -> None:
    one = exchange()
    one.placed(101.0)
    one.failed(FailureKind.UNREACHABLE)
    one.placed(106.0)
    assert one.queue_s == 1.0


def test_every_state_can_be_reached_and_left() -> None:
    reached = {following for steps in TRANSITIONS.values() for following in steps.values()}
    assert reached | {State.RECEIVED} == set(State)
    assert [state for state, steps in TRANSITIONS.items() if not steps] == [State.SETTLED]


def test_the_document_shows_the_table() -> None:
    expect_drawn("exchange.md", TRANSITIONS, State.RECEIVED, State.SETTLED)
