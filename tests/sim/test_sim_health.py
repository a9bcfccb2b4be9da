"""What becomes of requests when nodes slow down, hang, flap, restart and join: the real scheduler
before simulated engines. Each is held against the same traffic without the fault."""

from collections.abc import Sequence
from random import Random

import pytest

from pointsman.core.options import SchedulerOptions
from pointsman.core.rules import HealthRules
from pointsman.sim import Scenario, simulate
from pointsman.sim.scenario import Fault, FaultKind, NodeGroup
from pointsman.traffic.outcome import RequestRecord
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.sessions import chat

NODE = "node-2"
AT_S = 30.0
END_S = 75.0
RATE_RPS = 20.0


def traffic() -> tuple[TrafficRequest, ...]:
    """A minute or so of conversations."""
    return chat(requests=int(END_S * RATE_RPS), rate_rps=RATE_RPS, rng=Random(7))


def run(
    *faults: Fault, fleet: Sequence[NodeGroup] = (), policy: str = "marginal_cost", **rules: float
) -> ReplayedRun:
    fleet = tuple(fleet) or (NodeGroup(count=6),)
    scenario = Scenario(name="health", fleet=fleet, faults=faults)
    options = SchedulerOptions(health=HealthRules(**rules))  # type: ignore[arg-type]  # test keywords
    return simulate(scenario, traffic(), policy=policy, seed=7, options=options)


def on_node(kind: FaultKind, duration_s: float, factor: float = 1.0) -> Fault:
    return Fault(kind=kind, at_s=AT_S, duration_s=duration_s, nodes=(NODE,), factor=factor)


def between(replayed: ReplayedRun, begin_s: float, end_s: float) -> list[RequestRecord]:
    return [record for record in replayed.records if begin_s <= record.due_s < end_s]


def ttft_p99_s(records: Sequence[RequestRecord]) -> float:
    times = sorted(record.ttft_s for record in records if record.ttft_s is not None)
    return times[int(0.99 * len(times))]


def hit_share(records: Sequence[RequestRecord]) -> float:
    cached = sum(record.cached_tokens or 0 for record in records)
    return cached / sum(record.input_tokens for record in records)


@pytest.fixture(scope="module")
def well() -> ReplayedRun:
    return run()


def test_a_node_that_hangs_costs_nobody_more_than_its_discovery(well: ReplayedRun) -> None:
    hanging = run(on_node(FaultKind.HANG, 40.0))
    assert not [record for record in hanging.records if record.failed]
    latest_s = max(record.ttft_s or 0.0 for record in hanging.records)
    assert latest_s < 6.0, "found within some seconds, and taken back"
    after = between(hanging, AT_S + 5, AT_S + 40)
    late = [record for record in after if (record.ttft_s or 0.0) > 1.0]
    assert len(late) <= 6, "a trial now and then"
    assert ttft_p99_s(between(well, AT_S + 5, AT_S + 40)) < 1.0


def test_a_node_that_becomes_slow_is_spared_within_five_seconds(well: ReplayedRun) -> None:
    slow = run(on_node(FaultKind.SLOW, 40.0, factor=10.0))
    assert not [record for record in slow.records if record.failed]
    after, calm = between(slow, AT_S + 5, AT_S + 40), between(well, AT_S + 5, AT_S + 40)
    rest = [record for record in after if record.node != NODE]
    assert ttft_p99_s(rest) < 1.5 * ttft_p99_s(calm)
    late = [record for record in after if (record.ttft_s or 0.0) > 0.3]
    assert len(late) < 0.01 * len(after), "a trial now and then"


def test_a_node_that_flaps_keeps_its_hits_and_takes_none_with_it(well: ReplayedRun) -> None:
    flapping = run(on_node(FaultKind.FLAP, 20.0))
    assert not [record for record in flapping.records if record.failed]
    after, calm = between(flapping, AT_S + 20, END_S), between(well, AT_S + 20, END_S)
    assert hit_share(after) >= 0.95 * hit_share(calm)


def test_all_nodes_restart_one_by_one_and_only_begun_streams_break() -> None:
    restarts = [
        Fault(kind=FaultKind.CRASH, at_s=AT_S + 6 * n, duration_s=3.0, nodes=(f"node-{n}",))
        for n in range(6)
    ]
    replayed = run(*restarts)
    failed = [record for record in replayed.records if record.failed]
    assert {record.outcome for record in failed} <= {"truncated"}
    assert all(record.ttft_s is not None for record in failed), "past their first byte"
    assert ttft_p99_s(between(replayed, AT_S, END_S)) < 1.0


@pytest.mark.parametrize("policy", ["marginal_cost", "round_robin"])
def test_cold_engines_that_join_get_little_until_they_are_warm(policy: str) -> None:
    """They are slow at first: they compile, allocate, and have nothing cached."""
    fleet = (NodeGroup(count=6), NodeGroup(count=3, startup_s=AT_S))
    new = tuple(f"node-{n}" for n in range(6, 9))
    cold = Fault(kind=FaultKind.SLOW, at_s=AT_S - 1, duration_s=16.0, nodes=new, factor=8.0)

    def given(slow_start_s: float) -> tuple[int, float]:
        """Requests to cold engines, and how long they wait in all."""
        replayed = run(cold, fleet=fleet, policy=policy, slow_start_s=slow_start_s)
        there = [r for r in between(replayed, AT_S, AT_S + 15) if r.node in new]
        return len(there), sum(record.ttft_s or 0.0 for record in there)

    slowly, at_once = given(30.0), given(0.0)
    assert slowly[0] <= 0.75 * at_once[0]
    assert slowly[1] < at_once[1]


def test_a_cluster_that_is_well_decides_as_if_nobody_judged_it(well: ReplayedRun) -> None:
    unjudged = run(slow_factor=1e6, overdue_factor=1e6, request_failures_max=1_000)
    assert [r.node for r in unjudged.records] == [r.node for r in well.records]
