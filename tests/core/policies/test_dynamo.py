"""Dynamo's formula by hand: blocks to prefill, less what is cached, and blocks to hold."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.blocks import Prompt
from pointsman.core.ids import BlockHash, NodeName, RequestId
from pointsman.core.policies.dynamo import ActiveBlocks, Dynamo
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.scheme import Scheme, Unit
from tests.support.driver import request
from tests.support.rows import row

TOKENS = Scheme(Unit.TOKENS, 16)
A, B = NodeName("a"), NodeName("b")


def asked(request_id: str, *blocks: int, rest: int = 0) -> Request:
    """A prompt of whole blocks, each all of one number, and `rest` tokens more."""
    tokens = [number for block in blocks for number in [block] * 16] + [99] * rest
    return request(request_id, "", tokens=tokens)


def scores(policy: Dynamo, asks: Request, *rows: Row) -> list[float]:
    """In blocks of 16 tokens."""
    policy.choose(asks, rows, Random(0))
    return [candidate.score / 16 for candidate in rows]


def rows(blocks: int, *, hit: int = 0, queue: int = 0) -> tuple[Row, Row]:
    """Node a holds `hit` blocks of the prompt and has `queue` tokens to prefill; b is idle."""
    prompt = 16 * blocks
    return row("a", hit=16 * hit, prompt=prompt, queue_tokens=queue), row("b", prompt=prompt)


def test_an_idle_node_prefills_and_holds_every_block() -> None:
    assert scores(Dynamo(), asked("r", 1, 2, 3, 4), *rows(4)) == [8.0, 8.0]


def test_what_is_cached_is_not_prefilled_but_held() -> None:
    assert scores(Dynamo(), asked("r", 1, 2, 3, 4), *rows(4, hit=3)) == [5.0, 8.0]


def test_prefill_counts_by_tokens_and_holding_by_whole_blocks() -> None:
    asks = asked("r", 1, 2, rest=8)
    assert scores(Dynamo(), asks, row("a", prompt=40)) == [2.5 + 2]


def test_a_queue_counts_in_blocks() -> None:
    assert scores(Dynamo(), asked("r", 1), *rows(1, queue=40)) == [2.5 + 2.0, 2.0]


def test_blocks_in_flight_are_held_once() -> None:
    policy = Dynamo()
    policy.placed(asked("x", 1, 2, 3), row("a"))
    policy.placed(asked("y", 1, 2, 4), row("a"))
    assert scores(policy, asked("r", 5, 6), *rows(2)) == [2 + 4 + 2, 4]


def test_what_is_in_flight_already_adds_nothing() -> None:
    policy = Dynamo()
    policy.placed(asked("x", 1, 2, 3), row("a"))
    assert scores(policy, asked("r", 1, 2, 9, 9), *rows(4, hit=2)) == [2 + 3 + 2, 8]


def test_who_leaves_takes_its_own_blocks_along() -> None:
    policy = Dynamo()
    x, y = asked("x", 1, 2, 3), asked("y", 1, 2, 4)
    policy.placed(x, row("a"))
    policy.placed(y, row("a"))
    policy.left(x, A)
    assert scores(policy, asked("r", 5), *rows(1)) == [1 + 3 + 1, 2]
    policy.left(y, A)
    policy.left(y, A)
    assert scores(policy, asked("r", 5), *rows(1)) == [2, 2]


def test_text_counts_as_the_tokens_it_makes() -> None:
    """512 bytes a block, here 256 tokens each: 16 of Dynamo's blocks."""
    policy, text = Dynamo(), "x" * 1_024
    policy.placed(request("x", "y" * 512), row("a"))
    got = scores(policy, request("r", text), row("a", prompt=512), row("b", prompt=512))
    assert got == pytest.approx([32 + 16 + 32, 32 + 32])


def test_blocks_are_those_of_the_node() -> None:
    """A trace's prompt is known by its blocks alone, which may be large."""
    policy, large = Dynamo(), Scheme(Unit.TOKENS, 512)

    def traced(request_id: str, *blocks: int) -> Request:
        asked = request(request_id)
        hashes = chain(list(blocks))
        prompt = Prompt.chained(asked.prompt.namespace, 512 * len(blocks), {large: hashes})
        return asked.but(prompt=prompt)

    policy.placed(traced("x", 1, 2), row("a", block_tokens=512))
    rows = [row(name, prompt=1_024, block_tokens=512) for name in "ab"]
    assert scores(policy, traced("r", 1, 0), *rows) == [64 + 64 + 32, 64 + 64]


CHAINS = st.lists(st.integers(0, 2), max_size=6)
BOOKINGS = st.lists(
    st.tuples(st.sampled_from([A, B]), CHAINS, st.booleans()), min_size=1, max_size=12
)


@given(bookings=BOOKINGS, asks=CHAINS)
def test_active_blocks_are_those_of_a_set(
    bookings: list[tuple[NodeName, list[int], bool]], asks: list[int]
) -> None:
    """Fast structure against slow twin: a set of prefixes for each node."""
    active, sets = ActiveBlocks(), {A: set[int](), B: set[int]()}
    for number, (node, path, leaves) in enumerate(bookings):
        active.add(RequestId(f"r{number}"), node, TOKENS, chain(path))
        if leaves:
            active.remove(RequestId(f"r{number}"))
        else:
            sets[node].update(chain(path))
    for node, blocks in sets.items():
        assert held(active, asks, node) == len(blocks | set(chain(asks)))
    for number in range(len(bookings)):
        active.remove(RequestId(f"r{number}"))
    assert (active._uses, active._counts) == ({}, {}), "nodes come and go under new names"


def test_above_the_bound_blocks_are_counted_and_not_remembered() -> None:
    active = ActiveBlocks(blocks_max=4)
    active.add(RequestId("x"), A, TOKENS, chain([1, 2, 3]))
    active.add(RequestId("y"), A, TOKENS, chain([1, 2]))
    assert held(active, [1, 2]) == 5
    active.remove(RequestId("y"))
    active.remove(RequestId("y"))
    assert held(active, [1, 2]) == 3
    active.remove(RequestId("x"))
    assert held(active, [1, 2]) == 2


def held(active: ActiveBlocks, path: list[int], node: NodeName = A) -> float:
    """Blocks held with the prompt of `path`."""
    return active.tokens_with(node, TOKENS, chain(path), text_tokens=128.0) / 16


def chain(path: list[int]) -> list[BlockHash]:
    """Hashes as chained ones: equal exactly if all before them is equal."""
    value, hashes = 1, []
    for step in path:
        value = value * 3 + step
        hashes.append(BlockHash(value))
    return hashes
