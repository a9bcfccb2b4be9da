"""What the loops of one node share: its incarnation, and the way to the core."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from random import Random

from pointsman.collectors.cadence import Cadence
from pointsman.collectors.identity import restart_evidence
from pointsman.core.events import (
    ModelCard,
    NodeChanged,
    NodeDescribed,
    NodeDraining,
    NodeFacts,
    NodeJoined,
    NodeLeft,
    NodeSpec,
)
from pointsman.core.ids import NodeId
from pointsman.engines.adapters import EventSource
from pointsman.ports import NodeSink
from pointsman.telemetry.collector_metrics import NodeTally
from pointsman.wire.engine_metrics import EngineKind, EngineSignals

RESTARTS_MAX = 5
RESTARTS_S = 120.0
"""The most restarts, and the time for them. More are two engines behind one address, and taking
each answer for a new engine would void every lease and index there, again and again."""

log = logging.getLogger(__name__)


class NodeLink:
    """One node's link to the core, for the life of the process; incarnations come and go in it.

    `facts` and `sources` are those of the current incarnation, None until it is described.
    `problem` says what keeps it from being described. `on_ranks` wants to know how many
    data-parallel ranks its server has, and makes each a node. While an agent attends to the node,
    `attended_by` names it: then the agent tells everything, except whether the node is reached from
    here.
    """

    def __init__(
        self,
        spec: NodeSpec,
        sink: NodeSink,
        tally: NodeTally,
        rng: Random,
        *,
        kv_events: str = "auto",
        cadence: Cadence,
        on_ranks: Callable[[int], None] | None = None,
    ) -> None:
        self.spec = spec
        self.on_ranks = on_ranks
        self.cadence = cadence
        self.sink = sink
        self.now_s = sink.now_s
        self.tally = tally
        self.kv_events = kv_events
        self.node_id: NodeId | None = None
        self.facts: NodeFacts | None = None
        self.sources: tuple[EventSource, ...] = ()
        self.problem = "not asked yet"
        self.events_note = ""
        self.restarts = 0
        self.draining = False
        self.is_on_trial = False
        self.is_watched = False  # something speaks against it: it is looked at often
        self.placed_at_s = float("-inf")
        self.alive_at_s = float("-inf")
        self.answered_at_s = float("-inf")  # a probe of ours
        self.described = asyncio.Event()
        self.describe_soon = asyncio.Event()
        self.scrape_soon = asyncio.Event()
        self.probe_soon = asyncio.Event()
        self.resync_events = asyncio.Event()
        self.added_by_agent = False  # nobody has configured it
        self.attended_by = ""
        self.attended = asyncio.Event()
        self.alone = asyncio.Event()
        self.alone.set()
        self._page: EngineSignals | None = None
        self._restarts_s: deque[float] = deque(maxlen=RESTARTS_MAX)
        self._rng = rng

    @property
    def served(self) -> tuple[ModelCard, ...]:
        """The models of the current incarnation; none until it is described."""
        return () if self.facts is None else self.facts.models

    def join(self) -> None:
        """Begin a fresh incarnation. The core answers with `Admitted`, which sets `node_id`."""
        self.facts, self.sources, self._page = None, (), None
        self.described.clear()
        self.sink.submit(NodeJoined(self.spec))
        self.describe_soon.set()
        self.resync_events.set()
        if self.draining:
            self.drain(True)

    def describe(
        self,
        facts: NodeFacts,
        sources: tuple[EventSource, ...] = (),
        page: EngineSignals | None = None,
    ) -> None:
        """Describe the current incarnation: now the core may use it."""
        assert self.node_id is not None, f"{self.spec.name} is described before it joined"
        if sources != self.sources:
            self.resync_events.set()
        self.facts, self.sources, self._page = facts, sources, page
        self.problem = ""
        self.sink.submit(NodeDescribed(self.node_id, facts))
        self.described.set()
        served = ", ".join(card.name for card in facts.models[:4])
        log.info("engine %s is %s, serves %s", self.spec.name, facts.kind, served)

    def succeed(self, before: "NodeLink") -> None:
        """Take the place of another link to the same engine: what that has learned of it holds,
        unless something speaks against it, or it is to serve other models."""
        if before.facts is None or before.is_watched or before.spec.models != self.spec.models:
            return
        self.join()
        self.describe(before.facts, before.sources, before._page)

    def is_another_process(self, page: EngineSignals) -> str:
        """Evidence that `page` is of another process than the last one; else empty."""
        return "" if self._page is None else restart_evidence(self._page, page)

    def saw_page(self, page: EngineSignals) -> None:
        """Compare the next page with this one, unless it says nothing."""
        if page.kind is not EngineKind.UNKNOWN:
            self._page = page

    def restarted(self, evidence: str) -> bool:
        """Note that the engine is another process than before: what was known of it is void.

        False if that happens too often to be true; then the incarnation stays.
        """
        now_s = self.now_s()
        if len(self._restarts_s) == RESTARTS_MAX and now_s - self._restarts_s[0] < RESTARTS_S:
            self.problem = f"it changes too often ({evidence}): is its URL a load balancer's?"
            log.warning("engine %s: %s", self.spec.name, self.problem)
            return False
        self._restarts_s.append(now_s)
        self.restarts += 1
        self.tally.restarts.add()
        log.warning("engine %s restarted: %s", self.spec.name, evidence)
        self.problem = f"restarted ({evidence}), not described yet"
        self.join()
        return True

    def leave(self) -> None:
        """Leave for good; a second call changes nothing."""
        self.described.set()  # whoever waits for that need not wait any longer
        node_id, self.node_id = self.node_id, None
        if node_id is not None:
            self.sink.submit(NodeLeft(node_id))

    def respecify(self, spec: NodeSpec) -> None:
        """Configure the same engine at the same address otherwise."""
        self.spec = spec
        if self.node_id is not None:
            self.sink.submit(NodeChanged(self.node_id, spec))

    def drain(self, draining: bool) -> None:
        """Take it out of rotation, or back into it. This survives restarts of the engine."""
        self.draining = draining
        if self.node_id is not None:
            self.sink.submit(NodeDraining(self.node_id, draining))

    def attend(self, agent: str) -> None:
        """Let an agent tell of it from here on."""
        self.attended_by = agent
        self.on_ranks = None  # the agent tells of it as one
        self.events_note = f"told by agent {agent}"
        self.alone.clear()
        self.attended.set()

    def leave_alone(self) -> None:
        """Look for ourselves: no agent tells of it any more."""
        self.attended_by = self.events_note = ""
        self.attended.clear()
        self.alone.set()
        self.probe_soon.set()

    def placed(self) -> None:
        """Note that a request goes there: its load is worth knowing again."""
        self.placed_at_s = self.now_s()
        self.scrape_soon.set()

    def jittered(self, seconds: float) -> float:
        """The time, varied by 10 %, so that hundreds of nodes are not asked in the same instant."""
        return seconds * self._rng.uniform(0.9, 1.1)


async def wait_for(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for `event`: whether it was set in time. Does not clear it."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
