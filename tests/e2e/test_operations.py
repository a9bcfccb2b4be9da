"""What operators do and see: start, drain, switch, explain, count, lose an engine."""

import asyncio
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pointsman.cli.config import Admin, Config, Engine, Listen, Log
from pointsman.engines.simulated import RunningEngine
from tests.support.cluster import (
    Answer,
    Cluster,
    cluster_config,
    new_session,
    running_cluster,
    running_process,
)
from tests.support.engines import running_engine, spawned_engine
from tests.support.processes import Serving, run, run_inside, serving
from tests.support.upstreams import Client, post
from tests.support.waiting import eventually

CHAT = "/v1/chat/completions"


def chat_body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Which track?"}]
    return {"model": "sim", "messages": messages, "max_tokens": 4, **fields}


# --- the way down -------------------------------------------------------------------------


@asynccontextmanager
async def served_engine(**options: Any) -> AsyncIterator[tuple[Serving, aiohttp.ClientSession]]:
    """A `serve` process before one engine, ready."""
    async with (
        running_engine(**options) as engine,
        serving("serve", "--engine", engine.url, "--access-log", "none") as gateway,
        new_session() as session,
    ):
        await until_ready_says(200, session, gateway)
        yield gateway, session


async def until_ready_says(wanted: int, session: aiohttp.ClientSession, gateway: Serving) -> None:
    async def says_so() -> bool:
        return await status(session, f"{gateway.api}/ready") == wanted

    await eventually(says_so)


