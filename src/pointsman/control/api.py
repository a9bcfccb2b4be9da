"""The admin plane: what the scheduler sees, why it decides, and the few levers there are.

Loopback by default, and without keys: who reaches it can drain nodes. Web pages are kept out,
since a browser on this machine lets any of them send a POST here. Every answer is JSON
but /metrics; every error names what was asked for and the remedy. Bodies are bounded.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from pointsman import code_form
from pointsman.control.api_types import (
    AdmissionState,
    ExplainBody,
    Feedback,
    NewNode,
    NodeState,
    PolicyBody,
    PolicyState,
    ProcessState,
    Totals,
)
from pointsman.control.fleet import Fleet, NodeRefused
from pointsman.control.service import SchedulerService
from pointsman.core.ids import NodeName, RequestId
from pointsman.core.policies import catalog
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.views import HOT_PREFIXES_SHOWN
from pointsman.decoding import Undecodable, decoded
from pointsman.engines.adapters.address import (
    is_address,
    is_loopback,
    kv_events_problem,
    url_problem,
)
from pointsman.engines.adapters.keys import key_problem
from pointsman.telemetry.decisions import DecisionRing

BODY_BYTES_MAX = 32 * 1024 * 1024
"""As the data plane's: what it would place can be explained."""

DECISIONS_PER_ANSWER_MAX = 1_000

DIGITS_MAX = 18
"""Of a number in a query; Python refuses to read thousands of them."""

