"""A retry storm on virtual time, with the guard and without: the same clients, the same engines."""

from collections.abc import Sequence
from functools import cache

import msgspec

from pointsman.core.options import SchedulerOptions
from pointsman.core.rules import GuardRules
from pointsman.sim import simulate
from pointsman.sim.scenario import Backoff, Clients
from pointsman.traffic.outcome import RequestRecord
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.request import TrafficRequest
from tests.support.simulation import ask, in_order, small

STORM_S = (20.0, 35.0)
HASTY = Clients(retries_max=10, backoff=Backoff.NONE, timeout_s=2.0)


def traffic() -> list[TrafficRequest]:
    """Two nodes can do about 20 of these a second: the patient send 6, the hasty 16."""
    patient = [
        ask(n / 6, 480, 8, session=f"patient-{n % 20}", part="patient") for n in range(6 * 60)
    ]
    hasty = [
        ask(STORM_S[0] + n / 16, 480, 8, session=f"hasty-{n % 30}", part="hasty")
        for n in range(16 * 15)
    ]
    return in_order([*patient, *hasty])


@cache
def storm(*, enabled: bool, address: str = "") -> ReplayedRun:
    """All from one `address` without a key, or each a client of its own."""
    options = SchedulerOptions(retry_guard=GuardRules(enabled=enabled))
    hasty = msgspec.structs.replace(HASTY, address=address)
    by_part = {"hasty": hasty, "patient": Clients(address=address)}
    scenario = small(2, clients_by_part=by_part)
    return simulate(scenario, traffic(), policy="marginal_cost", options=options)


def patient(run: ReplayedRun, from_s: float, to_s: float) -> list[RequestRecord]:
    return [r for r in run.records if r.part == "patient" and from_s <= r.due_s < to_s]


def amplification(run: ReplayedRun) -> float:
    """Placements for each request that was placed."""
    placements = [record.placements for record in run.records]
    return sum(placements) / sum(map(bool, placements))


def ttft_p95_s(records: Sequence[RequestRecord]) -> float:
    told = sorted(record.ttft_s for record in records if record.ttft_s is not None)
    return told[int(0.95 * len(told))]


def test_engines_see_each_request_once() -> None:
    assert amplification(storm(enabled=True)) <= 1.05
    assert amplification(storm(enabled=False)) > 1.5


def test_ten_seconds_after_the_storm_all_is_as_before() -> None:
    end_s = STORM_S[1] + 10.0
    with_guard, without = (patient(storm(enabled=e), end_s, 60.0) for e in (True, False))
    before_s = ttft_p95_s(patient(storm(enabled=True), 5.0, STORM_S[0]))
    assert ttft_p95_s(with_guard) <= 1.2 * before_s
    assert ttft_p95_s(without) > 2.0 * before_s


def test_the_patient_are_all_served() -> None:
    assert not any(record.failed for record in patient(storm(enabled=True), 0.0, 60.0))


def test_behind_one_address_the_patient_are_served_too_and_engines_see_each_request_once() -> None:
    """An ingress in front, and nobody has a key."""
    behind_one = storm(enabled=True, address="ingress")
    assert not any(record.failed for record in patient(behind_one, 0.0, 60.0))
    assert amplification(behind_one) <= 1.05
