"""Answers whether an engine is alive: by GET /health and, where that says more, by asking for a
token. The core has the thresholds."""

import asyncio
from http import HTTPStatus
from typing import assert_never

from pointsman.collectors.cadence import RequestProbes
from pointsman.collectors.client import ASK_PATH, EngineClient
from pointsman.collectors.link import NodeLink, wait_for
from pointsman.core.events import NodeJudged, NodeProbed
from pointsman.core.health import Cause
from pointsman.core.ids import NodeId
from pointsman.engines.adapters import EngineTrouble

BUSY_S = 10.0
"""An engine that began an answer this recently is alive, whatever its /health says: some
answer nothing else during a long prefill (ik_llama.cpp#1210)."""


ASK_S_MAX = 10.0
"""How long one token may take: more than an engine under load needs, less than a client's
patience."""


class Prober:
    """One node's probes."""

    def __init__(self, link: NodeLink, client: EngineClient) -> None:
        self._link = link
        self._client = client
        self._successes = link.cadence.recovery_probes

    async def run(self) -> None:
        """Probe for ever, once the node is described."""
        link = self._link
        await asyncio.sleep(link.jittered(link.cadence.probe_s) / 2)
        while True:
            await link.described.wait()
            await self.probe()
            await self._ask()
            if self._successes < link.cadence.recovery_probes or link.is_watched:
                await asyncio.sleep(link.jittered(link.cadence.probe_retry_s))
                continue
            link.probe_soon.clear()
            if await self._is_wanted():
                self._successes = 0  # a request failed there: look again, and again soon

    async def _is_wanted(self) -> bool:
        """Wait for the next probe's time. Whether somebody has asked for the probe; while an agent
        attends to the node there are no others."""
        link = self._link
        if not link.attended.is_set():
            return await wait_for(link.probe_soon, link.jittered(link.cadence.probe_s))
        await link.probe_soon.wait()
        return True

    async def probe(self) -> None:
        """Ask once and tell the core."""
        node_id = self._link.node_id
        if node_id is None:
            return
        detail = await self._trouble()
        if detail is None:
            self._healthy(node_id)
        elif detail:
            self._successes = 0
            self._link.tally.probes_failed.add()
            self._link.sink.submit(NodeProbed(node_id, healthy=False, detail=detail))

    def _healthy(self, node_id: NodeId) -> None:
        self._successes += 1
        self._link.answered_at_s = self._link.now_s()
        if self._successes == self._link.cadence.recovery_probes:
            self._link.describe_soon.set()  # it may have come back as another
        self._link.tally.probes_good.add()
        self._link.scrape_soon.set()  # while the connection is open
        self._link.sink.submit(NodeProbed(node_id, healthy=True))

    async def _ask(self) -> None:
        """Ask for a token and tell the core, where that may clear something up."""
        link, node_id = self._link, self._link.node_id
        model = self._model()
        if node_id is None or not model or not self._is_to_be_asked():
            return
        try:
            status = await self._client.ask(model, timeout_s=ASK_S_MAX)
            detail = f"POST {ASK_PATH} answers {status}"
        except EngineTrouble as trouble:
            if trouble.is_ours:
                return
            status, detail = 0, str(trouble)
        if status == HTTPStatus.OK:
            link.alive_at_s = link.now_s()
            link.sink.submit(NodeJudged(node_id, healthy=True))
        elif status == 0 or (status >= 500 and status != HTTPStatus.SERVICE_UNAVAILABLE):
            link.sink.submit(NodeJudged(node_id, False, detail, Cause.ERRORS))

    def _is_to_be_asked(self) -> bool:
        link = self._link
        match link.cadence.requests:
            case RequestProbes.OFF:
                return False
            case RequestProbes.TRIALS:
                return link.is_on_trial
            case RequestProbes.IDLE:
                quiet_s = link.now_s() - max(link.alive_at_s, link.placed_at_s)
                return link.is_on_trial or quiet_s >= link.cadence.probe_s
            case _:
                assert_never(link.cadence.requests)

    def _model(self) -> str:
        names = self._link.spec.models or [card.name for card in self._link.served]
        return names[0] if names else ""

    async def _trouble(self) -> str | None:
        """What is wrong; None if nothing is, empty if the answer tells nothing."""
        try:
            timeout_s = self._link.cadence.probe_timeout_s
            reply = await self._client.get("/health", timeout_s=timeout_s)
        except EngineTrouble as trouble:
            if trouble.is_ours:
                return ""
            if trouble.timed_out and self._is_busy():
                self._link.tally.probes_busy.add()
                return ""
            return str(trouble)
        # 404 or 405: an engine without this route. It answers, so it lives.
        return f"GET /health answers {reply.status}" if reply.status >= 500 else None

    def _is_busy(self) -> bool:
        return self._link.now_s() - self._link.alive_at_s < BUSY_S
