"""A server of several data-parallel ranks: found, each rank a node, under one engine's name."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from pointsman.control.fleet import NodeRefused
from pointsman.control.listed import ListedEngine
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName
from tests.control.fake_engine import (
    Cluster,
    FakeEngine,
    fake_engine,
    running_cluster,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("hurried")

NAME = NodeName("n")


def of_ranks(engine: FakeEngine, count: int) -> None:
    engine.ranks = range(count)
    engine.ranks_named = count


def nodes(cluster: Cluster) -> dict[str, str]:
    return {n.name: n.url for n in cluster.scheduler.nodes(cluster.service.now_s())}


async def test_each_rank_becomes_a_node() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 3)
        cluster.add(engine.url)
        await cluster.ready()
        assert nodes(cluster) == {f"n-rank-{rank}": f"{engine.url}#{rank}" for rank in range(3)}


async def test_a_server_of_one_rank_is_asked_for_no_token() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        assert nodes(cluster) == {"n": engine.url}
        assert engine.count("/v1/completions") == 0


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ((0, 1), 0),  # it does not read which rank a request is for
        ((2, 3), 2),  # it balances over a part of the ranks, and counts them otherwise
        ((0, 1), 4),
        (range(257), 257),  # nobody runs so many behind one port
    ],
)
async def test_ranks_that_requests_cannot_name_are_one_node(
    ranks: Sequence[int], named: int
) -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        engine.ranks, engine.ranks_named = ranks, named
        cluster.add(engine.url)
        await cluster.ready()
        assert nodes(cluster) == {"n": engine.url}


@pytest.mark.parametrize(
    ("fragment", "fields"),
    [("", {"ranks": "off"}), ("", {"kv_events": "tcp://127.0.0.1:1"}), ("#1", {})],
)
async def test_what_is_told_by_hand_stays(fragment: str, fields: dict[str, str]) -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url + fragment, **fields)  # type: ignore[arg-type]  # any of its fields
        await cluster.ready()
        assert nodes(cluster) == {"n": engine.url + fragment}


async def test_a_server_that_has_no_time_is_asked_again() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        engine.status["/v1/completions"] = 503
        cluster.add(engine.url)
        await eventually(lambda: engine.count("/v1/completions") > 1)
        assert not cluster.scheduler.ready()
        del engine.status["/v1/completions"]
        await cluster.ready()
        assert len(nodes(cluster)) == 2


async def test_a_server_that_comes_back_with_other_ranks() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        for count in (3, 1):
            of_ranks(engine, count)
            engine.restart()
            wanted = [f"n-rank-{rank}" for rank in range(count)]
            await eventually(lambda wanted=wanted: sorted(nodes(cluster)) == wanted)  # type: ignore[misc]  # mypy cannot infer it
            await cluster.ready()


async def test_ranks_come_and_go_while_their_server_stays() -> None:
    """vLLM's elastic scaling: no restart tells of it."""
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        first = cluster.node("n-rank-0").incarnation
        for count in (1, 3):
            of_ranks(engine, count)
            wanted = [f"n-rank-{rank}" for rank in range(count)]
            await eventually(lambda wanted=wanted: sorted(nodes(cluster)) == wanted)  # type: ignore[misc]  # mypy cannot infer it
            await cluster.ready()
        assert cluster.node("n-rank-0").incarnation == first


async def test_a_rank_listed_by_hand_that_vanishes_is_not_used_until_it_is_back() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(f"{engine.url}#1")
        await cluster.ready()
        of_ranks(engine, 1)
        await eventually(lambda: not cluster.service.ready())
        [(_, problem)] = cluster.fleet.waiting
        assert "no data-parallel rank 1" in problem
        of_ranks(engine, 2)
        await eventually(cluster.service.ready)


