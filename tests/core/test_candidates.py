"""The shortlist: who is seen where a field is too large to be costed; and who is left out."""

from pointsman.core.blocks import Prompt
from pointsman.core.candidates import exclusions, shortlist
from pointsman.core.cluster import Cluster
from pointsman.core.decision import Ineligible
from pointsman.core.events import NodeSpec
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.core.limits import CANDIDATES_MAX
from pointsman.core.node import Node
from pointsman.core.prefix import slots
from pointsman.core.request import Request
from pointsman.core.residency import indexed_tokens
from pointsman.core.scheme import Namespace

HALF = CANDIDATES_MAX // 2


def fleet(count: int, cluster: Cluster | None = None) -> list[Node]:
    """Idle nodes, whose slots are 0, 1, 2 …"""
    cluster = Cluster() if cluster is None else cluster
    return [cluster.add(NodeSpec(name=NodeName(f"n{i}"), url=f"http://n{i}")) for i in range(count)]


def mask(nodes: list[Node]) -> int:
    return sum(1 << node.slot for node in nodes)


def test_a_small_field_is_seen_whole() -> None:
    nodes = fleet(CANDIDATES_MAX)
    assert shortlist(nodes, [], 7) is nodes


def test_without_holders_the_least_loaded_are_seen() -> None:
    nodes = fleet(100)
    for node in nodes[: 100 - CANDIDATES_MAX]:
        node.load_s = 1.0
    assert mask(shortlist(nodes, [], 31)) == mask(nodes[100 - CANDIDATES_MAX :])


def test_equally_idle_nodes_take_turns() -> None:
    nodes = fleet(100)
    seen = [shortlist(nodes, [], turn)[0] for turn in range(100)]
    assert mask(seen) == mask(nodes)


def test_who_holds_most_is_seen_however_busy() -> None:
    nodes = fleet(100)
    nodes[90].load_s = nodes[91].load_s = 9.0
    levels = [(mask(nodes[90:91]), 640), (mask(nodes[91:92]), 32)]
    seen = shortlist(nodes, levels, 0)
    assert seen[:2] == nodes[90:92]
    assert len(seen) == CANDIDATES_MAX
    assert mask(seen).bit_count() == CANDIDATES_MAX


def test_of_equal_holders_the_least_loaded_are_seen() -> None:
    nodes = fleet(100)
    for node in nodes:
        node.load_s = 100.0 - node.slot
    seen = shortlist(nodes, [(mask(nodes[:50]), 64)], 0)
    assert mask(seen[:HALF]) == mask(nodes[50 - HALF : 50])
    assert mask(seen[HALF:]) == mask(nodes[100 - HALF :])


def test_holders_that_are_no_candidates_take_no_place() -> None:
    nodes = fleet(100)
    field, absent = nodes[:60], nodes[60:]
    seen = shortlist(field, [(mask(absent), 640), (mask(field[40:41]), 64)], 0)
    assert seen[0] is field[40]
    assert mask(seen) & mask(absent) == 0


def test_levels_tell_each_nodes_hit() -> None:
    nodes = fleet(4)
    levels = [(mask(nodes[1:2]), 64), (mask(nodes[2:4]), 16)]
    assert [indexed_tokens(node, levels) for node in nodes] == [0, 64, 16, 16]


def test_slots_of_a_mask() -> None:
    assert list(slots(0)) == []
    assert list(slots(1 << 700 | 5)) == [0, 2, 700]


def test_of_many_holders_the_least_loaded_are_seen() -> None:
    nodes = fleet(200)
    for place, node in enumerate(nodes):
        node.load_s = float((place * 37) % 200)
    held = nodes[:150]
    seen = shortlist(nodes, [(mask(held), 640)], 0)
    least = sorted(held, key=lambda node: node.load_s)[:HALF]
    assert seen[:HALF] == least


def test_no_more_are_named_as_left_out_than_are_asked_for() -> None:
    cluster = Cluster()
    nodes = fleet(100, cluster)
    excluded = exclusions(cluster, request(), (), most=8)
    assert [(one.node, one.why) for one in excluded] == [
        (node.name, Ineligible.JOINING) for node in nodes[:8]
    ]
    assert len(exclusions(cluster, request(), ())) == 100


def request() -> Request:
    return Request(RequestId("r"), ModelName("m"), Prompt(Namespace("m")))
