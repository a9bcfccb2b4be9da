"""The admin plane: what it shows, what it steers, and how it says no."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pointsman import code_form
from pointsman.control.api import AdminApi
from pointsman.core.blocks import Prompt
from pointsman.core.ids import ModelName, RequestId
from pointsman.core.request import Request
from pointsman.core.scheme import Namespace
from pointsman.telemetry.cluster_metrics import ClusterMetrics, StateMetrics
from tests.control.fake_engine import Cluster, fake_engine, running_cluster, start_request

pytestmark = pytest.mark.usefixtures("hurried")

Client = TestClient[web.Request, web.Application]


class GatewayState(msgspec.Struct):
    clients: int = 3
    descriptors_max: int | None = None


class Report(msgspec.Struct):
    problems: tuple[str, ...] = ()
    result: str = "changed"


class ScriptedConfiguration:
    """Answers what a test says."""

    report = Report()

    async def reload(self, why: str) -> Report:
        assert "admin plane" in why
        return self.report

    def state(self) -> Report:
        return self.report


CONFIGURATION = ScriptedConfiguration()


async def would_ask(path: str, headers: Mapping[str, str], body: bytes) -> Request:
    fields = msgspec.json.decode(body)
    if "messages" not in fields:
        raise ValueError(f"{path}: messages are missing.")
    model = fields.get("model", headers.get("x-model", "m"))
    prompt = Prompt(Namespace(model), text=body)
    return Request(id=RequestId("explain"), model=ModelName(model), prompt=prompt)


@asynccontextmanager
async def admin(cluster: Cluster, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    ClusterMetrics(cluster.registry, cluster.scheduler, cluster.service.now_s)
    StateMetrics(cluster.registry, "pointsman_gateway", GatewayState)
    api = AdminApi(
        cluster.service,
        cluster.fleet,
        decisions=cluster.decisions,
        registry=cluster.registry,
        would_ask=would_ask,
        before_scrape=lambda: cluster.metrics.keep(cluster.fleet.names),
        gateway_state=GatewayState,
        key_states=lambda: (GatewayState(),),
        configuration=CONFIGURATION,
        host=host,
        version="0.0.0",
    )
    async with TestClient(TestServer(api.application())) as client:
        yield client


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with fake_engine() as engine, running_cluster() as cluster:
        cluster.add(engine.url)
        await cluster.ready()
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with admin(cluster) as client:
        yield client


async def get(client: Client, path: str, status: int = 200) -> Any:
    async with client.get(path) as reply:
        assert reply.status == status, await reply.text()
        return await reply.json()


async def send(client: Client, method: str, path: str, body: object, status: int) -> Any:
    async with client.request(method, path, json=body) as reply:
        assert reply.status == status, await reply.text()
        return await reply.json() if reply.status != 204 else None


async def test_the_state_shows_nodes_totals_and_failures(client: Client, cluster: Cluster) -> None:
    await start_request(cluster, "r-1")
    state = await get(client, "/pointsman/v1/state")
    (node,) = state["nodes"]
    assert (node["name"], node["health"], node["inflight"]) == ("n", "ready", 1)
    assert node["facts"]["kind"] == "vllm"
    assert state["models"][0]["name"] == "m"
    assert state["ready"] is True
    assert state["code"] == code_form()
    assert state["totals"]["in_flight"] == state["totals"]["unsettled"] == 1
    assert state["gateway"]["clients"] == 3
    assert state["failures"] == {"steps_failed": 0, "sinks_failed": 0, "open_full": 0}


async def test_a_node_that_is_not_described_says_why(client: Client) -> None:
    """sglang#12621: engines were given, none was registered, nothing said so."""
    body = {"name": "wrong", "url": "http://127.0.0.1:1"}
    await send(client, "POST", "/pointsman/v1/nodes", body, 201)
    problem = "not asked yet"
    while problem == "not asked yet":
        nodes = (await get(client, "/pointsman/v1/nodes"))["nodes"]
        problem = next(node["problem"] for node in nodes if node["name"] == "wrong")
    assert problem.startswith("connection refused")