async def test_a_server_that_comes_back_with_more_ranks_than_anybody_has_stays_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        of_ranks(engine, 9_999)
        engine.restart()
        await eventually(lambda: "tells of 9999 data-parallel ranks" in caplog.text)
        await cluster.ready()
        assert sorted(nodes(cluster)) == ["n-rank-0", "n-rank-1"]


async def test_names_and_addresses_of_ranks_are_taken_until_they_leave() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        fleet = cluster.fleet
        rank = NodeSpec(name=NodeName("n-rank-1"), url=f"{engine.url}#1")
        for other in (
            msgspec.structs.replace(rank, name=NodeName("x")),
            msgspec.structs.replace(rank, url="http://127.0.0.1:1"),
            NodeSpec(name=NodeName("x"), url=engine.url),
        ):
            with pytest.raises(NodeRefused):
                fleet.add(other)
        assert await fleet.remove(rank.name)
        fleet.add(rank)
        assert fleet.has_url(rank.url)
        assert fleet.namesakes(rank) == [rank.name]
        assert await fleet.remove(NAME)
        assert fleet.names == [rank.name]
        fleet.add(NodeSpec(name=NAME, url=engine.url))
        assert fleet.namesakes(NodeSpec(name=rank.name, url=engine.url)) == [rank.name, NAME]


async def test_ranks_stay_apart_under_another_name() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        heir = ListedEngine(NodeSpec(name=NodeName("m"), url=engine.url))
        assert cluster.fleet.exchange([NAME], [heir]) == {}
        assert cluster.fleet.names == ["m-rank-0", "m-rank-1"]
        assert cluster.service.ready()
        await eventually(lambda: sorted(nodes(cluster)) == cluster.fleet.names)


async def test_an_engine_by_the_address_of_a_rank_keeps_it() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        rank = NodeSpec(name=NodeName("x"), url=f"{engine.url}#1")
        cluster.fleet.add(rank)
        cluster.add(engine.url)
        await cluster.ready()
        assert sorted(nodes(cluster)) == ["n-rank-0", "x"]
        assert cluster.fleet.namesakes(rank) == ["x"]
        assert await cluster.fleet.remove(NAME)
        assert list(nodes(cluster)) == ["x"]


async def test_the_engines_name_stands_for_its_ranks() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        fleet = cluster.fleet
        assert fleet.drain(NAME, True)
        assert all(node.draining for node in cluster.scheduler.nodes(cluster.service.now_s()))
        spec = NodeSpec(name=NAME, url=engine.url, zone="a")
        assert fleet.runs(ListedEngine(spec))
        assert not fleet.runs(ListedEngine(spec, ranks="off"))
        fleet.respecify(spec)
        fleet.respecify(msgspec.structs.replace(spec, zone="b"))
        assert cluster.node("n-rank-1").zone == "b"
        assert fleet.namesakes(NodeSpec(name=NodeName("x"), url=f"{engine.url}#1")) == [NAME]
        assert await fleet.remove(NAME)
        assert nodes(cluster) == {}
        assert not await fleet.remove(NAME)


async def test_an_engine_that_retires_gets_no_more_ranks() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        links = [cluster.fleet._links[NodeName(name)] for name in nodes(cluster)]
        assert cluster.fleet.retire(NAME, within_s=60.0)
        for link in links:  # what their describers tell of a server that has restarted
            assert link.on_ranks is not None
            link.on_ranks(4)
        assert sorted(nodes(cluster)) == ["n-rank-0", "n-rank-1"]
        await eventually(lambda: not nodes(cluster))


async def test_a_rank_may_leave_alone() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        of_ranks(engine, 2)
        cluster.add(engine.url)
        await cluster.ready()
        assert await cluster.fleet.remove(NodeName("n-rank-0"))
        assert list(nodes(cluster)) == ["n-rank-1"]
        assert cluster.fleet.retire(NAME, within_s=1.0)
        await eventually(lambda: not nodes(cluster))
        cluster.add(engine.url)  # the name is free
        await cluster.ready()
        await asyncio.sleep(0)
        assert len(nodes(cluster)) == 2
