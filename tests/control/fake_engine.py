"""An engine that answers, or fails to, as a test wants; and the shell under test around it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry

from pointsman.collectors.cadence import Cadence
from pointsman.control.fleet import Fleet
from pointsman.control.listed import Ranks
from pointsman.control.service import SchedulerService
from pointsman.core.blocks import Prompt
from pointsman.core.events import NodeSpec
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.core.options import SchedulerOptions
from pointsman.core.request import Request
from pointsman.core.request_events import Placed, Verdict
from pointsman.core.scheduler import Scheduler
from pointsman.core.scheme import Namespace
from pointsman.core.views import NodeView
from pointsman.engines.adapters.address import RANK_HEADER
from pointsman.telemetry.collector_metrics import CollectorMetrics
from pointsman.telemetry.decisions import DecisionRing

WAIT_S_MAX = 20.0


class FakeEngine:
    """vLLM's side routes. `models` are base models, `adapters` their adapters.

    `status` overrides the answer of a path; a path in `hangs` is never answered. `ranks` are those
    that its metrics tell of, `ranks_named` how many a request may name; 0 reads no such header.
    """

    def __init__(self) -> None:
        self.url = ""
        self.models = ["m"]
        self.adapters: list[str] = []
        self.metrics = {"num_requests_running": 0.0, "num_requests_waiting": 0.0}
        self.generation_tokens = 0
        self.block_tokens, self.kv_blocks = 16, 1_000
        self.ranks: Sequence[int] = (0,)
        self.ranks_named = 1
        self.started_s = 1_000.0
        self.sources: dict[str, object] = {}
        self.status: dict[str, int] = {}
        self.hangs: set[str] = set()
        self.asked: list[str] = []

    def restart(self) -> None:
        """As a process manager does it: same address, new process."""
        self.started_s += 60.0
        self.generation_tokens = 0

    def count(self, path: str) -> int:
        return self.asked.count(path)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        self.asked.append(path)
        if path in self.hangs:
            await asyncio.sleep(3_600)
        if path in self.status:
            return web.Response(status=self.status[path], text="no")
        match path:
            case "/health":
                return web.Response()
            case "/v1/models":
                return web.json_response({"data": self._cards()})
            case "/metrics":
                return web.Response(text=self._page())
            case "/version":
                return web.json_response({"version": "0.32.0"})
            case "/kv_event_sources":
                return web.json_response(self.sources)
            case "/v1/completions":
                return self._complete(request.headers.get(RANK_HEADER))
            case _:
                return web.Response(status=404)

    def _complete(self, rank: str | None) -> web.Response:
        if rank is None or not self.ranks_named or int(rank) < self.ranks_named:
            return web.json_response({"choices": [{"text": "1"}]})
        text = f"data_parallel_rank {rank} is out of range [0, {self.ranks_named})."
        return web.json_response({"error": {"message": text}}, status=400)

    def _cards(self) -> list[dict[str, object]]:
        base: list[dict[str, object]] = [
            {"id": name, "owned_by": "vllm", "max_model_len": 4_096} for name in self.models
        ]
        return base + [{"id": name, "parent": self.models[0]} for name in self.adapters]

    def _page(self) -> str:
        lines = [f"process_start_time_seconds {self.started_s}"]
        lines += [
            f'vllm:{name}{{engine="{rank}",model_name="m"}} {value}'
            for name, value in self.metrics.items()
            for rank in self.ranks
        ]
        lines += [f"vllm:generation_tokens_total {self.generation_tokens}"]
        sizes = f'block_size="{self.block_tokens}",num_gpu_blocks="{self.kv_blocks}"'
        lines += [f"vllm:cache_config_info{{{sizes}}} 1.0"]
        return "\n".join(lines) + "\n"


@asynccontextmanager
async def fake_engine() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    runner = web.ServerRunner(
        web.Server(engine.handle, handler_cancellation=True), shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


HURRIED = Cadence(
    probe_s=0.05,
    probe_retry_s=0.02,
    probe_timeout_s=0.2,
    scrape_s=0.02,
    scrape_idle_s=0.04,
    describe_s=0.1,
)


class Cluster:
    """A scheduler fed by real collectors."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = DecisionRing()
        self.scheduler = Scheduler(SchedulerOptions(policy="round_robin"))
        self.service = SchedulerService(self.scheduler, decisions=self.decisions)
        self.metrics = CollectorMetrics(self.registry)
        self.fleet = Fleet(self.service, self.metrics, cadence=HURRIED)

    def add(
        self,
        url: str,
        name: str = "n",
        *,
        models: tuple[str, ...] = (),
        kv_events: str = "auto",
        ranks: Ranks = "auto",
    ) -> None:
        spec = NodeSpec(name=NodeName(name), url=url, models=tuple(map(ModelName, models)))
        self.fleet.add(spec, kv_events=kv_events, ranks=ranks)

    def node(self, name: str = "n") -> NodeView:
        return next(n for n in self.scheduler.nodes(self.service.now_s()) if n.name == name)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"pointsman_{name}_total", labels) or 0.0

    async def ready(self) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await self.fleet.until_described()


@asynccontextmanager
async def running_cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    cluster.service.start()
    collecting = asyncio.get_running_loop().create_task(cluster.fleet.run())
    try:
        await asyncio.sleep(0)
        yield cluster
    finally:
        collecting.cancel()
        await asyncio.wait([collecting])
        cluster.service.stop()
        cluster.scheduler.check()


async def start_request(cluster: Cluster, request_id: str, model: str = "m") -> None:
    """Place a request, and let its answer begin."""
    verdicts: list[Verdict] = []
    prompt = Prompt(Namespace(model), text=b"x" * 1_000)
    cluster.service.arrive(
        Request(id=RequestId(request_id), model=ModelName(model), prompt=prompt), verdicts.append
    )
    assert isinstance(verdicts[0], Placed), verdicts
    cluster.service.started(RequestId(request_id))
