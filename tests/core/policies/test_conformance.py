"""What every policy of the catalog keeps to, whatever its formula."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ids import NodeName
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies import catalog
from pointsman.core.policies.base import Policy
from pointsman.core.request import Request
from pointsman.core.row import Row
from tests.support.driver import request
from tests.support.rows import row
from tests.tidy.source_tree import ROOT

NAMES = catalog.names()
BY_KEY = {"consistent_hash"}  # a key has one home, ties or not
BY_LOT = {"random", "power_of_two"}

every_policy = pytest.mark.parametrize("name", NAMES)


@st.composite
def fields(draw: st.DrawFn) -> list[Row]:
    """Any field of one to six candidates, full ones and uncalibrated ones among them."""
    seconds = st.floats(0.0, 100.0)
    share = st.floats(0.0, 1.0)
    calibrated = draw(st.booleans())
    return [
        row(
            f"n{i}",
            hit=draw(st.integers(0, 62)) * 16,
            inflight=draw(st.integers(0, 99)),
            waiting=draw(st.integers(0, 20)),
            queue_tokens=draw(st.integers(0, 1_000_000)),
            queue_s=draw(seconds),
            work_s=(work_s := draw(seconds)),
            prefill_s=work_s + draw(seconds),
            room_wait_s=draw(seconds),
            decode_s=draw(seconds),
            stall_s=draw(seconds),
            slowdown_s=draw(seconds),
            uncached_s=work_s + draw(seconds),
            kv_share=draw(share),
            slo_share=draw(share),
            unhealthy=draw(share),
            fits=draw(st.booleans()),
            placed_order=i + 1,
            calibrated=calibrated,
        )
        for i in range(draw(st.integers(1, 6)))
    ]


def asked(number: int = 0) -> Request:
    return request(f"r{number}", f"prompt number {number} " * 100, session=f"s{number}")


def answer(policy: Policy, rows: list[Row], seed: int = 0) -> Choice | Hold:
    return policy.choose(asked(), rows, Random(seed))


@every_policy
def test_documents_have_a_row_of_it(name: str) -> None:
    for document in ("README.md", "docs/POLICIES.md"):
        rows = [line for line in (ROOT / document).read_text().splitlines() if line[:1] == "|"]
        assert any(f"`{name}`" in row.split("|")[1] for row in rows), document


@every_policy
@given(rows=fields())
def test_it_chooses_a_candidate_with_room_or_holds(name: str, rows: list[Row]) -> None:
    match answer(catalog.make(name), rows):
        case Choice(row=chosen, ties=ties, why=why):
            assert any(chosen is candidate for candidate in rows)
            assert chosen.fits
            assert 1 <= ties <= len(rows)
            assert why
        case Hold(why=why):
            assert why
            assert not all(candidate.fits for candidate in rows)


@every_policy
@given(rows=fields())
def test_it_answers_the_same_from_the_same_seed_and_changes_nothing_but_scores(
    name: str, rows: list[Row]
) -> None:
    policy = catalog.make(name)
    before = [_terms(candidate) for candidate in rows]
    answers = [_told(answer(policy, rows, seed=7)) for _ in range(3)]
    assert answers == [answers[0]] * 3
    assert [_terms(candidate) for candidate in rows] == before


@pytest.mark.parametrize("name", [n for n in NAMES if n not in BY_KEY | BY_LOT])
def test_exact_ties_take_turns(name: str) -> None:
    """Three equal nodes, each request finished before the next: a third each."""
    policy, placed = catalog.make(name), [0, 0, 0]
    for number in range(60):
        rows = [row(f"n{i}", placed_order=placed[i], uncached_s=1.0) for i in range(3)]
        asks = request(f"r{number}", f"prompt number {number} is its own")
        choice = policy.choose(asks, rows, Random(0))
        assert isinstance(choice, Choice), choice
        placed[rows.index(choice.row)] = number + 1
        policy.placed(asks, choice.row)
        policy.left(asks, choice.row.node)
    assert sorted(placed) == [58, 59, 60]


@every_policy
def test_a_full_field_is_held(name: str) -> None:
    held = answer(catalog.make(name), [row("a", fits=False, room_wait_s=1.0), row("b", fits=False)])
    assert isinstance(held, Hold), held


@every_policy
def test_what_it_never_placed_may_leave(name: str) -> None:
    """It was placed by the policy before this one."""
    policy, rows = catalog.make(name), [row("a"), row("b")]
    before = _told(answer(policy, rows))
    policy.left(asked(5), rows[0].node)
    assert _told(answer(policy, rows)) == before


@every_policy
def test_nodes_may_leave_before_what_runs_there_ends(name: str) -> None:
    policy, rows = catalog.make(name), [row("a"), row("b")]
    policy.placed(asked(), rows[0])
    for node in ("a", "never seen"):
        policy.gone(NodeName(node))
    policy.left(asked(), rows[0].node)
    assert isinstance(answer(policy, rows[1:]), Choice)


def _terms(row: Row) -> list[object]:
    return [value for name, value in row.fields().items() if name != "score"]


def _told(answered: Choice | Hold) -> tuple[str, ...]:
    if isinstance(answered, Choice):
        return (answered.row.node, str(answered.ties), answered.why)
    return (answered.why,)
