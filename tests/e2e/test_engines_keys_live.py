"""Engines that ask for a key, behind a whole process: found, served, and not told of."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.test_reload import Rig, reloading
from tests.support.cluster import running_cluster
from tests.support.engines import running_engine

KEY = "engines-own-key"


async def test_engines_with_keys_are_served_and_their_keys_are_shown_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_cluster(2, engine_config=({"api_key": KEY},) * 2, api_key=KEY) as cluster:
        nodes = {(await cluster.complete(f"{n} " * 50)).node for n in range(6)}
        assert nodes == {"engine-1", "engine-2"}
        shown = [caplog.text, repr(cluster.scheduler.nodes(0.0))]
        for path in ("/metrics", "/pointsman/v1/state", "/pointsman/v1/decisions"):
            async with cluster.session.get(cluster.admin + path) as reply:
                shown.append(await reply.text())
    assert not [text for text in shown if KEY in text]


async def test_a_node_added_over_the_admin_plane_brings_its_key() -> None:
    async with running_cluster(1) as cluster, running_engine(api_key=KEY) as engine:
        node = {"name": "new", "url": engine.url, "api_key": KEY}
        await cluster.admin_json("POST", "/nodes", node)
        await cluster.process.fleet.until_described()
        await cluster.admin_json("POST", "/nodes/engine-1/drain")
        assert (await cluster.complete("a question")).node == "new"
        assert KEY not in str(await cluster.state())
        await cluster.admin_json("DELETE", "/nodes/new")
        await cluster.admin_json("POST", "/nodes/engine-1/undrain")
        await cluster.admin_json("POST", "/nodes", {"name": "new", "url": engine.url})
        await cluster.until_shown(lambda state: "API key" in str(state))
        await cluster.admin_json("DELETE", "/nodes/new")


async def problem_of(rig: Rig, name: str) -> str:
    return str((await rig.nodes())[name]["problem"])


async def test_a_key_can_be_corrected_while_running(tmp_path: Path) -> None:
    right, wrong = f"api_key: {KEY}", "api_key: wrong"
    async with reloading(tmp_path, f"a,{right}", api_key=KEY) as rig:
        rig.write(f"a,{right}", f"b,{wrong}")
        await rig.until_reloaded(1)
        await rig.cluster.until_shown(lambda state: "engines[].api_key" in str(state["nodes"]))
        rig.write(f"a,{right}", f"b,{right}")
        await rig.until_reloaded(2)
        await rig.until_nodes_are("a", "b")
        changes = (await rig.cluster.state())["configuration"]
    assert KEY not in str(changes)


async def test_a_key_that_goes_wrong_costs_no_request_and_is_told_of(tmp_path: Path) -> None:
    right, wrong = f"api_key: {KEY}", "api_key: wrong"
    async with reloading(tmp_path, f"a,{right}", f"b,{right}", api_key=KEY) as rig:
        await rig.until_nodes_are("a", "b")
        rig.write(f"a,{right}", f"b,{wrong}")
        await rig.until_reloaded(1)
        async with asyncio.timeout(20):
            while "engines[].api_key" not in await problem_of(rig, "b"):
                assert (await rig.cluster.complete("again")).status == 200
        rig.write(f"a,{right}", f"b,{right}")
        await rig.until_reloaded(2)
        async with asyncio.timeout(20):
            while await problem_of(rig, "b") or (await rig.nodes())["b"]["health"] != "ready":
                assert (await rig.cluster.complete("again")).status == 200
