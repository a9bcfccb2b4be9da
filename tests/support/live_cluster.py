"""The process that `serve` would run, in front of engines that are processes of their own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pointsman.cli.config import Config, Engine
from pointsman.core.events import IndexTrust
from pointsman.core.scheduler import Scheduler
from pointsman.core.views import NodeView
from tests.support.cluster import Answer, Cluster, cluster_config, new_session, running_process
from tests.support.live_engines import LiveEngine

SYNC_S_MAX = 10.0


class LiveCluster(Cluster):
    """As Cluster, of what the engines themselves say."""

    async def complete(self, prompt: object, **fields: Any) -> Answer:
        return await super().complete(prompt, **{"model": "tiny", "temperature": 0, **fields})

    async def chat(self, *contents: str, **fields: Any) -> Answer:
        return await super().chat(*contents, **{"model": "tiny", "temperature": 0, **fields})

    def _is_in_sync(self, node: NodeView) -> bool:
        return node.facts.kind == "llamacpp" or node.index_trust is IndexTrust.EXACT

    async def leftovers(self) -> dict[str, float]:
        """Every count of ours, and of the engines by their own metrics."""
        counts = await super().leftovers()
        for node in (await self.state())["nodes"]:
            if node["health"] == "ready":
                page = await self.metrics(node["url"])
                counts |= {f"{node['name']} {name}": value for name, value in page.items()}
        return {name: count for name, count in counts.items() if count}

    async def metrics(self, url: str) -> Mapping[str, float]:
        """What an engine says that it is doing."""
        async with self.session.get(f"{url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        wanted = ("num_requests_running", "num_requests_waiting", "requests_processing")
        found = [line for line in lines if line.partition("{")[0].rpartition(":")[2] in wanted]
        found += [line for line in lines if line.startswith("llamacpp:requests_processing ")]
        return {line.split()[0].partition("{")[0]: float(line.split()[1]) for line in found}

    async def predicted_tokens(self, answer: Answer) -> int:
        """The hit that the decision about it counted on."""
        decisions = (await self.admin_json("GET", f"/decisions/{answer.id}"))["decisions"]
        return int(decisions[-1]["hit_tokens"])

    async def events_are_in(self) -> None:
        """Until no KV event has come in for a while: engines publish within a step or so."""
        async with asyncio.timeout(SYNC_S_MAX):
            before = None
            while before != (before := self.event_counts()):  # noqa: ASYNC110 - tells nobody
                await asyncio.sleep(0.08)

    def event_counts(self) -> list[int]:
        scheduler: Scheduler = self.scheduler
        return [node.index_blocks for node in scheduler.nodes(0.0)]


@asynccontextmanager
async def live_cluster(
    *engines: LiveEngine,
    policy: str = "marginal_cost",
    config: Config | None = None,
    engine_config: Sequence[Mapping[str, Any]] = (),
) -> AsyncIterator[LiveCluster]:
    """A gateway in front of `engines`, once it knows them. Ends with everything at rest."""
    added = [*engine_config, *({} for _ in engines)]
    entries = [Engine(url=e.url, **more) for e, more in zip(engines, added, strict=False)]
    settings = cluster_config(entries, policy=policy, base=config)
    async with running_process(settings) as process, new_session() as session:
        cluster = LiveCluster(process, (), session)
        await cluster.until_ready()
        yield cluster
        await cluster.at_rest()
