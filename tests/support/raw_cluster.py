"""The process that `serve` would run, before raw engines that record bytes and do as told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pointsman.cli.config import Config, Engine
from pointsman.cli.process import Process
from tests.support import upstreams
from tests.support.cluster import cluster_config, running_process
from tests.support.upstreams import Behaviour, Client, Received, Served
from tests.support.waiting import eventually

READY_S_MAX = 20.0
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'


class RawCluster:
    """What a test has in its hands."""

    def __init__(self, process: Process, engines: list[upstreams.Engine]) -> None:
        self.process = process
        self.engines = engines

    def posts(self, number: int = 0) -> list[Served]:
        """The requests of clients that an engine got, without what the collectors ask."""
        return [served for served in self.engines[number].served if is_post(served)]

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.process.port))

    async def ask(self, data: bytes) -> Received:
        """One request on a connection of its own."""
        client = await self.connect()
        try:
            await client.send(data)
            return await client.answer()
        finally:
            client.leave()

    async def at_rest(self) -> None:
        """Wait until nothing is in flight."""
        scheduler = self.process.service.scheduler
        await eventually(lambda: not scheduler.in_flight and not scheduler.held)
        scheduler.check()
        assert self.process.service.unsettled == 0
        assert not any(node.kv_blocks_leased for node in scheduler.nodes(0.0))


def is_post(served: Served) -> bool:
    return served.head.startswith(b"POST ")


@asynccontextmanager
async def raw_cluster(
    *behaviours: Behaviour, config: Config | None = None, policy: str = "marginal_cost"
) -> AsyncIterator[RawCluster]:
    """An engine for each behaviour, which gets the POSTs; the collectors' GETs are answered as
    by an engine that serves the model `m` and has nothing else."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(upstreams.engine(_with_collectors(behaviour)))
            for behaviour in behaviours
        ]
        entries = [Engine(url=engine.url) for engine in engines]
        process = await stack.enter_async_context(
            running_process(cluster_config(entries, policy=policy, base=config))
        )
        async with asyncio.timeout(READY_S_MAX):
            await process.fleet.until_described()
        cluster = RawCluster(process, engines)
        yield cluster
        await cluster.at_rest()


def _with_collectors(behaviour: Behaviour) -> Behaviour:
    async def serve(served: Served) -> None:
        if is_post(served):
            await behaviour(served)
        elif served.target == "/v1/models":
            await served.reply(200, MODELS)
        else:
            await served.reply(200 if served.target == "/health" else 404, b"")

    return serve
