"""Sources: what is wrong is named by its field, and the same seed gives the same stream."""

import msgspec
import pytest

from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.source import Source, Window, problems, stream
from pointsman.traffic.trace import Trace, TraceFormat

REQUESTS = tuple(TrafficRequest(at_s=at_s, input_tokens=9, output_tokens=1) for at_s in range(10))
TRACE = Trace(name="t", format=TraceFormat.SLICE, requests=REQUESTS, notes=())


def found(**fields: object) -> list[tuple[str, str]]:
    source = msgspec.convert(fields, Source)
    return [(problem.field, problem.message) for problem in problems(source)]


def test_a_whole_source_has_no_problems() -> None:
    assert found(trace="t", window={"end_s": 3}, rate_rps=2, limit=3) == []
    assert found(workload="chat", rate_rps=2, parameters={"turns_mean": 2.5}) == []


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({}, "", "either a trace or a workload"),
        ({"trace": "t", "workload": "chat"}, "", "either"),
        ({"trace": "t", "parameters": {"tenants": 3}}, "parameters", "a trace has no"),
        ({"trace": "t", "window": {"start_s": 3, "end_s": 3}}, "window", "ends before"),
        ({"workload": "chta", "rate_rps": 1}, "workload", "'chta' is none of"),
        ({"workload": "chat"}, "", "'rate_rps' is missing"),
        ({"workload": "chat", "rate_rps": 1, "window": {"end_s": 3}}, "window", "no recording"),
        (
            {"workload": "shared-prefix", "rate_rps": 1, "parameters": {"tenant": 3}},
            "parameters",
            "'tenant' is no parameter of shared-prefix: tenants",
        ),
        (
            {"workload": "shared-prefix", "rate_rps": 1, "parameters": {"tenants": 2.5}},
            "parameters",
            "whole number",
        ),
        (
            {"workload": "shared-prefix", "rate_rps": 1, "parameters": {"tenants": float("nan")}},
            "parameters",
            "'tenants' is to be a whole number of at least 0, not nan",
        ),
    ],
)
def test_problems_name_their_field(fields: dict[str, object], field: str, words: str) -> None:
    [(where, message)] = found(**fields)
    assert where == field
    assert words in message


def test_a_trace_is_cut_before_it_is_sped_up() -> None:
    source = Source(trace="t", window=Window(start_s=2, end_s=8), limit=3, speed=2.0)
    assert [r.at_s for r in stream(source, seed=0, trace=TRACE)] == [0.0, 0.5, 1.0]


def test_an_empty_window_is_an_error() -> None:
    source = Source(trace="t", window=Window(start_s=20, end_s=30))
    with pytest.raises(ValueError, match="no request arrives in 20 s to 30 s"):
        stream(source, seed=0, trace=TRACE)


@pytest.mark.parametrize("many", [{"limit": 10**12}, {"duration_s": 1e9}])
def test_more_requests_than_memory_holds_are_not_made(many: dict[str, float]) -> None:
    source = msgspec.convert({"workload": "chat", "rate_rps": 1e9, **many}, Source)
    with pytest.raises(ValueError, match="requests are too many to hold"):
        stream(source, seed=0)


def test_the_seed_makes_workloads_and_new_arrivals() -> None:
    made = Source(workload="shared-prefix", rate_rps=5.0, limit=20, parameters={"tenants": 3.0})
    anew = Source(trace="t", rate_rps=5.0)
    moved = Source(trace="t")
    assert stream(moved, seed=0, trace=TRACE) == TRACE.requests
    for source in (made, anew, moved):
        first = stream(source, seed=1, trace=None if source is made else TRACE)
        assert first == stream(source, seed=1, trace=None if source is made else TRACE)
        assert first != stream(source, seed=2, trace=None if source is made else TRACE)
    assert len({r.tenant for r in stream(made, seed=1)}) == 3
