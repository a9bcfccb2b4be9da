"""Whatever befalls the nodes, in whatever order: every request ends once, and nothing is left."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.sim import Scenario
from pointsman.sim.scenario import (
    Backoff,
    Clients,
    Fault,
    FaultKind,
    Index,
    Knowledge,
    NodeGroup,
)
from pointsman.traffic.outcome import Outcome
from pointsman.traffic.request import TrafficRequest
from tests.support.profiles import SMALL
from tests.support.simulation import ask, in_order, run, small

FAULTS = st.lists(
    st.builds(
        Fault,
        kind=st.sampled_from(FaultKind),
        at_s=st.integers(0, 12).map(lambda tenths: tenths / 2),
        duration_s=st.sampled_from([0.1, 0.5, 2.0, 7.5, 1e6]),
        nodes=st.sampled_from([(), ("node-0",), ("node-1",), ("node-2", "node-0")]),
        factor=st.sampled_from([0.5, 1.0, 3.0]),
        period_s=st.sampled_from([0.3, 2.0]),
    ),
    max_size=5,
)
CLIENTS = st.builds(
    Clients,
    closed_loop=st.booleans(),
    bounds_output=st.booleans(),
    retries_max=st.sampled_from([0, 1, 5]),
    backoff=st.sampled_from(Backoff),
    timeout_s=st.sampled_from([None, 0.0001, 0.05, 1.0]),
)
KNOWLEDGE = st.builds(
    Knowledge,
    index=st.sampled_from(Index),
    event_lag_s=st.sampled_from([0.0, 0.01, 0.7]),
    event_loss=st.sampled_from([0.0, 0.3, 1.0]),
    report_interval_s=st.sampled_from([0.25, 1.0]),
    report_lag_s=st.sampled_from([0.0, 0.5]),
)
REQUESTS = st.lists(
    st.builds(
        ask,
        at_s=st.integers(0, 60).map(lambda tenths: tenths / 10),
        prompt=st.sampled_from([1, 16, 100, 400, 1_000, 2_000]),
        output=st.integers(1, 60),
        prefix=st.integers(0, 3),
        session=st.sampled_from(["", "a", "b"]),
        think_s=st.sampled_from([0.0, 0.5]),
    ),
    min_size=1,
    max_size=25,
).map(in_order)
POLICIES = st.sampled_from(["marginal_cost", "round_robin", "session", "jffc", "dynamo"])


@settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    faults=FAULTS,
    clients=CLIENTS,
    knowledge=KNOWLEDGE,
    gateways=st.integers(1, 3),
    startup_s=st.sampled_from([0.0, 1.5]),
    policy=POLICIES,
)
def test_each_request_ends_once(
    requests: list[TrafficRequest],
    faults: list[Fault],
    clients: Clients,
    knowledge: Knowledge,
    gateways: int,
    startup_s: float,
    policy: str,
) -> None:
    fleet = (
        NodeGroup(count=2, profile=SMALL),
        NodeGroup(profile=SMALL, slowdown=2.0, block_tokens=8, startup_s=startup_s),
    )
    scenario = Scenario(
        name="trouble",
        fleet=fleet,
        gateways=gateways,
        knowledge=knowledge,
        clients=clients,
        faults=tuple(faults),
    )
    replayed = run(scenario, requests, policy=policy)
    assert len(requests) <= replayed.attempts <= len(requests) * (1 + clients.retries_max)
    for record in replayed.records:
        assert record.e2e_s >= 0
        assert record.failed == (record.outcome is not Outcome.OK)
        if not record.failed:
            assert record.ttft_s is not None
            assert 0 < record.ttft_s <= record.e2e_s
            assert record.node in {"node-0", "node-1", "node-2"}
            assert 0 <= (record.cached_tokens or 0) < record.input_tokens


def fault(kind: FaultKind, at_s: float, duration_s: float, **more: object) -> Fault:
    made = Fault(kind=kind, at_s=at_s, duration_s=duration_s, nodes=("node-0",))
    return msgspec.structs.replace(made, **more)


STEADY = [ask(at_s / 4, 64, 8) for at_s in range(80)]  # 20 s


def answered_s(*faults: Fault, count: int = 1) -> list[float]:
    """When requests of a steady stream are answered, 1e9 for never."""
    scenario = small(count, faults=faults)
    records = run(scenario, STEADY).records
    return [1e9 if r.failed or r.ttft_s is None else r.due_s + r.ttft_s for r in records]


def late(times_s: list[float], *, between: tuple[float, float]) -> bool:
    """Whether nothing is answered in that time."""
    return not any(between[0] < time_s < between[1] for time_s in times_s)


def test_a_crash_breaks_what_runs_and_is_over_after_its_time() -> None:
    times_s = answered_s(fault(FaultKind.CRASH, 5.0, 4.0))
    assert late(times_s, between=(5.01, 9.0))
    assert not late(times_s, between=(9.0, 11.5))
    assert sum(time_s == 1e9 for time_s in times_s) >= 4 * 4


def test_overlapping_crashes_last_until_the_later_end() -> None:
    for faults in (
        (fault(FaultKind.CRASH, 5.0, 2.0), fault(FaultKind.CRASH, 6.0, 4.0)),
        (fault(FaultKind.CRASH, 5.0, 5.0), fault(FaultKind.CRASH, 6.0, 1.0)),
        (fault(FaultKind.CRASH, 5.0, 5.0), fault(FaultKind.CRASH, 5.0, 5.0)),
    ):
        times_s = answered_s(*faults)
        assert late(times_s, between=(5.01, 10.0))
        assert not late(times_s, between=(10.0, 13.0))


def test_a_crash_ends_a_hang() -> None:
    times_s = answered_s(fault(FaultKind.HANG, 4.0, 100.0), fault(FaultKind.CRASH, 6.0, 1.0))
    assert late(times_s, between=(4.1, 7.0))
    assert not late(times_s, between=(7.0, 10.0))


def test_hangs_hold_answers_back_until_the_later_end() -> None:
    times_s = answered_s(fault(FaultKind.HANG, 4.0, 3.0), fault(FaultKind.HANG, 5.0, 4.0))
    assert late(times_s, between=(4.1, 9.0))
    assert all(time_s < 1e9 for time_s in times_s)


def test_slow_downs_multiply_and_end_one_by_one() -> None:
    single = [msgspec.structs.replace(request, output_tokens=1) for request in STEADY]

    def ttft_s(*faults: Fault) -> list[float | None]:
        return [r.ttft_s for r in run(small(1, faults=faults), single).records]

    usual_s = 0.01 + 64e-4 + 64**2 * 1e-8
    seen = ttft_s(
        fault(FaultKind.SLOW, 4.9, 8.0, factor=2.0), fault(FaultKind.SLOW, 7.9, 2.0, factor=3.0)
    )
    network_s = 0.005 + 4 * 0.0005
    for at_s, factor in ((4, 1), (6, 2), (8, 6), (9, 6), (11, 2), (14, 1)):
        assert seen[4 * at_s] == pytest.approx(network_s + factor * usual_s, abs=1e-9)


def test_a_partition_is_healed_only_when_both_are_over() -> None:
    """Nobody can tell from a partitioned node that it is well: it is given up, and probed."""
    twice = (fault(FaultKind.PARTITION, 1.0, 12.0), fault(FaultKind.PARTITION, 2.0, 4.0))
    replayed = run(small(2, faults=twice), STEADY, policy="round_robin")
    used = {record.due_s for record in replayed.records if record.node == "node-0"}
    assert not any(12.5 < due_s < 13.0 for due_s in used)
    assert not any(record.failed for record in replayed.records)
    assert any(due_s > 15.0 for due_s in used)


def test_flapping_ends_well() -> None:
    """It ends in the middle of a failing period, and would otherwise fail for ever."""
    flaps = fault(FaultKind.FLAP, 1.0, 9.0, period_s=4.0)
    replayed = run(small(2, faults=(flaps,)), STEADY, policy="round_robin")
    used = {record.due_s for record in replayed.records if record.node == "node-0"}
    assert not any(record.failed for record in replayed.records)
    assert any(due_s > 15.0 for due_s in used)
    assert not any(4.5 < due_s < 5.0 for due_s in used)  # three probes have failed by then


def test_two_flaps_at_once_end_well_too() -> None:
    flaps = [
        fault(FaultKind.FLAP, at_s, 7.1, period_s=period_s) for at_s, period_s in ((1, 2), (2, 3))
    ]
    replayed = run(small(2, faults=tuple(flaps)), STEADY, policy="round_robin")
    assert any(r.due_s > 14.0 for r in replayed.records if r.node == "node-0")


def test_a_fault_past_the_end_changes_nothing() -> None:
    for kind in FaultKind:
        later = Fault(kind=kind, at_s=1e7, duration_s=5.0, factor=0.5)
        assert run(small(faults=(later,)), STEADY).records == run(small(), STEADY).records


def test_a_fault_before_a_node_starts_changes_its_start() -> None:
    fleet = (NodeGroup(profile=SMALL, startup_s=5.0),)
    early = (
        fault(FaultKind.CRASH, 1.0, 8.0),
        fault(FaultKind.FLAP, 0.0, 3.0),
        fault(FaultKind.PARTITION, 0.0, 3.0),
        fault(FaultKind.SLOW, 0.0, 1e6, factor=2.0),
    )
    records = run(Scenario(name="early", fleet=fleet, faults=early), STEADY).records
    answered = [record for record in records if not record.failed]
    assert 9.0 <= answered[0].due_s < 12.0
    usual_s = 0.01 + 64e-4 + 64**2 * 1e-8
    assert answered[-1].ttft_s == pytest.approx(0.007 + 2 * usual_s, abs=1e-9)


def test_a_short_crash_before_the_start_does_not_start_it() -> None:
    fleet = (NodeGroup(profile=SMALL, startup_s=5.0),)
    early = (fault(FaultKind.CRASH, 1.0, 1.0),)
    records = run(Scenario(name="early", fleet=fleet, faults=early), STEADY).records
    assert min(record.due_s for record in records if not record.failed) >= 4.0


@pytest.mark.parametrize(
    ("count", "remedy"), [(3, "nodes are node-0 to node-2"), (1, "the only node is node-0")]
)
def test_a_wrong_name_is_an_error_with_the_right_ones(count: int, remedy: str) -> None:
    wrong = (fault(FaultKind.CRASH, 0.0, 1.0, nodes=("node-0", "node-9")),)
    with pytest.raises(ValueError, match=f"'node-9'. Remedy: {remedy}"):
        run(small(count, faults=wrong), STEADY)


def test_a_node_named_twice_is_one_node() -> None:
    once, twice = (
        answered_s(fault(FaultKind.SLOW, 1.0, 5.0, factor=3.0, nodes=("node-0",) * times))
        for times in (1, 2)
    )
    assert once == twice


def test_a_fault_repeats_and_takes_turns() -> None:
    fault = Fault(kind=FaultKind.CRASH, at_s=10, duration_s=2, repeat=3, every_s=5, stagger_s=1)
    assert fault.begins_s(0) == (10, 15, 20)
    assert fault.begins_s(2) == (12, 17, 22)
    scenario = small(3, faults=(fault, Fault(kind=FaultKind.HANG, at_s=30, duration_s=5)))
    assert [small(3).troubled_s, scenario.troubled_s] == [None, (10, 35)]


def test_a_rolling_restart_breaks_what_is_on_each_node_in_its_turn() -> None:
    restart = Fault(kind=FaultKind.CRASH, at_s=5.0, duration_s=1.0, stagger_s=5.0)
    long_ones = in_order([ask(at_s, 16, 60) for at_s in (4.9, 4.9, 9.9, 9.9)])
    ended = run(small(2, faults=(restart,)), long_ones)
    broken = [record.node for record in ended.records if record.outcome is Outcome.TRUNCATED]
    assert broken == ["node-0", "node-1"]
