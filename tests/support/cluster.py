"""A whole cluster for tests: simulated engines, and the process that `serve` would run.

Everything runs on the test's loop, over real sockets, wired by the same code as in production.
At its end nothing may be left: see `Cluster.at_rest`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from pointsman.cli.config import Admin, Config, Engine, Limits, Listen, Log
from pointsman.cli.process import Process
from pointsman.cli.reload import Source
from pointsman.core.events import IndexTrust
from pointsman.core.scheduler import Scheduler
from pointsman.core.views import NodeView
from pointsman.engines.simulated import RunningEngine
from tests.support.engines import running_engine
from tests.support.waiting import eventually

READY_S_MAX = 20.0
REST_S_MAX = 10.0
CONNECTIONS_MAX = 4_096


class Cluster:
    """What a test has in its hands. `api` and `admin` are URLs without a path."""

    def __init__(
        self, process: Process, engines: Sequence[RunningEngine], session: aiohttp.ClientSession
    ) -> None:
        self.process = process
        self.engines = engines
        self.session = session
        self.api = f"http://127.0.0.1:{process.port}"
        self.admin = f"http://127.0.0.1:{process.admin_port}"

    @property
    def scheduler(self) -> Scheduler:
        return self.process.service.scheduler

    def engine(self, node: str) -> RunningEngine:
        """The engine behind a node's name."""
        return self.engines[int(node.split("-")[1]) - 1]

    # --- asking -------------------------------------------------------------------------

    async def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> "Answer":
        """A request to the API, and its whole answer."""
        async with self.session.post(self.api + path, json=body, headers=headers) as reply:
            return Answer(reply.status, reply.headers, await reply.read())

    async def complete(self, prompt: object, **fields: Any) -> "Answer":
        """A completion, which must succeed."""
        body = {"model": "sim", "prompt": prompt, "max_tokens": 4, **fields}
        answer = await self.post("/v1/completions", body)
        assert answer.status == 200, answer
        return answer

    async def chat(self, *contents: str, **fields: Any) -> "Answer":
        """A chat that must succeed: a system prompt and a question, or the question alone."""
        roles = ("system", "user")[-len(contents) :]
        messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
        body = {"model": "sim", "messages": messages, "max_tokens": 4, **fields}
        answer = await self.post("/v1/chat/completions", body)
        assert answer.status == 200, answer
        return answer

    async def admin_json(self, method: str, path: str, body: object = None) -> Any:
        """An answer of the admin plane that must succeed."""
        url = f"{self.admin}/pointsman/v1{path}"
        async with self.session.request(method, url, json=body) as reply:
            text = await reply.text()
            assert reply.status < 300, text
            return await reply.json() if text else None

    async def state(self) -> Any:
        """What the admin plane shows of everything."""
        return await self.admin_json("GET", "/state")

    async def simulate(self, engine: RunningEngine, **faults: object) -> None:
        """Make one engine misbehave."""
        async with self.session.post(f"{engine.url}/simulate", json=faults) as reply:
            assert reply.status == 200, await reply.text()

    # --- waiting ------------------------------------------------------------------------

    async def until_ready(self) -> None:
        """Until every engine has described itself, and its cache events are in sync."""
        async with asyncio.timeout(READY_S_MAX):
            await self.process.fleet.until_described()
            await eventually(lambda: all(map(self._is_in_sync, self.scheduler.nodes(0.0))))

    async def until_shown(self, holds: Callable[[Any], object]) -> None:
        """Until what the admin plane shows of everything is so."""

        async def is_shown() -> object:
            return holds(await self.state())

        await eventually(is_shown)

    def _is_in_sync(self, node: NodeView) -> bool:
        return (
            self.engine(node.name).engine.publisher is None or node.index_trust is IndexTrust.EXACT
        )

    async def at_rest(self, within_s: float = REST_S_MAX) -> None:
        """Wait until nothing runs anywhere; fails with what is left."""
        left: dict[str, float] = {"never looked": 1}
        try:
            async with asyncio.timeout(within_s):
                while left := await self.leftovers():  # noqa: ASYNC110 - nothing tells of the last one
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"left over after {within_s:g} s: {left}") from None
        self.scheduler.check()

    async def leftovers(self) -> dict[str, float]:
        """Every count that is not 0 although nothing should run."""
        state = await self.state()
        totals, gateway = state["totals"], state["gateway"]
        counts = {name: totals[name] for name in ("in_flight", "held", "unsettled")}
        counts |= {name: gateway[name] for name in ("exchanges", "bodies_bytes")}
        counts["busy connections"] = (
            gateway["engine_connections"] - gateway["engine_connections_idle"]
        )
        counts |= state["failures"]
        counts["compensated"] = state["stats"]["compensated"]
        for node in state["nodes"]:
            counts[f"{node['name']} inflight"] = node["inflight"]
            counts[f"{node['name']} leased"] = node["kv_blocks_leased"]
            counts[f"{node['name']} queue"] = node["queue_s"]
        for number, running in enumerate(self.engines, 1):
            model = running.engine.driver.model
            counts[f"engine {number} requests"] = running.engine.driver.requests
            counts[f"engine {number} blocks"] = model.pool.used
            counts[f"engine {number} load"] = running.engine.load
        return {name: count for name, count in counts.items() if count}


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"<{self.status} {dict(self.headers)} {self.body[:500]!r}>"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def node(self) -> str:
        return self.headers["x-pointsman-node"]

    @property
    def prompt_tokens(self) -> int:
        return int(self.json["usage"]["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        """What the engine says that it had cached."""
        return int(self.json["usage"]["prompt_tokens_details"]["cached_tokens"])


@asynccontextmanager
async def running_cluster(
    count: int = 2,
    *,
    policy: str = "marginal_cost",
    config: Config | None = None,
    engine_config: Sequence[Mapping[str, Any]] = (),
    **engine_options: Any,
) -> AsyncIterator[Cluster]:
    """`count` engines behind a gateway. Ends with everything at rest, or fails.

    `engine_options` are of all engines (`EngineOptions`), `engine_config` adds to each one's
    entry in the configuration.
    """
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                running_engine(**{"kv_events_port": 0, "seed": number, **engine_options})
            )
            for number in range(count)
        ]
        added = [*engine_config, *({} for _ in engines)]
        entries = [Engine(url=e.url, **more) for e, more in zip(engines, added, strict=False)]
        process = await stack.enter_async_context(
            running_process(cluster_config(entries, policy=policy, base=config))
        )
        session = await stack.enter_async_context(new_session())
        cluster = Cluster(process, engines, session)
        await cluster.until_ready()
        yield cluster
        await cluster.at_rest()


@asynccontextmanager
async def running_process(config: Config, source: Source | None = None) -> AsyncIterator[Process]:
    """The process that `serve` would run, on this loop; it reads `source` again."""
    process = Process(config, source)
    started = asyncio.Event()

    async def announce(_: Process) -> None:
        started.set()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(process.run(announce))
        await asyncio.wait(
            (running, tasks.create_task(started.wait())),
            return_when=asyncio.FIRST_COMPLETED,
        )
        try:
            yield process
        finally:
            process.stop()


def quiet_config(**fields: Any) -> Config:
    """Free ports and no access log, but for what `fields` say."""
    given = {"listen": Listen(port=0), "admin": Admin(port=0), "log": Log(access="none")}
    return Config(**(given | fields))


def cluster_config(
    engines: Sequence[Engine], *, policy: str = "marginal_cost", base: Config | None = None
) -> Config:
    """Free ports, no access log, and answers that name their node."""
    base = base or quiet_config(
        listen=Listen(port=0, reply_headers=True, cors_origins=("*",)),
        limits=Limits(connections_max=CONNECTIONS_MAX),
        log=Log(level="warning", access="none"),
    )
    return msgspec.structs.replace(base, policy=policy, engines=tuple(engines))


@asynccontextmanager
async def new_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client without limits of its own."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session
