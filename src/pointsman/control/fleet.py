"""All nodes: added and removed while running, each with its own task."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

import aiohttp
import msgspec

from pointsman.collectors.cadence import Cadence
from pointsman.collectors.client import EngineClient, new_session
from pointsman.collectors.event_socket import EventSockets, event_sockets
from pointsman.collectors.link import NodeLink
from pointsman.collectors.node import NodeCollector
from pointsman.control.service import SchedulerService
from pointsman.control.watcher import NodeWatcher
from pointsman.core.events import Admitted, Left, NodeJudged, NodeSpec, Turned
from pointsman.core.health import WATCHED, Health
from pointsman.core.ids import NodeId, NodeName
from pointsman.core.limits import NODES_MAX
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.adapters.address import server_of
from pointsman.telemetry.collector_metrics import CollectorMetrics

SEE_OFF_S = 0.1
"""Between looks at a node that is to leave once it has nothing to do."""

HEIRS_S_MAX = 60.0
"""For new nodes to describe themselves before the old ones go: an engine that is still loading
its model is no successor yet, and one that never comes up must not keep the old ones for ever."""

log = logging.getLogger(__name__)


class NodeRefused(Exception):  # noqa: N818 - named by whose fault it is
    """The node cannot be added. The text names the remedy."""


class NodeStatus(msgspec.Struct, frozen=True):
    """What the collectors know beside the core. An empty `problem` is none."""

    problem: str
    events: str
    restarts: int


class _Runtime(NamedTuple):
    """What exists while the fleet runs."""

    session: aiohttp.ClientSession
    sockets: EventSockets
    tasks: asyncio.TaskGroup


class Fleet(NodeWatcher):
    """Owns every node's collector. Nodes may be added before it runs, and while it does."""

    def __init__(
        self,
        service: SchedulerService,
        metrics: CollectorMetrics,
        *,
        cadence: Cadence | None = None,
        keys: EngineKeys | None = None,
        seed: int = 0,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._cadence = cadence or Cadence()
        self._keys = keys or EngineKeys()
        self._rng = Random(seed)
        self._links: dict[NodeName, NodeLink] = {}
        self._by_id: dict[NodeId, NodeLink] = {}
        self._tasks: dict[NodeName, asyncio.Task[None]] = {}
        self._retiring: dict[NodeName, asyncio.Task[None]] = {}
        self._runtime: _Runtime | None = None
        service.watch(self)

    async def run(self) -> None:
        """Collect until cancelled. Every incarnation leaves at the end."""
        async with new_session(self._keys) as session, event_sockets() as sockets:
            try:
                async with asyncio.TaskGroup() as tasks:
                    self._runtime = _Runtime(session, sockets, tasks)
                    for link in list(self._links.values()):
                        self._start(link)
                    await asyncio.Event().wait()
            finally:
                self._runtime = None

    # --- for operators ------------------------------------------------------------------

    def add(self, spec: NodeSpec, *, kv_events: str = "auto", api_key: str = "") -> None:
        """Begin to collect from it; `api_key` is what it asks for, unless the configuration has
        that. Raises NodeRefused."""
        if spec.name in self._links:
            raise NodeRefused(f"a node named '{spec.name}' exists; DELETE it first")
        same = next((n for n in self._links.values() if n.spec.url == spec.url), None)
        if same is not None:
            raise NodeRefused(f"{spec.url} is node '{same.spec.name}' already")
        if len(self._links) >= NODES_MAX:
            raise NodeRefused(f"the cluster has {NODES_MAX} nodes, its limit")
        tally = self._metrics.node(spec.name)
        rng = Random(self._rng.random())
        link = NodeLink(spec, self._service, tally, rng, kv_events=kv_events, cadence=self._cadence)
        self._links[spec.name] = link
        if api_key:
            self._keys.add(spec.url, api_key)
        self._start(link)

    async def remove(self, name: NodeName) -> bool:
        """Take it out for good; requests on it finish. False if there is no such node."""
        link = self._links.pop(name, None)
        if link is None:
            return False
        retiring = self._retiring.pop(name, None)
        if retiring is not None and retiring is not asyncio.current_task():
            retiring.cancel()
        self._metrics.forget(name)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if not any(_is_beside(link, other) for other in self._links.values()):
            self._keys.drop(link.spec.url)
        return True

    def retire(self, name: NodeName, within_s: float, after: Sequence[NodeName] = ()) -> bool:
        """Drain it once the nodes of `after` can take over, and take it out when nothing of
        ours runs there any more, or after `within_s`. False if there is no such node."""
        link = self._links.get(name)
        if link is None or self._runtime is None:
            return False
        if name not in self._retiring:
            heirs = [self._links[heir] for heir in after if heir in self._links]
            task = self._runtime.tasks.create_task(self._see_off(link, within_s, heirs))
            self._retiring[name] = task
        return True

    def runs(self, spec: NodeSpec, kv_events: str) -> bool:
        """Whether a node of that name has that engine, whatever else is said of it."""
        link = self._links.get(spec.name)
        return link is not None and (link.spec.url, link.kv_events) == (spec.url, kv_events)

    def stay(self, name: NodeName) -> None:
        """It was to leave and no longer is."""
        retiring = self._retiring.pop(name, None)
        if retiring is not None:
            retiring.cancel()
            self._links[name].drain(False)

    def respecify(self, spec: NodeSpec) -> None:
        """Configure the node of that name and address otherwise; what it holds stays."""
        link = self._links[spec.name]
        assert link.spec.url == spec.url, (link.spec.url, spec.url)
        if link.spec != spec:
            link.respecify(spec)

    def apply(self, cadence: Cadence) -> None:
        """Look at all nodes this often from here on."""
        self._cadence = cadence
        for link in self._links.values():
            link.cadence = cadence

    def namesakes(self, spec: NodeSpec) -> list[NodeName]:
        """The nodes that have its name or its address."""
        links = self._links.values()
        return [n.spec.name for n in links if n.spec.name == spec.name or n.spec.url == spec.url]

    def is_retiring(self, name: NodeName) -> bool:
        """Whether it is on its way out."""
        return name in self._retiring

    def drain(self, name: NodeName, draining: bool) -> bool:
        """Out of rotation, or back into it. False if there is no such node."""
        link = self._links.get(name)
        if link is not None:
            link.drain(draining)
        return link is not None

    def judge(self, name: NodeName, healthy: bool, detail: str) -> bool:
        """Take in what somebody who uses it says. False if there is no such node."""
        link = self._links.get(name)
        if link is not None and link.node_id is not None:
            self._service.submit(NodeJudged(link.node_id, healthy, detail))
        return link is not None

    def status(self, name: NodeName) -> NodeStatus | None:
        link = self._links.get(name)
        return NodeStatus(link.problem, link.events_note, link.restarts) if link else None

    # --- for agents ---------------------------------------------------------------------

    def attend(self, spec: NodeSpec, agent: str) -> NodeLink:
        """Let an agent tell of the engine at that address, instead of looking at it ourselves.
        It keeps the name it has here; one that is new is added. Raises NodeRefused."""
        link = next((n for n in self._links.values() if n.spec.url == spec.url), None)
        if link is None:
            self.add(spec)
            link = self._links[spec.name]
        elif link.attended_by not in ("", agent):
            raise NodeRefused(f"agent {link.attended_by} attends to {spec.url} already")
        if self.is_retiring(link.spec.name):
            self.stay(link.spec.name)
        link.attend(agent)
        if link.node_id is None:
            link.join()
        return link

    def has_url(self, url: str) -> bool:
        """Whether some node has that address."""
        return any(link.spec.url == url for link in self._links.values())

    def leave_alone(self, link: NodeLink) -> None:
        """Its agent is gone: look at it ourselves again."""
        if self._links.get(link.spec.name) is link:
            link.leave_alone()

    # --- for everybody ------------------------------------------------------------------

    async def until_described(self) -> None:
        """Wait until every node there is now has described itself."""
        for link in list(self._links.values()):
            await link.described.wait()

    @property
    def waiting(self) -> Iterable[tuple[NodeSpec, str]]:
        """Nodes that have not described themselves, and why."""
        return [(n.spec, n.problem) for n in self._links.values() if not n.described.is_set()]

    @property
    def names(self) -> list[NodeName]:
        return list(self._links)

    # --- for the service: NodeWatcher ---------------------------------------------------

    def admitted(self, effect: Admitted) -> None:
        link = self._links.get(effect.name)
        if link is not None:
            link.node_id = effect.node_id
            link.is_watched = link.is_on_trial = False
            self._by_id[effect.node_id] = link

    def turned(self, effect: Turned) -> None:
        link = self._by_id.get(effect.node_id)
        if link is not None:
            link.is_watched = effect.after in WATCHED
            link.is_on_trial = effect.after is Health.HALF_OPEN
            if link.is_watched:
                link.probe_soon.set()

    def left(self, effect: Left) -> None:
        self._by_id.pop(effect.node_id, None)

    def placed(self, node_id: NodeId) -> None:
        link = self._by_id.get(node_id)
        if link is not None:
            link.placed()

    def alive(self, node_id: NodeId) -> None:
        link = self._by_id.get(node_id)
        if link is not None:
            link.alive_at_s = link.now_s()

    def failed(self, node_id: NodeId) -> None:
        link = self._by_id.get(node_id)
        if link is not None:
            link.probe_soon.set()

    # --- tasks --------------------------------------------------------------------------

    def _start(self, link: NodeLink) -> None:
        if self._runtime is None:
            return  # `run` starts it
        client = EngineClient(self._runtime.session, link.spec.url)
        collector = NodeCollector(link, client, self._runtime.sockets)
        self._tasks[link.spec.name] = self._runtime.tasks.create_task(collector.run())

    async def _see_off(self, link: NodeLink, within_s: float, heirs: Iterable[NodeLink]) -> None:
        """Wait until nothing runs on the node, then take it out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEIRS_S_MAX):
                for heir in heirs:
                    await heir.described.wait()
        link.drain(True)
        try:
            async with asyncio.timeout(within_s):
                while self._service.inflight_on(link.node_id):  # noqa: ASYNC110 - settlements tell nobody
                    await asyncio.sleep(SEE_OFF_S)
        except TimeoutError:
            log.warning("engine %s leaves with requests of ours on it", link.spec.name)
        await self.remove(link.spec.name)
        log.info("engine %s is gone", link.spec.name)


def _is_beside(link: NodeLink, other: NodeLink) -> bool:
    """Whether they are ranks of one server."""
    return server_of(link.spec.url) == server_of(other.spec.url)
