"""Mixed traffic: parts keep apart what is theirs, and begin and end when they should."""

from random import Random

import msgspec
import pytest

from pointsman.traffic.crowd import crowd
from pointsman.traffic.mix import Part, mix_problems, mixed, seed_of_part
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.source import Source, problems, stream


def part(name: str, **fields: object) -> Part:
    return msgspec.convert(
        {"name": name, "workload": "shared-prefix", "rate_rps": 5, **fields}, Part
    )


def ask(at_s: float, **fields: object) -> TrafficRequest:
    plain = TrafficRequest(
        at_s=at_s, input_tokens=32, output_tokens=1, block_ids=(0, 1), block_tokens=16
    )
    return msgspec.structs.replace(plain, **fields)


def test_parts_come_together_in_order_of_arrival() -> None:
    late = part("late", start_s=10, priority=-10, tenant="flood")
    made = mixed([(part("base"), (ask(0), ask(12))), (late, (ask(0), ask(1)))])
    assert [(r.at_s, r.part, r.priority, r.tenant) for r in made] == [
        (0, "base", 0, ""),
        (10, "late", -10, "flood"),
        (11, "late", -10, "flood"),
        (12, "base", 0, ""),
    ]


def test_parts_share_no_prefix_and_no_session() -> None:
    made = mixed([(part(name), (ask(0, session="s"),)) for name in ("a", "b")])
    first, second = made
    assert not set(first.block_ids) & set(second.block_ids)
    assert [r.session for r in made] == ["a/s", "b/s"]


def test_parts_of_one_kind_differ_under_one_seed() -> None:
    source = part("a", limit=20)
    streams = [stream(source, seed=seed_of_part(7, place)) for place in range(2)]
    assert [r.at_s for r in streams[0]] != [r.at_s for r in streams[1]]


def test_two_parts_of_one_name_are_a_problem() -> None:
    [(place, problem)] = mix_problems([part("a"), part("b"), part("a")])
    assert (place, problem.field) == (2, "name")


@pytest.mark.parametrize("workload", ["shared-prefix", "chat", "priority-mix"])
def test_a_workload_lasts_as_long_as_it_is_told(workload: str) -> None:
    source = Source(workload=workload, rate_rps=20, duration_s=10, speed=2)
    arrivals_s = [request.at_s for request in stream(source, seed=1)]
    assert 9 < arrivals_s[-1] < 10
    assert 100 < len(arrivals_s) < 600  # about 40 a second, but for chats that are to grow yet
    assert arrivals_s == [request.at_s for request in stream(source, seed=1)]


def test_a_trace_has_a_window_and_no_duration() -> None:
    [problem] = problems(Source(trace="t", duration_s=5))
    assert problem.field == "duration_s"


def test_a_crowd_is_of_so_many_users_who_stay_with_their_prefix() -> None:
    made = crowd(requests=3_000, rate_rps=50, rng=Random(3), users=100, prefixes=10, skew=1.5)
    prefix_of = {request.session: request.tenant for request in made}
    assert len(prefix_of) == 100
    assert all(prefix_of[request.session] == request.tenant for request in made)
    assert [r.turn for r in made if r.session == "user-7"] == list(range(30))
    popular = sum(tenant == "prefix-0" for tenant in prefix_of.values())
    assert popular > 2 * sum(tenant == "prefix-4" for tenant in prefix_of.values()) > 0


def test_a_crowd_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        crowd(requests=5, rate_rps=1, rng=Random(0), users=0)
