"""Decisions are remembered newest first, and never without bound."""

from pointsman.core.ids import RequestId
from pointsman.telemetry.decisions import DecisionRing
from tests.telemetry.records import decision


def test_every_decision_about_a_request_is_found() -> None:
    ring = DecisionRing()
    ring.record(decision("a"))
    ring.record(decision("b"))
    ring.record(decision("a", attempt=2))
    assert [d.attempt for d in ring.of(RequestId("a"))] == [1, 2]
    assert ring.of(RequestId("none")) == []


def test_the_oldest_requests_are_forgotten() -> None:
    ring = DecisionRing(3)
    for name in ("a", "a", "b", "c", "d"):
        ring.record(decision(name))
    assert [d.request_id for d in ring.latest(10)] == ["d", "c", "b"]
    assert len(ring) == 3


def test_one_request_cannot_grow_beyond_the_bound() -> None:
    ring = DecisionRing(2)
    for attempt in range(5):
        ring.record(decision("a", attempt=attempt))
    assert len(ring) <= 2


def test_the_latest_can_be_filtered() -> None:
    ring = DecisionRing()
    ring.record(decision("a", node="n1", model="m1"))
    ring.record(decision("b", node="n2", model="m1"))
    ring.record(decision("c", node="n1", model="m2"))
    assert [d.request_id for d in ring.latest(10, node="n1")] == ["c", "a"]
    assert [d.request_id for d in ring.latest(10, model="m1")] == ["b", "a"]
    assert [d.request_id for d in ring.latest(1)] == ["c"]
    assert ring.latest(0) == []


def test_none_are_kept_when_switched_off() -> None:
    ring = DecisionRing(0)
    ring.record(decision("a"))
    assert ring.latest(10) == []
