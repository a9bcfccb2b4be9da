"""Nodes that leave in their own time, come back, or are configured otherwise."""

import asyncio
import logging

import msgspec
import pytest

from pointsman.control.listed import ListedEngine
from pointsman.core.errors import EndCause
from pointsman.core.events import NodeSpec
from pointsman.core.health import Health
from pointsman.core.ids import NodeName, RequestId
from pointsman.core.request import Outcome
from tests.control.fake_engine import (
    HURRIED,
    fake_engine,
    running_cluster,
    start_request,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("hurried")

NAME = NodeName("n")


async def test_a_node_that_retires_finishes_what_runs_and_takes_nothing_new() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await start_request(cluster, "r-1")
        assert cluster.fleet.retire(NAME, within_s=60.0)
        assert cluster.fleet.retire(NAME, within_s=60.0), "twice is once"
        assert cluster.fleet.is_retiring(NAME)
        await asyncio.sleep(0.3)
        assert (cluster.node().draining, cluster.node().inflight) == (True, 1)
        cluster.service.settle(RequestId("r-1"), Outcome(end=EndCause.FINISHED))
        await eventually(lambda: cluster.fleet.names == [])
        await eventually(lambda: cluster.scheduler.nodes(0.0) == [])
        assert not cluster.fleet.retire(NAME, within_s=1.0)


async def test_a_node_that_does_not_finish_in_time_leaves_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await start_request(cluster, "r-1")
        with caplog.at_level(logging.WARNING):
            cluster.fleet.retire(NAME, within_s=0.2)
            await eventually(lambda: cluster.fleet.names == [])
        assert "leaves with requests of ours on it" in caplog.text
        cluster.service.settle(RequestId("r-1"), Outcome(end=EndCause.FINISHED))


async def test_a_node_that_was_to_leave_may_stay() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await start_request(cluster, "r-1")
        cluster.fleet.retire(NAME, within_s=60.0)
        cluster.fleet.stay(NAME)
        cluster.service.settle(RequestId("r-1"), Outcome(end=EndCause.FINISHED))
        await asyncio.sleep(0.3)
        assert not cluster.fleet.is_retiring(NAME)
        assert (cluster.node().health, cluster.node().draining) == (Health.READY, False)


async def test_a_node_that_retires_may_be_removed_at_once() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await start_request(cluster, "r-1")
        cluster.fleet.retire(NAME, within_s=60.0)
        assert await cluster.fleet.remove(NAME)
        cluster.add(engine.url)
        await cluster.ready()
        assert not cluster.node().draining
        cluster.service.settle(RequestId("r-1"), Outcome(end=EndCause.FINISHED))


async def test_the_old_stays_until_the_new_can_take_over() -> None:
    async with fake_engine() as old, fake_engine() as new, running_cluster() as cluster:
        new.status["/v1/models"] = 503
        cluster.add(old.url)
        await cluster.ready()
        cluster.add(new.url, name="m")
        cluster.fleet.retire(NAME, within_s=60.0, after=[NodeName("m")])
        await asyncio.sleep(0.3)
        assert not cluster.node().draining
        new.status.clear()
        await eventually(lambda: cluster.fleet.names == ["m"])
        assert cluster.service.ready()


async def test_a_node_configured_otherwise_stays_the_same_incarnation() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        before = cluster.node()
        spec = NodeSpec(name=NAME, url=engine.url, pool="long", concurrency_max=3)
        cluster.fleet.respecify(spec)
        after = cluster.node()
        assert (after.incarnation, after.pool, after.concurrency_max) == (
            before.incarnation,
            "long",
            3,
        )
        assert after.health is Health.READY
        assert cluster.fleet.namesakes(spec) == [NAME]


async def test_engines_that_swap_addresses_do_so_in_one_step() -> None:
    async with fake_engine() as one, fake_engine() as other, running_cluster() as cluster:
        cluster.add(one.url, "a")
        cluster.add(other.url, "b")
        await cluster.ready()
        names = [NodeName("a"), NodeName("b")]
        urls = (other.url, one.url)
        swapped = [
            ListedEngine(NodeSpec(name=name, url=url))
            for name, url in zip(names, urls, strict=True)
        ]
        assert cluster.fleet.exchange(names, swapped) == {}
        nodes = cluster.scheduler.nodes(cluster.service.now_s())
        assert {node.name: node.url for node in nodes} == dict(zip(names, urls, strict=True))
        assert {node.health for node in nodes} == {Health.READY}
        await eventually(lambda: cluster.count("probes", node="a", result="good") > 0)
        assert cluster.scheduler.stats.stale_events == 0


async def test_what_is_out_of_service_is_not_believed_under_another_name() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        engine.status["/health"] = 500
        await eventually(lambda: cluster.node().health is Health.OPEN)
        heir = ListedEngine(NodeSpec(name=NodeName("m"), url=engine.url))
        assert cluster.fleet.exchange([NAME], [heir]) == {}
        assert [spec.name for spec, _ in cluster.fleet.waiting] == ["m"]


async def test_a_cadence_holds_from_the_next_wait_on() -> None:
    async with fake_engine() as first, fake_engine() as second, running_cluster() as cluster:
        cluster.fleet.apply(msgspec.structs.replace(HURRIED, probe_s=3_600.0))
        cluster.add(first.url)
        await cluster.ready()
        await asyncio.sleep(0.2)
        cluster.fleet.apply(HURRIED)
        cluster.add(second.url, name="m")
        await eventually(lambda: second.count("/health") >= 3)
        assert first.count("/health") == 0, "it waits still"