async def test_decisions_are_listed_and_found_by_id(client: Client, cluster: Cluster) -> None:
    await start_request(cluster, "r-1")
    await start_request(cluster, "r-2")
    listed = (await get(client, "/pointsman/v1/decisions?limit=1&node=n"))["decisions"]
    assert [decision["request_id"] for decision in listed] == ["r-2"]
    assert (await get(client, "/pointsman/v1/decisions?model=x"))["decisions"] == []
    found = await get(client, "/pointsman/v1/decisions/r-1")
    assert found["decisions"][0]["candidates"][0]["node"] == "n"
    missing = await get(client, "/pointsman/v1/decisions/nope", 404)
    assert "'nope'" in missing["error"]["message"]
    bad = await get(client, "/pointsman/v1/decisions?limit=few", 400)
    assert "limit=few" in bad["error"]["message"]
    bad = await get(client, f"/pointsman/v1/decisions?limit={'9' * 5_000}", 400)
    assert len(bad["error"]["message"]) < 200


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": []},
        {"body": {"model": "m", "messages": []}},
        {"path": "/v1/chat/completions", "headers": {"x-model": "m"}, "body": {"messages": []}},
    ],
)
async def test_a_request_is_explained_without_being_placed(
    client: Client, cluster: Cluster, body: object
) -> None:
    answer = await send(client, "POST", "/pointsman/v1/explain", body, 200)
    assert answer["decision"]["ruling"] == "placed"
    assert answer["decision"]["node"] == "n"
    assert "prefill_s" in answer["decision"]["candidates"][0]
    assert cluster.scheduler.in_flight == 0
    assert len(cluster.decisions) == 0


async def test_what_cannot_be_explained_is_named(client: Client) -> None:
    answer = await send(client, "POST", "/pointsman/v1/explain", {"model": "m"}, 400)
    assert answer["error"]["message"] == "/v1/completions: messages are missing."
    bad = await send(client, "POST", "/pointsman/v1/explain", {"path": 7}, 400)
    assert "cannot be used" in bad["error"]["message"]
    nested = b'{"body": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    async with client.request("POST", "/pointsman/v1/explain", data=nested) as reply:
        assert reply.status == 400


async def test_the_policy_is_shown_and_changed(client: Client, cluster: Cluster) -> None:
    shown = await get(client, "/pointsman/v1/policy")
    assert shown["policy"] == "round_robin"
    assert "least_request" in shown["policies"]
    changed = await send(client, "PUT", "/pointsman/v1/policy", {"policy": "least_request"}, 200)
    assert changed["policy"] == cluster.scheduler.policy == "least_request"
    bad = await send(client, "PUT", "/pointsman/v1/policy", {"policy": "fastest"}, 400)
    assert "'fastest' is no policy. Choose one of round_robin" in bad["error"]["message"]
    await send(client, "PUT", "/pointsman/v1/policy", {"polcy": "x"}, 400)


async def test_nodes_come_and_go(client: Client, cluster: Cluster) -> None:
    async with fake_engine() as second:
        body = {"name": "n2", "url": second.url, "labels": {"gpu": "h100"}, "pool": "long"}
        await send(client, "POST", "/pointsman/v1/nodes", body, 201)
        await cluster.ready()
        nodes = (await get(client, "/pointsman/v1/nodes"))["nodes"]
        assert [(node["name"], node["pool"]) for node in nodes] == [
            ("n", "default"),
            ("n2", "long"),
        ]
        again = await send(client, "POST", "/pointsman/v1/nodes", body, 409)
        assert "n2" in again["error"]["message"]
        body |= {"name": "n3", "url": second.url.replace("http", "HTTP") + "/"}
        again = await send(client, "POST", "/pointsman/v1/nodes", body, 409)
        assert again["error"]["message"] == f"{second.url} is node 'n2' already."
        await send(client, "DELETE", "/pointsman/v1/nodes/n2", None, 204)
        assert cluster.fleet.names == ["n"]
        gone = await send(client, "DELETE", "/pointsman/v1/nodes/n2", None, 404)
        assert gone["error"]["message"] == "There is no node 'n2'. Nodes: n."


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"name": "n2", "url": "10.0.0.1:80"}, "did you mean http://10.0.0.1:80"),
        ({"name": "n2", "url": "http://a:1", "kv_events": "maybe"}, "neither auto, off"),
        ({"name": "n2", "url": "http://a:1", "api_key": "a b"}, "api_key: it holds what no header"),
        ({"name": "bad name", "url": "http://a:1"}, "name"),
        ({"name": "n2"}, "missing required field `url`"),
        ({"name": "n2", "url": "http://a:1", "models": [""]}, "length >= 1 - at `$.models[0]`"),
        ({"name": "n2", "url": "http://" + "a" * 5_000 + "/v1"}, "has a path"),
        ({"name": "n2", "url": "http://a:1", "concurency_max": 1}, "concurency_max"),
    ],
)
async def test_a_node_that_cannot_be_is_refused(client: Client, body: object, cause: str) -> None:
    answer = await send(client, "POST", "/pointsman/v1/nodes", body, 400)
    assert cause in answer["error"]["message"]


async def test_a_node_drains_and_comes_back(client: Client, cluster: Cluster) -> None:
    await send(client, "POST", "/pointsman/v1/nodes/n/drain", None, 200)
    assert not cluster.service.ready()
    health = await get(client, "/health")
    assert health == {"status": "ok", "ready": False, "version": "0.0.0"}
    await send(client, "POST", "/pointsman/v1/nodes/n/undrain", None, 200)
    assert cluster.service.ready()
    await send(client, "POST", "/pointsman/v1/nodes/x/drain", None, 404)


