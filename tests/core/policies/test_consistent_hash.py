"""One home for each key, bounded load, and no disorder when a node flaps."""

from collections import Counter
from math import ceil
from random import Random

import pytest

from pointsman.core.blocks import Prompt
from pointsman.core.ids import BlockHash
from pointsman.core.placement import Choice
from pointsman.core.policies.consistent_hash import LOAD_MIN, ConsistentHash
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.scheme import Scheme, Unit
from tests.support.driver import request
from tests.support.rows import row

NODES = [f"n{i}" for i in range(10)]
KEYS = range(2_000)


def asked(number: int, **fields: object) -> Request:
    return request(f"r{number}", f"conversation {number} ".ljust(2_000, "."), **fields)


def home(asks: Request, rows: list[Row]) -> str:
    choice = ConsistentHash().choose(asks, rows, Random(0))
    assert isinstance(choice, Choice), choice
    return choice.row.node


def homes(nodes: list[str]) -> list[str]:
    return [home(asked(number), [row(name) for name in nodes]) for number in KEYS]


def test_keys_are_spread_evenly() -> None:
    counts = Counter(homes(NODES))
    assert all(150 <= counts[name] <= 250 for name in NODES), counts


def test_a_node_that_flaps_moves_its_own_keys_only_and_gets_them_back() -> None:
    before = homes(NODES)
    without = homes([name for name in NODES if name != "n3"])
    assert [b for b, w in zip(before, without, strict=True) if b != w] == ["n3"] * before.count(
        "n3"
    )
    orphans = Counter(w for b, w in zip(before, without, strict=True) if b == "n3")
    assert len(orphans) == 9, orphans
    assert homes([*NODES[4:], *NODES[:4]]) == before


def test_a_session_stays_whatever_it_says() -> None:
    rows = [row(name) for name in NODES]
    said = {home(asked(number, session="alice"), rows) for number in range(20)}
    assert len(said) == 1
    assert len({home(asked(0, session=f"s{i}"), rows) for i in range(50)}) == 10


def test_what_follows_the_first_kilobyte_does_not_matter() -> None:
    rows, stem = [row(name) for name in NODES], "the same system prompt ".ljust(1_024, ".")
    assert len({home(request("r", stem + f"question {i}"), rows) for i in range(20)}) == 1
    assert len({home(request("r", f"question {i} " + stem), rows) for i in range(50)}) == 10


def test_tokens_are_keys_too() -> None:
    rows, stem = [row(name) for name in NODES], list(range(256))
    same = {home(request("r", "", tokens=[*stem, i]), rows) for i in range(20)}
    assert len(same) == 1
    assert len({home(request("r", "", tokens=[i, *stem]), rows) for i in range(50)}) == 10


def test_a_traces_prompts_are_known_by_their_blocks() -> None:
    rows = [row(name, block_tokens=512) for name in NODES]
    large = Scheme(Unit.TOKENS, 512)

    def traced(number: int, blocks: list[int]) -> Request:
        hashes = [BlockHash(block) for block in blocks]
        asks = request(f"r{number}")
        prompt = Prompt.chained(asks.prompt.namespace, 512 * len(blocks), {large: hashes})
        return asks.but(prompt=prompt)

    assert len({home(traced(i, [1, i]), rows) for i in range(20)}) == 1
    assert len({home(traced(i, [i, 1]), rows) for i in range(200)}) == 10


def test_prompts_too_short_to_share_are_spread() -> None:
    rows = [row(name) for name in NODES]
    assert len({home(request(f"r{i}", "", tokens=[1, 2, 3]), rows) for i in range(50)}) == 10


@pytest.mark.parametrize("count", [1, 10, 100])
def test_one_hot_key_fills_nodes_to_the_bound_in_the_order_of_its_homes(count: int) -> None:
    loads: Counter[str] = Counter()
    for number in range(count):
        rows = [row(name, inflight=loads[name]) for name in NODES]
        loads[home(asked(0), rows)] += 1
        bound = max(LOAD_MIN, ceil(1.25 * (number + 1) / len(NODES)))
        assert max(loads.values()) <= bound, loads
    assert len(loads) >= min(count // LOAD_MIN, len(NODES) * 4 // 5), loads


def test_a_quiet_cluster_keeps_every_key_at_home() -> None:
    rows = [row(name) for name in NODES]
    first = home(asked(0), rows)
    assert home(asked(0), [row(name, inflight=3 * (name == first)) for name in NODES]) == first


def test_a_home_above_the_bound_gives_way_for_this_request_only() -> None:
    rows = [row(name) for name in NODES]
    first = home(asked(0), rows)
    busy = [row(name, inflight=10 if name == first else 5) for name in NODES]
    assert home(asked(0), busy) != first
    assert home(asked(0), rows) == first