async def status(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as reply:
        return reply.status


async def test_sigterm_lets_what_runs_finish_and_turns_newcomers_away() -> None:
    async with served_engine(speed=1.0) as (gateway, session):
        body = chat_body(stream=True, max_tokens=120)
        async with session.post(gateway.api + CHAT, json=body) as streaming:
            await streaming.content.readline()
            gateway.process.send_signal(signal.SIGTERM)
            await until_ready_says(503, session, gateway)
            assert await status(session, f"{gateway.api}/health") == 200, "the process lives"
            async with session.post(gateway.api + CHAT, json=chat_body()) as refused:
                assert refused.status == 503
                assert refused.headers["connection"] == "close"
                assert refused.headers["x-pointsman-reason"] == "draining"
                assert int(refused.headers["retry-after"]) >= 1
            rest = await streaming.content.read()
        assert rest.count(b'"content":"') >= 119, "every token came"
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await gateway.code() == 0


async def test_a_second_signal_cuts_off_what_still_runs_and_says_so() -> None:
    async with served_engine(speed=1.0) as (gateway, _):
        host, _, port = gateway.api.removeprefix("http://").partition(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        body = json.dumps(chat_body(stream=True, max_tokens=10_000)).encode()
        await client.send(post(CHAT, body))
        answering = asyncio.create_task(client.answer())
        await asyncio.sleep(0.2)
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.until_said("stopping")
        gateway.process.send_signal(signal.SIGTERM)
        answer = await answering
        client.leave()
        assert b'"code":"draining"' in answer.body
        assert not answer.is_whole, "a cut stream never looks like a whole one"
        assert await gateway.code() == 0


# --- the way up ---------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
@pytest.mark.parametrize(
    "command", [("serve", "--engine", "http://127.0.0.1:9"), ("up", "--engines", "1")]
)
async def test_a_port_in_use_ends_with_2_and_names_the_option(
    command: tuple[str, ...], option: str, taken_port: str
) -> None:
    other = {"--port": "--admin-port", "--admin-port": "--port"}[option]
    ended = await run(*command, option, taken_port, other, "0")
    assert ended.code == 2
    assert f"cannot listen on 127.0.0.1:{taken_port}" in ended.err
    assert f"choose another {option}" in ended.err
    assert "Traceback" not in ended.err


async def test_an_engine_that_cannot_be_reached_is_named_and_waited_for() -> None:
    async with (
        serving("serve", "--engine", "http://127.0.0.1:1", "--access-log", "none") as gateway,
        new_session() as session,
    ):
        await gateway.until_said(r"waiting for engine engine-1 at http://127.0.0.1:1: .+")
        assert await status(session, f"{gateway.api}/ready") == 503
        assert await status(session, f"{gateway.api}/health") == 200
        async with session.post(gateway.api + CHAT, json=chat_body()) as refused:
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert "127.0.0.1:1" not in await refused.text(), "addresses stay inside"
        async with session.get(f"{gateway.admin}/pointsman/v1/nodes") as reply:
            (node,) = (await reply.json())["nodes"]
        assert "refused" in node["problem"].lower()


# --- steering and seeing ------------------------------------------------------------------


async def test_the_policy_is_switched_while_requests_run() -> None:
    async with running_cluster(2, speed=10) as cluster:
        names = (await cluster.admin_json("GET", "/policy"))["policies"]
        assert len(names) >= 9
        asking = [
            asyncio.create_task(cluster.chat(f"question {n}", max_tokens=32)) for n in range(40)
        ]
        for name in [*names, "marginal_cost"]:
            now = await cluster.admin_json("PUT", "/policy", {"policy": name})
            assert now["policy"] == name
            answer = await cluster.chat(f"by {name}")
            assert answer.headers["x-pointsman-policy"] == name
        assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
        url = f"{cluster.admin}/pointsman/v1/policy"
        async with cluster.session.put(url, json={"policy": "nonsense"}) as reply:
            assert reply.status == 400
            assert "marginal_cost" in await reply.text()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 no HTTP\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /pointsman/v1/nodes HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: br\r\n\r\n",
    ],
)
async def test_what_is_no_http_fills_no_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Scanners come by each port that is open."""
    async with running_process(cluster_config(())) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.admin_port)
        writer.write(sent)
        assert b" 400 " in await reader.readline()
        writer.close()
    assert [record for record in caplog.records if record.exc_info] == []


async def test_the_gateways_own_address_is_no_engines() -> None:
    async with running_process(cluster_config(())) as process, aiohttp.ClientSession() as session:
        nodes = f"http://127.0.0.1:{process.admin_port}/pointsman/v1/nodes"
        own = ((process.port, "listen.port"), (process.admin_port, "admin.port"))
        for port, setting in own:
            node = {"name": "n", "url": f"http://localhost:{port}"}
            async with session.post(nodes, json=node) as reply:
                assert reply.status == 409
                told = (await reply.json())["error"]["message"]
            assert told == f"http://localhost:{port} is {setting} of this gateway itself."
        assert process.fleet.names == []


async def test_a_dry_run_explains_and_changes_nothing() -> None:
    async with running_cluster(2) as cluster:
        before = await cluster.state()
        explained = await cluster.admin_json("POST", "/explain", chat_body())
        decision = explained["decision"]
        assert decision["ruling"] == "placed"
        assert {row["node"] for row in decision["candidates"]} == {"engine-1", "engine-2"}
        for row in decision["candidates"]:
            for term in (
                "queue_s",
                "prefill_s",
                "room_wait_s",
                "decode_s",
                "stall_s",
                "slowdown_s",
            ):
                assert row[term] >= 0
        after = await cluster.state()
        assert (before["stats"], before["totals"]) == (after["stats"], after["totals"])
        assert (await cluster.chat("Which track?")).node == decision["node"]


async def test_a_dry_run_says_why_a_node_is_left_out() -> None:
    async with running_cluster(2) as cluster:
        await cluster.admin_json("POST", "/nodes/engine-2/drain")
        decision = (await cluster.admin_json("POST", "/explain", chat_body()))["decision"]
        assert decision["node"] == "engine-1"
        (left_out,) = decision["excluded"]
        assert left_out["node"] == "engine-2"
        assert "drain" in left_out["why"]


async def test_the_command_explains_by_id_and_by_prompt() -> None:
    async with running_cluster(2) as cluster:
        answer = await cluster.chat("Which track?")
        by_id = await run_inside("explain", answer.id, "--admin-url", cluster.admin)
        assert by_id.code == 0, by_id.err
        assert answer.node in by_id.out
        assert "lower is better" in by_id.out
        as_json = await run_inside("explain", answer.id, "--admin-url", cluster.admin, "--json")
        (decision,) = json.loads(as_json.out)
        assert (decision["request_id"], decision["node"]) == (answer.id, answer.node)
        dry = await run_inside(
            "explain", "--prompt", "hello", "--admin-url", cluster.admin, "--json"
        )
        (decision,) = json.loads(dry.out)
        assert decision["ruling"] == "placed"
        unknown = await run_inside("explain", "no-such-id", "--admin-url", cluster.admin)
        assert (unknown.code, "no-such-id" in unknown.err) == (1, True)


async def test_every_attempt_of_a_request_is_remembered_under_its_id() -> None:
    async with running_cluster(2) as cluster:
        for engine in cluster.engines[:1]:
            await cluster.simulate(engine, status=500, count=1)
        answers = [await cluster.chat(f"question {n}") for n in range(2)]
        attempts = [
            (await cluster.admin_json("GET", f"/decisions/{answer.id}"))["decisions"]
            for answer in answers
        ]
        (retried,) = [decisions for decisions in attempts if len(decisions) == 2]
        assert [decision["attempt"] for decision in retried] == [1, 2]
        assert [decision["node"] for decision in retried] == ["engine-1", "engine-2"]


# --- counting -----------------------------------------------------------------------------


async def metrics(cluster: Cluster) -> str:
    async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
        assert reply.status == 200
        return await reply.text()


NAMES = (
    "pointsman_requests_total",
    "pointsman_refusals_total",
    "pointsman_ttft_seconds_bucket",
    "pointsman_tpot_seconds_bucket",
    "pointsman_e2e_seconds_bucket",
    "pointsman_queue_seconds_bucket",
    "pointsman_decision_seconds_bucket",
    "pointsman_prompt_tokens_total",
    "pointsman_output_tokens_total",
    "pointsman_cached_tokens_predicted_total",
    "pointsman_cached_tokens_reported_total",
    "pointsman_node_inflight",
    "pointsman_node_kv_usage_ratio",
    "pointsman_node_signals_age_seconds",
    "pointsman_node_index_trust",
    "pointsman_node_state",
    "pointsman_probes_total",
    "pointsman_scrapes_total",
    "pointsman_policy",
    "pointsman_index_bytes",
    "pointsman_inflight",
    "pointsman_queue_depth",
    "pointsman_gateway_clients",
    "pointsman_gateway_engine_connections",
    "pointsman_process_resident_memory_bytes",
)


async def test_metrics_have_their_names_and_bogus_models_no_series() -> None:
    """llm-d-router#1625: a thousand names in bodies became a thousand series."""
    async with running_cluster(2) as cluster:
        await cluster.chat("Which track?", stream=True)
        size = len((await metrics(cluster)).splitlines())
        for number in range(1_000):
            refused = await cluster.post(CHAT, chat_body(model=f"bogus-{number}"))
            assert refused.status == 404
        page = await metrics(cluster)
    for name in NAMES:
        assert re.search(rf"^{name}[{{ ]", page, re.MULTILINE), name
    assert "bogus" not in page
    (count,) = re.findall(r'^pointsman_refusals_total\{.*model="other".*\} (\S+)', page, re.M)
    assert float(count) == 1_000
    assert len(page.splitlines()) < size + 100
    labels = set(re.findall(r'model="([^"]*)"', page))
    assert labels <= {"sim", "other"}


