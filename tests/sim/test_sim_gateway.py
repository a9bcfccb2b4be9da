"""A gateway drives the real scheduler and exchanges: held, refused, timed out, cut off."""

import pytest

from pointsman.core.limits import HOLD_S
from pointsman.core.options import SchedulerOptions
from pointsman.core.rules import RetryRules
from pointsman.sim.scenario import Clients, Fault, FaultKind, Knowledge, Network, Times
from pointsman.traffic.outcome import Outcome
from tests.support.profiles import SMALL
from tests.support.simulation import ask, run, small


def test_delays_add_up_on_the_way() -> None:
    usual, slow = (
        run(small(1, network=network), [ask(1.0, 64, 9)]).records[0]
        for network in (
            Network(client_s=0.0, engine_s=0.0, dispatch_s=0.0),
            Network(client_s=0.1, engine_s=0.02, dispatch_s=0.003),
        )
    )
    assert slow.e2e_s - usual.e2e_s == pytest.approx(0.2 + 0.04 + 0.003, abs=1e-9)


def test_more_than_fits_is_held_and_served_in_turn() -> None:
    """64 blocks: four prompts of 200 tokens fit with their answers, the others wait."""
    requests = [ask(0.0, 200, 20) for _ in range(12)]
    replayed = run(small(1, clients=Clients(bounds_output=True)), requests)
    assert replayed.held > 0
    assert not any(record.failed for record in replayed.records)


def test_who_is_held_for_too_long_is_refused_on_time() -> None:
    stands = (Fault(kind=FaultKind.HANG, at_s=0.0, duration_s=400.0),)
    requests = [ask(1.0, 900, 20) for _ in range(3)]
    scenario = small(1, faults=stands, clients=Clients(bounds_output=True))
    records = run(scenario, requests).records
    refused = [record for record in records if record.http_status == 429]
    assert len(refused) == 2
    for record in refused:
        assert record.cause == "queue_timeout"
        assert record.e2e_s == pytest.approx(HOLD_S, abs=0.01)


def test_a_held_client_may_leave() -> None:
    stands = (Fault(kind=FaultKind.HANG, at_s=0.0, duration_s=20.0),)
    clients = Clients(bounds_output=True, timeout_s=5.0)
    requests = [ask(1.0, 900, 20), ask(1.0, 900, 20), ask(30.0, 900, 20)]
    records = run(small(1, faults=stands, clients=clients), requests).records
    assert [r.outcome for r in records] == [Outcome.TIMEOUT, Outcome.TIMEOUT, Outcome.OK]


def test_a_request_may_fail_as_often_as_the_schedulers_own_rules_say() -> None:
    crashes = (
        Fault(
            kind=FaultKind.CRASH,
            at_s=1.0,
            duration_s=60.0,
            nodes=("node-0", "node-1"),
            stagger_s=0.05,
        ),
    )
    options = SchedulerOptions(retries=RetryRules(attempts_max=3))
    scenario = small(3, faults=crashes)
    (record,) = run(scenario, [ask(0.9, 1_000, 9)], policy="round_robin", options=options).records
    assert (record.outcome, record.placements) == (Outcome.OK, 3)


def test_an_answer_of_more_than_an_hour_is_cut_off() -> None:
    slow = (Fault(kind=FaultKind.SLOW, at_s=2.0, duration_s=1e6, factor=1e3),)
    scenario = small(1, faults=slow)
    (record,) = run(scenario, [ask(0.0, 64, 900)]).records
    assert (record.outcome, record.cause) == (Outcome.TRUNCATED, "total_timeout")
    assert record.ttft_s is not None
    assert record.e2e_s == pytest.approx(3_600, abs=2)


def test_clients_do_not_feel_that_times_are_measured_wrong() -> None:
    """The scheduler is told longer times; what clients see is what it was."""
    requests = [ask(at_s / 4, 64, 20) for at_s in range(40)]
    wrong = small(1, knowledge=Knowledge(measured=Times(prefill=3.0, decode=3.0)))
    assert run(wrong, requests).records == run(small(1), requests).records


def test_gateways_take_turns_and_see_each_other_in_reports_only() -> None:
    requests = [ask(at_s / 20, 100, 10) for at_s in range(100)]
    one, four = (run(small(3, gateways=count), requests) for count in (1, 4))
    assert len(one.records) == len(four.records)
    assert not any(record.failed for record in four.records)
    assert SMALL.max_num_seqs == 8  # so it is not for lack of load
    assert [r.node for r in one.records] != [r.node for r in four.records]
