"""What the scheduler learns of an engine, and how it copes with one in trouble."""

import asyncio
import logging

import msgspec
import pytest

from pointsman.collectors import link, node, prober, scraper
from pointsman.collectors.client import EngineClient
from pointsman.control.fleet import NodeRefused
from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import NodeJudged, NodeSpec
from pointsman.core.health import Health
from pointsman.core.ids import NodeName, RequestId
from pointsman.core.request import Outcome
from pointsman.engines.adapters import EngineReply, EngineTrouble
from tests.control.fake_engine import (
    HURRIED,
    Cluster,
    fake_engine,
    running_cluster,
    start_request,
)
from tests.support.upstreams import closed_url
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("hurried")


async def test_a_node_describes_itself_and_becomes_ready() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        view = cluster.node()
        assert view.health is Health.READY
        assert (view.facts.kind, view.facts.version) == ("vllm", "0.32.0")
        assert (view.facts.block_tokens, view.facts.kv_blocks) == (16, 1_000)
        assert [card.name for card in view.models] == ["m"]
        await eventually(lambda: cluster.node().signals_age_s is not None)
        assert cluster.node().signals.running == 0


async def test_an_engine_that_never_answers_is_reported_with_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """model-launch#130: a wrong port was polled for ever, silently."""
    async with running_cluster() as cluster:
        with caplog.at_level(logging.WARNING):
            cluster.add(closed_url())
            await eventually(lambda: "connection refused" in caplog.text)
        (waiting,) = cluster.fleet.waiting
        assert "is this its HTTP port?" in waiting[1]
        assert cluster.node().health is Health.JOINING


async def test_what_is_no_http_is_named() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server, running_cluster() as cluster:
        cluster.add(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await eventually(lambda: "does not speak HTTP" in next(iter(cluster.fleet.waiting))[1])


async def test_an_engine_that_loads_is_not_ready_yet() -> None:
    """ik_llama.cpp#1210: 503 on any route while loading."""
    async with fake_engine() as engine, running_cluster() as cluster:
        engine.status["/v1/models"] = 503
        cluster.add(engine.url)
        await eventually(lambda: "still loading" in next(iter(cluster.fleet.waiting))[1])
        assert not cluster.service.ready()
        engine.status.clear()
        await cluster.ready()
        assert cluster.service.ready()


async def test_an_engine_with_another_model_is_not_used() -> None:
    """kubernetes#109414: the address was reused by somebody else's engine."""
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url, models=("other",))
        await eventually(lambda: "it serves m, not other" in next(iter(cluster.fleet.waiting))[1])
        assert not cluster.service.ready()


async def test_one_failed_probe_is_no_death_and_three_are() -> None:
    """sglang#9198: a single slow /health ejected a busy worker."""
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        engine.status["/health"] = 500
        await eventually(lambda: cluster.count("probes", node="n", result="failed") == 1)
        assert cluster.node().health is Health.READY
        await eventually(lambda: cluster.node().health is Health.OPEN)
        assert cluster.count("probes", node="n", result="failed") >= 3
        assert cluster.node().health_detail == "GET /health answers 500"
        engine.status.clear()
        await eventually(lambda: cluster.node().health is Health.WARMING)


async def test_a_probe_for_which_no_descriptor_is_left_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def get(_: EngineClient, path: str, *, timeout_s: float) -> EngineReply:
        asked.append(path)
        raise EngineTrouble(f"cannot connect within {timeout_s}", is_ours=True)

    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        monkeypatch.setattr(EngineClient, "get", get)
        await eventually(lambda: asked.count("/health") >= 6)
        assert cluster.count("probes", node="n", result="failed") == 0
        assert cluster.node().health is Health.READY


async def test_a_request_that_fails_has_its_node_looked_at_at_once() -> None:
    """Passive failures take a node out; waiting for the next regular probe keeps it out."""
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: engine.count("/health") >= 2)
        cluster.fleet.apply(msgspec.structs.replace(HURRIED, probe_s=60.0))
        await asyncio.sleep(0.3)
        probes = engine.count("/health")
        await start_request(cluster, "r-1")
        cluster.service.failed(RequestId("r-1"), FailureKind.UNREACHABLE)
        await eventually(lambda: engine.count("/health") >= probes + 2)


