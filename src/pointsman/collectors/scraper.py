"""Answers how busy an engine is: by GET /metrics, often while it works and seldom while it
idles."""

import asyncio

from pointsman.collectors.client import EngineClient
from pointsman.collectors.link import NodeLink, wait_for
from pointsman.collectors.ranks import RANKS_MAX
from pointsman.core.events import NodeReported, NodeSignals
from pointsman.core.ids import NodeId
from pointsman.engines.adapters import EngineTrouble, node_signals
from pointsman.wire.engine_metrics import EngineKind, EngineSignals, ranks_on, read_metrics

INTERVAL_S_IDLE_MIN = 2.0
"""The pause while nothing runs there, which doubles from this to the cadence's bound."""

INTERVAL_S_ERROR_MAX = 30.0
"""The longest pause after errors, which doubles up to this: an engine in trouble is not helped by
questions."""

INTERVAL_S_UNKNOWN = 60.0
"""The pause between looks at an engine without metrics that we can read."""

TIMEOUT_S = 2.0


class Scraper:
    """One node's load."""

    def __init__(self, link: NodeLink, client: EngineClient) -> None:
        self._link = link
        self._client = client
        self._interval_s = min(INTERVAL_S_IDLE_MIN, link.cadence.scrape_idle_s)

    async def run(self) -> None:
        """Scrape for ever, once the node is described."""
        while True:
            await self._link.described.wait()
            self._link.scrape_soon.clear()
            begun_s = self._link.now_s()
            await self.scrape()
            interval_s = self._link.jittered(self._interval_s)
            if await wait_for(self._link.scrape_soon, interval_s):
                # A burst of placements asks many times; the answer is wanted twice a second.
                busy_s = self._link.cadence.scrape_s
                pause_s = begun_s + busy_s - self._link.now_s()
                await asyncio.sleep(max(0.0, min(pause_s, busy_s)))

    async def scrape(self) -> None:
        """Ask once, tell the core, and choose when to ask again."""
        node_id, at_s = self._link.node_id, self._link.now_s()
        if node_id is None:
            return
        try:
            reply = await self._client.get("/metrics", timeout_s=TIMEOUT_S)
        except EngineTrouble:
            reply = None
        if reply is None or reply.status >= 500:
            self._link.tally.scrapes_failed.add()
            self._interval_s = min(2 * max(self._interval_s, 0.5), INTERVAL_S_ERROR_MAX)
        elif reply.status != 200:
            self._interval_s = INTERVAL_S_UNKNOWN
        else:
            self._link.tally.scrapes_good.add()
            self._report(node_id, at_s, reply.body)

    def _report(self, node_id: NodeId, at_s: float, body: bytes) -> None:
        """Tell the core. `at_s` is when we asked: what was placed since then counts on top of the
        answer."""
        page = read_metrics(body, self._client.rank)
        if node_id != self._link.node_id:
            return
        evidence = self._lost_rank(page) or self._link.is_another_process(page)
        if evidence and self._link.restarted(evidence):
            return
        self._link.saw_page(page)
        if page.kind is EngineKind.UNKNOWN:
            self._interval_s = INTERVAL_S_UNKNOWN
            return
        signals = node_signals(page)
        self._interval_s = self._next_interval_s(signals, at_s)
        self._link.sink.submit(NodeReported(node_id, at_s, signals))
        self._count_ranks(body)

    def _lost_rank(self, page: EngineSignals) -> str:
        """Evidence that the rank which somebody has listed is there no more; else empty."""
        rank = self._client.rank
        if rank is None or page.kind is not EngineKind.VLLM or page.running is not None:
            return ""
        return "" if self._link.on_ranks else f"its server tells of no data-parallel rank {rank}"

    def _count_ranks(self, body: bytes) -> None:
        """Ranks that were found come and go while their server stays: this node may be to leave."""
        if self._client.rank is None or self._link.on_ranks is None:
            return
        count = len(ranks_on(body))
        if 0 < count <= RANKS_MAX:
            self._link.on_ranks(count)

    def _next_interval_s(self, signals: NodeSignals, at_s: float) -> float:
        if signals.running or signals.waiting or self._link.placed_at_s >= at_s:
            return self._link.cadence.scrape_s
        longer_s = max(2 * self._interval_s, INTERVAL_S_IDLE_MIN)
        return min(longer_s, self._link.cadence.scrape_idle_s)
