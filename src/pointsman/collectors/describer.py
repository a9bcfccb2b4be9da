"""Answers who an engine is: asks until it has described itself, then watches what it serves."""

import asyncio
import logging
from urllib.parse import urlsplit

from pointsman.collectors.client import EngineClient
from pointsman.collectors.identity import other_engine
from pointsman.collectors.link import NodeLink, wait_for
from pointsman.collectors.ranks import RANKS_MAX, ranks_apart
from pointsman.core.events import NodeDescribed, NodeFacts
from pointsman.engines.adapters import (
    Description,
    EngineReply,
    EngineTrouble,
    NotReady,
    describe,
    refresh,
)
from pointsman.wire.engine_metrics import EngineKind

RETRY_S_MIN = 0.25
RETRY_S_MAX = 2.0
"""The longest pause between questions while an engine starts. vLLM takes 15 s to minutes, and users
wait for the first answer."""

COMPLAIN_S = 30.0
"""The pause between log lines about an engine that still has not described itself."""

TIMEOUT_S = 5.0
"""How long an answer may take: an engine that compiles kernels may be slow, not dead."""

NAMES_ITS_MODELS = frozenset({EngineKind.VLLM, EngineKind.SGLANG})
"""Engines that refuse a model they do not list; llama.cpp serves any name."""

log = logging.getLogger(__name__)


class Describer:
    """One node's description, kept fresh."""

    def __init__(self, link: NodeLink, client: EngineClient) -> None:
        self._link = link
        self._client = client
        self._host = urlsplit(link.spec.url).hostname or ""
        self._known: Description | None = None
        self._refusal = ""

    async def run(self) -> None:
        """Describe at once, after that in intervals and whenever asked to."""
        while True:
            self._link.describe_soon.clear()
            if self._link.described.is_set() and self._known is not None:
                await self._refresh()
            else:
                await self._describe_until_it_answers()
            interval_s = self._link.jittered(self._link.cadence.describe_s)
            await wait_for(self._link.describe_soon, interval_s)

    async def _describe_until_it_answers(self) -> None:
        delay_s, complain_at_s = RETRY_S_MIN, self._link.now_s()
        while not await self._describe():
            if self._link.now_s() >= complain_at_s:
                complain_at_s = self._link.now_s() + COMPLAIN_S
                log.warning(
                    "waiting for engine %s at %s: %s",
                    self._link.spec.name,
                    self._link.spec.url,
                    self._link.problem,
                )
            await asyncio.sleep(self._link.jittered(delay_s))
            delay_s = min(2 * delay_s, RETRY_S_MAX)

    async def _describe(self) -> bool:
        """Ask once. Whether the current incarnation is described, or others have come in its
        place."""
        node_id = self._link.node_id
        try:
            known = await describe(self._get, self._host, self._client.rank)
            is_divided = await self._is_divided(known)
        except (NotReady, EngineTrouble) as trouble:
            self._link.problem = str(trouble)
            return False
        if is_divided:
            return True
        if node_id is None or node_id != self._link.node_id:
            return False  # it restarted meanwhile: these may be the facts of the old one
        if problem := _mismatch(self._link.spec.models, known.facts):
            self._link.problem = problem
            return False
        self._known = known
        self._link.describe(known.facts, known.sources, known.page)
        return True

    async def _is_divided(self, known: Description) -> bool:
        """Whether each data-parallel rank of its server is a node, instead of the whole. Raises
        EngineTrouble."""
        on_ranks = self._link.on_ranks
        if on_ranks is None:
            return False
        if len(known.ranks) > RANKS_MAX:
            log.warning(
                "engine %s tells of %d data-parallel ranks: over %d are not believed, it stays as "
                "it is",
                self._link.spec.name,
                len(known.ranks),
                RANKS_MAX,
            )
            return False
        if self._client.rank is not None:
            on_ranks(len(known.ranks))  # the server may have come back with others
            return False
        count = await ranks_apart(self._client, known)
        if count:
            self._link.problem = f"each of its {count} data-parallel ranks is a node"
            on_ranks(count)
        return bool(count)

    async def _refresh(self) -> None:
        """Look at what it serves by now."""
        assert self._known is not None, "described, yet nothing is known"
        node_id, before = self._link.node_id, self._known
        try:
            known = await refresh(self._get, before)
        except NotReady as refusal:
            self._refuses(str(refusal))
            return
        except EngineTrouble:
            return  # the prober's matter
        self._refuses("")
        if node_id is None or node_id != self._link.node_id:
            return
        evidence = other_engine(before.facts, known.facts)
        if evidence and self._link.restarted(evidence):
            return
        if known.facts != before.facts:
            self._known = known
            self._link.facts = known.facts
            self._link.sink.submit(NodeDescribed(node_id, known.facts))

    def _refuses(self, refusal: str) -> None:
        """What the engine says in the place of its models; empty if it names them."""
        known, self._refusal = self._refusal, refusal
        if refusal == known:
            return
        link = self._link
        if refusal:
            log.warning("engine %s at %s: %s", link.spec.name, link.spec.url, refusal)
        if refusal or link.problem == known:
            link.problem = refusal

    async def _get(self, path: str) -> EngineReply:
        return await self._client.get(path, timeout_s=TIMEOUT_S)


def _mismatch(configured: tuple[str, ...], facts: NodeFacts) -> str:
    """Why the engine cannot serve what it is configured for, or an empty string."""
    served = [card.name for card in facts.models]
    if not configured or facts.kind not in NAMES_ITS_MODELS or set(configured) & set(served):
        return ""
    return f"it serves {', '.join(served)}, not {', '.join(configured)}"