async def test_metrics_speak_of_the_cluster(client: Client, cluster: Cluster) -> None:
    await start_request(cluster, "r-1")
    async with client.get("/metrics") as reply:
        page = await reply.text()
    assert 'pointsman_node_inflight{node="n"} 1.0' in page
    assert 'pointsman_node_state{node="n",state="ready"} 1.0' in page
    assert 'pointsman_node_index_trust{node="n",trust="history"} 1.0' in page
    assert "pointsman_inflight 1.0" in page
    assert "pointsman_queue_depth 0.0" in page
    assert 'pointsman_policy{policy="round_robin"} 1.0' in page
    assert "pointsman_gateway_clients 3.0" in page
    assert "descriptors_max" not in page, "unknown is absent, not 0"
    assert "kv_usage" not in [line.split("{")[0] for line in page.splitlines() if line[0] != "#"]
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line[0] != "#"}
    assert all(name.startswith("pointsman_") for name in names)


async def test_a_reload_tells_what_came_of_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await send(client, "POST", "/pointsman/v1/reload", None, 200)
    assert told["result"] == "changed"
    bad = Report(("p.yaml:3:1: unknown key 'x'", "p.yaml:4:1: no"), "rejected")
    monkeypatch.setattr(CONFIGURATION, "report", bad)
    refused = await send(client, "POST", "/pointsman/v1/reload", None, 400)
    assert refused["error"]["message"] == "p.yaml:3:1: unknown key 'x'; p.yaml:4:1: no"
    state = await get(client, "/pointsman/v1/state")
    assert state["configuration"]["problems"][0].startswith("p.yaml:3:1")
    assert state["keys"] == [{"clients": 3, "descriptors_max": None}]


async def test_a_removed_node_has_no_series(client: Client) -> None:
    async def has_series() -> bool:
        async with client.get("/metrics") as reply:
            return 'node="n"' in await reply.text()

    assert await has_series()
    await send(client, "DELETE", "/pointsman/v1/nodes/n", None, 204)
    assert not await has_series()


async def test_unknown_routes_answer_in_json(client: Client) -> None:
    lost = (await get(client, "/nope", 404))["error"]["message"]
    assert lost.startswith("GET /nope: ")
    assert "/pointsman/v1/nodes/{name}/drain" in lost
    refused = (await send(client, "POST", "/metrics", {}, 405))["error"]
    assert "Allowed: GET, HEAD." in refused["message"]


async def test_a_web_page_steers_nothing(client: Client, cluster: Cluster) -> None:
    """A browser lets any page send a POST here: it could add an engine, to which prompts go."""
    page = {"Origin": "https://anywhere.example", "Content-Type": "text/plain"}
    node = b'{"name": "n2", "url": "http://127.0.0.1:1"}'
    async with client.post("/pointsman/v1/nodes", data=node, headers=page) as reply:
        assert reply.status == 403
        assert "https://anywhere.example" in (await reply.json())["error"]["message"]
    assert cluster.fleet.names == ["n"]
    async with client.get("/pointsman/v1/nodes", headers=page) as reply:
        assert reply.status == 200, "which the page cannot read"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_web_page_whose_name_leads_here_reads_nothing(client: Client, method: str) -> None:
    """DNS rebinding: to a browser page and admin plane are one host, so it lets the page read."""
    page = {"Host": "anywhere.example:8081"}
    async with client.request(method, "/pointsman/v1/state", headers=page) as reply:
        assert reply.status == 403
        assert "'anywhere.example:8081'" in (await reply.json())["error"]["message"]


@pytest.mark.parametrize("host", ["localhost:8081", "127.0.0.1", "[::1]:8081", "10.0.0.7:8081"])
async def test_a_host_that_no_page_can_have_is_let_in(client: Client, host: str) -> None:
    async with client.get("/health", headers={"Host": host}) as reply:
        assert reply.status == 200


async def test_on_a_network_the_admin_plane_goes_by_any_name(cluster: Cluster) -> None:
    async with (
        admin(cluster, host="0.0.0.0") as client,
        client.get("/health", headers={"Host": "pointsman.svc"}) as reply,
    ):
        assert reply.status == 200


async def test_a_body_that_does_not_decode_is_the_senders_mistake(client: Client) -> None:
    headers = {"content-encoding": "gzip"}
    async with client.put("/pointsman/v1/policy", data=b"\x1f\x8bno", headers=headers) as reply:
        assert reply.status == 400
        assert "encoding" in (await reply.json())["error"]["message"]