async def test_each_request_has_one_line_in_the_access_log(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    base = Config(listen=Listen(port=0), admin=Admin(port=0), log=Log(access=str(path)))
    async with running_cluster(1, config=base) as cluster:
        headers = {"x-request-id": "mine", "authorization": "Bearer secret"}
        streamed = chat_body(stream=True, stream_options={"include_usage": True})
        assert (await cluster.post(CHAT, streamed, headers)).status == 200
        assert (await cluster.post(CHAT, chat_body(model="unknown"))).status == 404
        assert (await cluster.post("/v1/completions", {"prompt": 7})).status == 400
    served, unknown, bad = map(json.loads, path.read_text().splitlines())
    assert served["id"] == "mine"
    expected = {"model": "sim", "endpoint": "chat", "status": 200, "end": "finished"}
    expected |= {"node": "engine-1", "policy": "marginal_cost", "attempts": 1, "streamed": True}
    assert {name: served[name] for name in expected} == expected
    for name in ("why", "ttft_ms", "e2e_ms", "bytes_in", "bytes_out", "prompt_tokens"):
        assert served[name], name
    assert served["output_tokens"] == 4
    for name in ("queue_ms", "cached_tokens", "cached_tokens_predicted"):
        assert served[name] >= 0, name
    assert (unknown["status"], unknown["reason"]) == (404, "model_not_found")
    assert (bad["status"], bad["reason"]) == (400, "bad_request")
    assert "node" not in unknown
    for secret in ("Which track?", "secret"):
        assert secret not in path.read_text()


# --- nodes come and go --------------------------------------------------------------------


async def test_a_node_is_drained_and_brought_back() -> None:
    async with running_cluster(2, speed=1.0) as cluster:
        running = [asyncio.create_task(cluster.chat(f"q {n}", max_tokens=60)) for n in range(4)]
        await asyncio.sleep(0.1)
        await cluster.admin_json("POST", "/nodes/engine-1/drain")
        nodes = [(await cluster.chat(f"drained {n}", max_tokens=1)).node for n in range(8)]
        assert set(nodes) == {"engine-2"}
        answers = await asyncio.gather(*running)
        assert {answer.node for answer in answers} == {"engine-1", "engine-2"}, "they finish"
        await cluster.admin_json("POST", "/nodes/engine-1/undrain")
        nodes = [(await cluster.chat(f"back {n}", max_tokens=1)).node for n in range(8)]
        assert set(nodes) == {"engine-1", "engine-2"}


@asynccontextmanager
async def one_may_die(port: int) -> AsyncIterator[tuple[Cluster, RunningEngine]]:
    """An engine on this loop, and a place for one that is a process, at `port`."""
    async with running_engine(speed=10) as steady:
        entries = [Engine(url=steady.url), Engine(url=f"http://127.0.0.1:{port}")]
        async with (
            running_process(cluster_config(entries)) as process,
            new_session() as session,
        ):
            cluster = Cluster(process, [steady], session)
            yield cluster, steady
            await cluster.at_rest()


async def until_health(cluster: Cluster, *healths: str) -> None:
    await cluster.until_shown(lambda state: state["nodes"][1]["health"] in healths)


async def ask_many(cluster: Cluster, count: int) -> list[Answer]:
    return [await cluster.chat(f"question {n}", max_tokens=1) for n in range(count)]


async def test_an_engine_that_crashes_costs_no_request_and_is_used_again_when_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with one_may_die(port) as (cluster, _):
        options = ("--port", str(port), "--speed", "10", "--model", "sim")
        async with spawned_engine(*options) as mortal:
            await until_health(cluster, "ready")
            assert {a.node for a in await ask_many(cluster, 10)} == {"engine-1", "engine-2"}
            mortal.kill()
            await mortal.process.wait()
            after = await ask_many(cluster, 10)
        assert {answer.node for answer in after} == {"engine-1"}, "each is served by the other"
        await until_health(cluster, "open")
        async with spawned_engine(*options):
            await until_health(cluster, "warming", "ready")
            await asyncio.sleep(0.1)
            assert {a.node for a in await ask_many(cluster, 10)} == {"engine-1", "engine-2"}
            (_, node) = (await cluster.state())["nodes"]
            assert node["problem"] == ""
            assert node["inflight"] == 0