async def test_a_node_in_doubt_is_probed_again_and_again() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        cluster.fleet.apply(msgspec.structs.replace(HURRIED, probe_s=60.0))
        for _ in range(3):
            cluster.service.submit(NodeJudged(cluster.node().incarnation, False, "gibberish"))
        assert cluster.node().health is Health.SUSPECT, "it is the only one"
        probes = engine.count("/health")
        await eventually(lambda: engine.count("/health") >= probes + 6)


async def test_what_an_engine_serves_is_asked_at_intervals_alone() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.fleet.apply(msgspec.structs.replace(HURRIED, describe_s=60.0))
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: engine.count("/metrics") >= 10)
        assert engine.count("/v1/models") <= 2, "once more when it is found well"


async def test_a_slow_health_route_of_a_serving_engine_is_no_death() -> None:
    """ik_llama.cpp#1210: /health blocks during prompt processing; busy is not dead."""
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await start_request(cluster, "r-1")
        engine.hangs.add("/health")
        await eventually(lambda: cluster.count("probes", node="n", result="busy") >= 3)
        assert cluster.node().health is Health.READY
        assert cluster.count("probes", node="n", result="failed") == 0


async def test_a_hung_engine_goes_down_and_hinders_no_other() -> None:
    """production-stack#749: one hung backend blocked them all."""
    async with fake_engine() as hung, fake_engine() as good, running_cluster() as cluster:
        cluster.add(hung.url, "hung")
        cluster.add(good.url, "good")
        await cluster.ready()
        hung.hangs |= {"/health", "/metrics", "/v1/models"}
        await eventually(lambda: cluster.node("hung").health is Health.OPEN)
        probes = good.count("/health")
        await eventually(lambda: good.count("/health") > probes)
        assert cluster.node("good").health is Health.READY


async def test_an_engine_without_a_health_route_lives_while_it_answers() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        engine.status["/health"] = 404
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: cluster.count("probes", node="n", result="good") >= 2)


async def test_an_adapter_loaded_at_run_time_appears_without_a_restart() -> None:
    """production-stack#700."""
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        incarnation = cluster.node().incarnation
        engine.adapters.append("lora-1")
        await eventually(lambda: len(cluster.node().models) == 2)
        assert [card.name for card in cluster.service.models()] == ["m", "lora-1"]
        assert cluster.node().incarnation == incarnation


@pytest.mark.parametrize("evidence", ["start time", "counter", "models", "KV blocks", "block size"])
async def test_a_restarted_engine_is_a_new_incarnation(evidence: str) -> None:
    """aibrix#2421: what was booked on the old one must not land on the new one."""
    async with fake_engine() as engine, running_cluster() as cluster:
        engine.generation_tokens = 500
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: cluster.node().signals_age_s is not None)
        before = cluster.node().incarnation
        await start_request(cluster, "r-1")
        assert cluster.node().inflight == 1
        match evidence:
            case "start time":
                engine.started_s += 60.0
            case "counter":
                engine.generation_tokens = 3
            case "models":
                engine.models = ["other"]
            case "KV blocks":
                engine.kv_blocks = 500
            case "block size":
                engine.block_tokens = 32
        await eventually(lambda: cluster.node().incarnation != before)
        await cluster.ready()
        facts = cluster.node().facts
        assert (facts.block_tokens, facts.kv_blocks) == (engine.block_tokens, engine.kv_blocks)
        assert cluster.node().inflight == 0
        cluster.service.settle(RequestId("r-1"), Outcome(end=EndCause.FINISHED))
        assert cluster.node().inflight == 0
        assert cluster.count("node_restarts", node="n") == 1
        status = cluster.fleet.status(NodeName("n"))
        assert status is not None
        assert status.restarts == 1


async def test_two_engines_behind_one_address_do_not_flap_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "RESTARTS_S", 3_600.0)
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        while cluster.count("node_restarts", node="n") < link.RESTARTS_MAX:
            await eventually(lambda: cluster.node().signals_age_s is not None)
            restarts = cluster.count("node_restarts", node="n")
            engine.restart()
            await eventually(lambda r=restarts: cluster.count("node_restarts", node="n") > r)  # type: ignore[misc]  # mypy infers no lambda with defaults
            await cluster.ready()
        await eventually(lambda: cluster.node().signals_age_s is not None)
        incarnation = cluster.node().incarnation
        engine.restart()
        await eventually(lambda: "load balancer" in problem(cluster))
        assert cluster.node().incarnation == incarnation
        assert cluster.service.ready()