WouldAsk = Callable[[str, Mapping[str, str], bytes], Awaitable[Request]]
"""Path, headers and body -> what the gateway would ask the scheduler. Raises ValueError with a
sentence for the sender."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

T = TypeVar("T")

_READING = ("GET", "HEAD")

log = logging.getLogger(__name__)


class ReloadReport(Protocol):
    """What came of a reload; a struct that may hold more. With problems nothing has changed."""

    @property
    def problems(self) -> tuple[str, ...]: ...


class Configuration(Protocol):
    """What can be read again while running."""

    async def reload(self, why: str) -> ReloadReport:
        """Read it and go by it, or leave everything as it is."""
        ...

    def state(self) -> msgspec.Struct:
        """What is in force."""
        ...


class AdminApi:
    """The routes, over one service and its fleet. Owned and started by the process."""

    def __init__(
        self,
        service: SchedulerService,
        fleet: Fleet,
        *,
        decisions: DecisionRing,
        registry: CollectorRegistry,
        would_ask: WouldAsk,
        before_scrape: Callable[[], None],
        gateway_state: Callable[[], msgspec.Struct],
        key_states: Callable[[], tuple[msgspec.Struct, ...]],
        configuration: Configuration,
        host: str,
        version: str,
    ) -> None:
        """`host` is what it listens on."""
        self._service = service
        self._fleet = fleet
        self._decisions = decisions
        self._registry = registry
        self._would_ask = would_ask
        self._before_scrape = before_scrape
        self._gateway_state = gateway_state
        self._key_states = key_states
        self._configuration = configuration
        self._host = host
        self._version = version

    def application(self) -> web.Application:
        application = web.Application(
            client_max_size=BODY_BYTES_MAX, middlewares=[_json_errors, self._keep_pages_out]
        )
        application.router.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/pointsman/v1/state", self._state),
                web.get("/pointsman/v1/decisions", self._list_decisions),
                web.get("/pointsman/v1/decisions/{id}", self._decision),
                web.post("/pointsman/v1/explain", self._explain),
                web.get("/pointsman/v1/policy", self._policy),
                web.put("/pointsman/v1/policy", self._choose_policy),
                web.post("/pointsman/v1/reload", self._reload),
                web.get("/pointsman/v1/nodes", self._nodes),
                web.post("/pointsman/v1/nodes", self._add_node),
                web.delete("/pointsman/v1/nodes/{name}", self._remove_node),
                web.post("/pointsman/v1/nodes/{name}/drain", self._drain),
                web.post("/pointsman/v1/nodes/{name}/undrain", self._undrain),
                web.post("/pointsman/v1/nodes/{name}/feedback", self._feedback),
            ]
        )
        return application

    @web.middleware
    async def _keep_pages_out(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A browser lets any page send a POST here, and read every answer once the page's own name
        leads here (DNS rebinding)."""
        if (origin := request.headers.get("Origin")) and request.method not in _READING:
            raise _Problem(403, f"Web pages steer nothing here, and this is from {origin[:200]}.")
        host = request.headers.get("Host", "")
        if is_loopback(self._host) and not self._is_called(host):
            raise _Problem(
                403,
                f"The admin plane listens on {self._host} only, and '{host[:200]}' is a name that "
                "others can give it. Ask by an address, or for localhost.",
            )
        return await handler(request)

    def _is_called(self, host: str) -> bool:
        """Whether a Host header, if there is one, names what no page can take for its own name."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name in (None, "localhost", self._host) or is_address(name)

    # --- seeing -------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok", "ready": self._service.ready(), "version": self._version})

    async def _metrics(self, _: web.Request) -> web.Response:
        self._before_scrape()
        page = generate_latest(self._registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _state(self, _: web.Request) -> web.Response:
        scheduler = self._service.scheduler
        return _json(
            ProcessState(
                version=self._version,
                code=code_form(),
                ready=self._service.ready(),
                policy=scheduler.policy,
                models=tuple(scheduler.models()),
                nodes=tuple(self._node_states()),
                totals=Totals(
                    in_flight=scheduler.in_flight,
                    held=scheduler.held,
                    unsettled=self._service.unsettled,
                    index_bytes=scheduler.index_bytes,
                    decisions_kept=len(self._decisions),
                ),
                admission=AdmissionState(
                    held=scheduler.held_by_lane,
                    models=tuple(scheduler.admission(self._service.now_s())),
                ),
                gateway=self._gateway_state(),
                keys=self._key_states(),
                configuration=self._configuration.state(),
                hot_prefixes=tuple(
                    scheduler.hot_prefixes(HOT_PREFIXES_SHOWN, self._service.now_s())
                ),
                stats=scheduler.stats,
                failures=self._service.counters,
            )
        )

    async def _nodes(self, _: web.Request) -> web.Response:
        return _json({"nodes": list(self._node_states())})

    def _node_states(self) -> list[NodeState]:
        views = self._service.scheduler.nodes(self._service.now_s())
        return [NodeState.of(view, self._fleet.status(view.name)) for view in views]

    async def _list_decisions(self, request: web.Request) -> web.Response:
        limit = _whole_number(request.query.get("limit", "50"), "limit")
        model, node = request.query.get("model"), request.query.get("node")
        found = self._decisions.latest(min(limit, DECISIONS_PER_ANSWER_MAX), model=model, node=node)
        return _json({"decisions": found})

    async def _decision(self, request: web.Request) -> web.Response:
        request_id = request.match_info["id"]
        found = self._decisions.of(RequestId(request_id))
        if not found:
            raise _Problem(
                404,
                f"No decision about '{request_id}' is among the last {len(self._decisions)}, which "
                "are remembered. The id is in the x-request-id header of the answer.",
            )
        return _json({"request_id": request_id, "decisions": found})

    async def _explain(self, request: web.Request) -> web.Response:
        path, headers, body = _explained(await request.read())
        try:
            asked = await self._would_ask(path, headers, body)
        except ValueError as error:
            raise _Problem(400, str(error)) from None
        decision = self._service.explain(asked)
        views = self._service.scheduler.nodes(self._service.now_s())
        doubts = {view.name: view.index_doubt for view in views if view.index_doubt}
        return _json({"decision": decision, "index_doubts": doubts})

    # --- steering -----------------------------------------------------------------------

    async def _policy(self, _: web.Request) -> web.Response:
        return _json(PolicyState(self._service.scheduler.policy, tuple(catalog.names())))

    async def _choose_policy(self, request: web.Request) -> web.Response:
        name = _decode(await request.read(), PolicyBody).policy
        if name not in catalog.names():
            raise _Problem(
                400, f"'{name}' is no policy. Choose one of {', '.join(catalog.names())}."
            )
        self._service.choose_policy(name)
        return await self._policy(request)

    async def _reload(self, _: web.Request) -> web.Response:
        report = await self._configuration.reload("asked for over the admin plane")
        if report.problems:
            raise _Problem(400, "; ".join(report.problems))
        return _json(report)

    async def _add_node(self, request: web.Request) -> web.Response:
        node = _decode(await request.read(), NewNode)
        if problem := url_problem(node.url) or kv_events_problem(node.kv_events):
            raise _Problem(400, f"{problem}.")
        if problem := key_problem(node.api_key):
            raise _Problem(400, f"api_key: {problem}.")
        try:
            self._fleet.add(
                node.spec(), kv_events=node.kv_events, api_key=node.api_key, ranks=node.ranks
            )
        except NodeRefused as refused:
            raise _Problem(409, f"{refused}.") from None
        return _json({"name": node.name}, status=201)

    async def _remove_node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not await self._fleet.remove(NodeName(name)):
            raise self._no_such_node(name)
        return web.Response(status=204)

    async def _drain(self, request: web.Request) -> web.Response:
        return self._set_draining(request.match_info["name"], True)

    async def _undrain(self, request: web.Request) -> web.Response:
        return self._set_draining(request.match_info["name"], False)

    async def _feedback(self, request: web.Request) -> web.Response:
        name, said = request.match_info["name"], _decode(await request.read(), Feedback)
        if not self._fleet.judge(NodeName(name), said.healthy, said.detail):
            raise self._no_such_node(name)
        return _json({"name": name, "healthy": said.healthy}, status=202)

    def _set_draining(self, name: str, draining: bool) -> web.Response:
        if not self._fleet.drain(NodeName(name), draining):
            raise self._no_such_node(name)
        return _json({"name": name, "draining": draining})

    def _no_such_node(self, name: str) -> "_Problem":
        names = ", ".join(self._fleet.names) or "none yet"
        return _Problem(404, f"There is no node '{name}'. Nodes: {names}.")


def _explained(raw: bytes) -> tuple[str, Mapping[str, str], bytes]:
    """Path, headers and body of the request to explain: in an envelope, or bare."""
    if re.search(rb'^\s*\{\s*"(path|body|headers)"\s*:', raw):
        envelope = _decode(raw, ExplainBody)
        return envelope.path, envelope.headers, bytes(envelope.body)
    path = "/v1/chat/completions" if b'"messages"' in raw else "/v1/completions"
    return path, {}, raw


def _decode(body: bytes, into: type[T]) -> T:
    try:
        return decoded(msgspec.json.Decoder(into).decode, body)
    except Undecodable as error:
        raise _Problem(400, f"The body cannot be used: {error}.") from None


def _whole_number(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS_MAX:
        shown = text[:DIGITS_MAX]
        raise _Problem(400, f"{name}={shown} is not a whole number, 0 or more.")
    return int(text)


# --- answers ------------------------------------------------------------------------------


def _json(value: object, status: int = 200) -> web.Response:
    body = (
        msgspec.json.encode(value, enc_hook=Row.fields) + b"\n"
    )  # a terminal's prompt comes on its own line
    return web.Response(body=body, status=status, content_type="application/json")


class _Problem(Exception):  # noqa: N818 - an answer, not a fault of ours
    """A request that is refused: the status, and what its sender is told."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def _error(status: int, message: str) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    return _json({"error": error}, status=status)


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal in one shape, aiohttp's own of routes and sizes included."""
    try:
        return await handler(request)
    except _Problem as problem:
        return _error(problem.status, problem.message)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        message = f"{request.method} {request.path}: {error.reason}.{_remedy(request, error)}"
        return _error(error.status, message)
    except web.RequestPayloadError:
        return _error(400, "The body does not decode as its encoding.")
    except Exception:  # the driver's outermost frame: one bug must not show a stack trace
        log.exception("%s %s failed", request.method, request.path)
        return _error(500, "The admin plane failed; the log says how.")


def _remedy(request: web.Request, error: web.HTTPException) -> str:
    """Which routes or methods there are, for who asked for others."""
    match error:
        case web.HTTPMethodNotAllowed():
            return f" Allowed: {', '.join(sorted(error.allowed_methods))}."
        case web.HTTPNotFound():
            routes = {each.canonical for each in request.app.router.resources()}
            return f" There are: {', '.join(sorted(routes))}."
        case _:
            return ""
