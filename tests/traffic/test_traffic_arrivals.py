"""Arrivals moved at random: how far, in which order, and nothing else changed."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman.traffic.arrivals import jittered, on_off, spread_ticks
from pointsman.traffic.request import TrafficRequest, conversations


def request(at_s: float, number: int = 0, session: str = "") -> TrafficRequest:
    return TrafficRequest(at_s=at_s, input_tokens=number, output_tokens=1, session=session)


STREAMS = st.lists(
    st.tuples(st.floats(min_value=0, max_value=1e4), st.sampled_from(["", "a", "b"])), max_size=30
).map(
    lambda rows: tuple(
        request(at_s, number, session) for number, (at_s, session) in enumerate(sorted(rows))
    )
)


@given(STREAMS, st.integers(), st.sampled_from([None, 0.5, 3.0]))
def test_the_same_requests_in_order_and_turns_in_theirs(
    stream: tuple[TrafficRequest, ...], seed: int, tick_s: float | None
) -> None:
    moved = jittered(stream, rng=Random(seed), tick_s=tick_s)
    assert moved == jittered(stream, rng=Random(seed), tick_s=tick_s)
    assert [r.at_s for r in moved] == sorted(r.at_s for r in moved)
    assert min((r.at_s for r in moved), default=0.0) >= 0
    assert sorted(replace(r, at_s=0.0).input_tokens for r in moved) == list(range(len(stream)))
    for turns in conversations(moved):
        numbers = [turn.input_tokens for turn in turns]
        assert numbers == sorted(numbers)


def test_nothing_moves_further_than_a_mean_gap() -> None:
    rng = Random(1)
    stream = tuple(request(at_s, number) for number, at_s in enumerate(range(0, 3_000, 3)))
    moved = {r.input_tokens: r.at_s for r in jittered(stream, rng=rng)}
    distances_s = [abs(moved[r.input_tokens] - r.at_s) for r in stream]
    assert max(distances_s) <= 3.0
    assert max(distances_s) > 2.5
    assert len(set(distances_s)) > 900


def test_arrivals_of_a_tick_stay_in_it() -> None:
    stamps_s = [3.0 * (number // 9) for number in range(900)]
    spread_s, tick_s = spread_ticks(stamps_s)
    assert tick_s == 3.0
    stream = tuple(request(at_s, number) for number, at_s in enumerate(spread_s))
    moved = {r.input_tokens: r.at_s for r in jittered(stream, rng=Random(2), tick_s=tick_s)}
    assert all(0 <= moved[number] - stamps_s[number] < 3.0 for number in range(900))
    assert any(moved[number + 1] < moved[number] for number in range(899))


def test_seeds_differ_and_little_is_left_alone() -> None:
    stream = (request(0.0), request(1.0, 1))
    assert jittered(stream, rng=Random(1)) != jittered(stream, rng=Random(2))
    assert jittered(stream[:1], rng=Random(1)) == stream[:1]
    assert jittered((), rng=Random(1)) == ()


def test_on_off_keeps_the_order_and_wants_positive_rates() -> None:
    stream = [request(0.0, number) for number in range(50)]
    made = on_off(stream, rate_rps=5, on_s_mean=1, off_s_mean=9, rng=Random(1))
    assert [r.input_tokens for r in made] == list(range(50))
    assert made[0].at_s == 0
    assert all(after.at_s >= before.at_s for before, after in pairwise(made))
    for wrong in ({"rate_rps": 0}, {"on_s_mean": 0}, {"off_s_mean": -1}):
        given = {"rate_rps": 5.0, "on_s_mean": 1.0, "off_s_mean": 1.0} | wrong
        with pytest.raises(ValueError, match="above 0"):
            on_off(stream, rng=Random(1), **given)