def problem(cluster: Cluster) -> str:
    status = cluster.fleet.status(NodeName("n"))
    assert status is not None
    return status.problem


async def test_a_drained_node_stays_drained_over_a_restart() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        assert cluster.fleet.drain(NodeName("n"), True)
        before = cluster.node().incarnation
        engine.restart()
        await eventually(lambda: cluster.node().incarnation != before)
        await cluster.ready()
        assert cluster.node().draining
        assert not cluster.service.ready()
        cluster.fleet.drain(NodeName("n"), False)
        assert cluster.service.ready()


async def test_scrapes_are_frequent_while_requests_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        monkeypatch.setattr(scraper, "INTERVAL_S_IDLE_MIN", 3_600.0)
        seldom = msgspec.structs.replace(HURRIED, probe_s=3_600.0, scrape_idle_s=3_600.0)
        cluster.fleet.apply(seldom)
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: cluster.node().signals_age_s is not None)
        idle = engine.count("/metrics")
        await asyncio.sleep(0.1)
        assert engine.count("/metrics") == idle
        engine.metrics["num_requests_running"] = 1.0
        await start_request(cluster, "r-1")
        await eventually(lambda: engine.count("/metrics") >= idle + 3)
        assert cluster.node().signals.running == 1


async def test_a_missing_signal_is_not_zero() -> None:
    """production-stack#617: a renamed metric made the router blind."""
    async with fake_engine() as engine, running_cluster() as cluster:
        del engine.metrics["num_requests_waiting"]
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: cluster.node().signals_age_s is not None)
        assert cluster.node().signals.waiting is None
        assert cluster.node().signals.kv_usage is None


async def test_failing_scrapes_are_counted_and_the_signal_ages() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: cluster.node().signals_age_s is not None)
        engine.status["/metrics"] = 500
        await eventually(lambda: cluster.count("scrapes", node="n", result="failed") >= 2)
        assert cluster.node().health is Health.READY


async def test_a_removed_node_leaves_and_nothing_asks_it_any_more() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        assert await cluster.fleet.remove(NodeName("n"))
        assert not await cluster.fleet.remove(NodeName("n"))
        assert cluster.scheduler.nodes(0.0) == []
        asked = len(engine.asked)
        await asyncio.sleep(0.15)
        assert len(engine.asked) == asked
        cluster.add(engine.url)
        await cluster.ready()


async def test_a_second_node_of_one_name_or_address_is_refused() -> None:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        with pytest.raises(NodeRefused, match="named 'n' exists"):
            cluster.add("http://127.0.0.1:1")
        with pytest.raises(NodeRefused, match="is node 'n' already"):
            cluster.add(engine.url, "n2")


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", "/health", "none"])
async def test_collectors_can_be_cancelled_in_every_wait(path: str) -> None:
    async with fake_engine() as engine:
        async with running_cluster() as cluster:
            engine.hangs.add(path)
            cluster.add(engine.url)
            await eventually(lambda: path == "none" or path in engine.asked)
        assert cluster.scheduler.nodes(0.0) == []


async def test_a_bug_in_a_collector_is_logged_and_does_not_end_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def broken(_: prober.Prober) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("a bug")

    monkeypatch.setattr(node, "RESTART_PAUSE_S", 0.01)
    monkeypatch.setattr(prober.Prober, "probe", broken)
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        await eventually(lambda: calls >= 2)
        assert "a collector of engine n failed" in caplog.text
        assert cluster.service.ready()


def test_nodes_may_be_added_before_the_fleet_runs() -> None:
    cluster = Cluster()
    cluster.fleet.add(NodeSpec(name=NodeName("n"), url="http://127.0.0.1:1"))
    assert cluster.fleet.names == ["n"]
    assert [spec.name for spec, _ in cluster.fleet.waiting] == ["n"]
