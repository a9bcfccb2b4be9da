"""Clients: when they send, how often they try again, and what they note."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.sim.scenario import Backoff, Clients, Fault, FaultKind, Network
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.sessions import chat
from tests.support.simulation import ask, in_order, run, small

WAY_S = Network().client_s


def turns(session: str, think_s: list[float], at_s: float = 0.0) -> list[TrafficRequest]:
    """Turns that the trace has a second apart."""
    return [
        ask(at_s + turn, 64 + 16 * turn, 5, session=session, turn=turn, think_s=thought_s)
        for turn, thought_s in enumerate(think_s)
    ]


def by_turn(records: tuple[RequestRecord, ...], session: str) -> list[RequestRecord]:
    return sorted((r for r in records if r.session == session), key=lambda r: r.turn)


def test_in_an_open_loop_the_trace_says_when() -> None:
    requests = turns("a", [0.0, 5.0, 0.1])
    records = run(small(), requests).records
    assert [record.due_s for record in records] == [0.0, 1.0, 2.0]


def test_in_a_closed_loop_a_turn_follows_the_end_of_the_one_before() -> None:
    stream = in_order(
        [*turns("a", [0.0, 5.0, 0.1]), *turns("b", [0.0, 0.0], at_s=0.5), ask(0.7, 9, 1)]
    )
    records = run(small(clients=Clients(closed_loop=True)), stream).records
    first, second, third = by_turn(records, "a")
    assert second.due_s == pytest.approx(first.due_s + first.e2e_s + 5.0, abs=1e-9)
    assert third.due_s == pytest.approx(second.due_s + second.e2e_s + 0.1, abs=1e-9)
    before, after = by_turn(records, "b")
    assert after.due_s == pytest.approx(before.due_s + before.e2e_s, abs=1e-9)
    assert next(record.due_s for record in records if not record.session) == 0.7


def test_a_turn_follows_a_failed_one_as_well() -> None:
    stream = turns("a", [0.0, 2.0, 1.0])
    too_long = msgspec.structs.replace(stream[0], input_tokens=5_000, block_ids=())
    stream = [too_long, *stream[1:]]
    records = by_turn(run(small(clients=Clients(closed_loop=True)), stream).records, "a")
    assert [record.failed for record in records] == [True, False, False]
    assert records[1].due_s == pytest.approx(records[0].e2e_s + 2.0, abs=1e-9)


def test_the_very_same_request_may_be_in_the_stream_twice() -> None:
    twice = ask(0.0, 64, 5, session="a", think_s=1.0)
    first, second = run(small(clients=Clients(closed_loop=True)), [twice, twice]).records
    assert second.due_s == pytest.approx(first.e2e_s + 1.0, abs=1e-9)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), gateways=st.sampled_from([1, 3]))
def test_closed_loops_keep_think_times_whatever_happens(seed: int, gateways: int) -> None:
    stream = chat(requests=40, rate_rps=20, rng=Random(seed), system_tokens=32, turns_mean=4)
    scenario = small(
        gateways=gateways,
        clients=Clients(closed_loop=True, retries_max=1, timeout_s=1.5),
        faults=(Fault(kind=FaultKind.CRASH, at_s=1.0, duration_s=4.0, nodes=("node-1",)),),
    )
    records = run(scenario, stream).records
    ended_s: dict[str, float] = {}
    for request, record in zip(stream, records, strict=True):
        due_s = ended_s.get(request.session)
        if due_s is not None:
            assert record.due_s == pytest.approx(due_s + request.think_s, abs=1e-9)
        ended_s[request.session] = record.due_s + record.e2e_s


DOWN = (Fault(kind=FaultKind.CRASH, at_s=0.5, duration_s=5.0),)


def test_without_retries_a_refusal_is_the_end() -> None:
    replayed = run(small(1, faults=DOWN), [ask(3.0, 64, 5)])
    (record,) = replayed.records
    assert replayed.attempts == 1
    assert (record.outcome, record.http_status) == (Outcome.HTTP_ERROR, 503)
    assert record.ttft_s is None


def test_retries_without_backoff_come_at_once_and_are_soon_used_up() -> None:
    clients = Clients(retries_max=4, backoff=Backoff.NONE)
    replayed = run(small(1, faults=DOWN, clients=clients), [ask(3.0, 64, 5)])
    assert replayed.attempts == 5
    assert replayed.records[0].failed
    assert replayed.records[0].e2e_s < 0.1


def test_retries_with_backoff_wait_longer_each_time_and_get_through() -> None:
    clients = Clients(retries_max=6)
    replayed = run(small(1, faults=DOWN, clients=clients), [ask(3.0, 64, 5)])
    (record,) = replayed.records
    assert record.outcome is Outcome.OK
    assert 2 <= replayed.attempts <= 4
    assert record.ttft_s is not None
    assert record.ttft_s > 2.5  # counted from when it was due


def test_a_client_that_gives_up_frees_the_engine() -> None:
    clients = Clients(timeout_s=1.0)
    stream = [ask(0.0, 200, 600), ask(5.0, 64, 5)]
    gone, after = run(small(1, clients=clients), stream).records
    assert (gone.outcome, gone.http_status) == (Outcome.TIMEOUT, 200)
    assert gone.ttft_s is not None
    assert gone.e2e_s == pytest.approx(1.0 + 2 * WAY_S, abs=1e-9)
    alone = run(small(1), stream[1:]).records[0]
    assert after.e2e_s == pytest.approx(alone.e2e_s, abs=1e-9)


def test_a_client_that_gives_up_before_any_byte_saw_no_status() -> None:
    stands = (Fault(kind=FaultKind.HANG, at_s=0.0, duration_s=50.0),)
    scenario = small(1, clients=Clients(timeout_s=1.0, retries_max=2), faults=stands)
    replayed = run(scenario, [ask(0.5, 64, 5)])
    (record,) = replayed.records
    assert (record.outcome, record.http_status, record.ttft_s) == (Outcome.TIMEOUT, None, None)
    assert replayed.attempts == 3
    assert record.e2e_s > 3.0


def test_an_impatient_client_is_gone_before_it_is_placed() -> None:
    scenario = small(1, clients=Clients(timeout_s=1e-6))
    records = run(scenario, [ask(0.0, 64, 5), ask(0.0, 64, 5)]).records
    assert all(record.outcome is Outcome.TIMEOUT for record in records)


def test_an_answer_that_breaks_off_is_truncated_and_not_tried_again() -> None:
    crash = (Fault(kind=FaultKind.CRASH, at_s=1.0, duration_s=5.0),)
    scenario = small(1, faults=crash, clients=Clients(retries_max=3))
    replayed = run(scenario, [ask(0.0, 64, 500)])
    (record,) = replayed.records
    assert (record.outcome, record.cause) == (Outcome.TRUNCATED, "node_closed")
    assert (record.http_status, replayed.attempts) == (200, 1)
    assert record.ttft_s is not None
    assert record.completion_tokens is None


def test_an_attempt_that_no_byte_came_of_goes_to_another_node() -> None:
    """The gateway tries again by itself: the client knows nothing of it."""
    stands = Fault(kind=FaultKind.HANG, at_s=0.0, duration_s=0.9, nodes=("node-0",))
    crash = Fault(kind=FaultKind.CRASH, at_s=0.8, duration_s=5.0, nodes=("node-0",))
    replayed = run(small(2, faults=(stands, crash)), [ask(0.5, 64, 5)], policy="round_robin")
    (record,) = replayed.records
    assert (record.outcome, record.node, replayed.attempts) == (Outcome.OK, "node-1", 1)


def test_what_is_noted_of_a_request() -> None:
    request = ask(1.0, 64, 5, prefix=1, session="s", turn=3, tenant="t")
    (record,) = run(small(1), [request]).records
    assert (record.session, record.turn, record.tenant) == ("s", 3, "t")
    assert (record.input_tokens, record.output_tokens) == (64, 5)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (64, 5, 0)
    assert (record.http_status, record.cause, record.node) == (200, "", "node-0")
