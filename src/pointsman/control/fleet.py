"""All nodes: added and removed while running, each with its own task."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import aiohttp
import msgspec

from pointsman.collectors.cadence import Cadence
from pointsman.collectors.client import EngineClient, new_session
from pointsman.collectors.event_socket import EventSockets, event_sockets
from pointsman.collectors.link import NodeLink
from pointsman.collectors.node import NodeCollector
from pointsman.control.leaving import see_off, until_described
from pointsman.control.listed import ListedEngine, Ranks
from pointsman.control.service import SchedulerService
from pointsman.control.watcher import NodeWatcher
from pointsman.core.events import Admitted, Left, NodeJudged, NodeSpec, Turned
from pointsman.core.health import WATCHED, Health
from pointsman.core.ids import NodeId, NodeName
from pointsman.core.limits import NODES_MAX
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.adapters.address import Door, door_problem
from pointsman.telemetry.collector_metrics import CollectorMetrics

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
    """Owns every node's collector. Nodes may be added before it runs, and while it does; none at
    `doors`, where the gateway itself listens."""

    doors: tuple[Door, ...] = ()

    def __init__(
        self,
        service: SchedulerService,
        metrics: CollectorMetrics,
        *,
        cadence: Cadence | None = None,
        keys: EngineKeys | None = None,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._cadence = cadence or Cadence()
        self._keys = keys or EngineKeys()
        self._rng = Random(0)  # spreads looks at the nodes; which one comes first is no matter
        self._listed: dict[NodeName, ListedEngine] = {}  # as configured
        self._holders: dict[str, NodeName] = {}  # the engine of each name, and of each address
        self._links: dict[NodeName, NodeLink] = {}
        self._by_id: dict[NodeId, NodeLink] = {}
        self._tasks: dict[NodeName, asyncio.Task[None]] = {}
        self._retiring: dict[NodeName, asyncio.Task[None]] = {}
        self._runtime: _Runtime | None = None
        service.watch(self)
        service.watch_traffic(self)

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

    def add(
        self, spec: NodeSpec, *, kv_events: str = "auto", api_key: str = "", ranks: Ranks = "auto"
    ) -> None:
        """Begin to collect from it, or from each of its data-parallel ranks; `api_key` is what it
        asks for, unless the configuration has that. Raises NodeRefused."""
        self._enlist(ListedEngine(spec, kv_events, ranks))
        if api_key:
            self._keys.add(spec.url, api_key)

    async def remove(self, name: NodeName) -> bool:
        """Take it out for good; requests on it finish. False if there is no such node."""
        nodes = self._nodes_of(name)
        if ending := [task for node in nodes if (task := self._drop(node)) is not None]:
            await asyncio.wait(ending)
        return bool(nodes)

    def exchange(
        self, leaving: Sequence[NodeName], joining: Sequence[ListedEngine]
    ) -> dict[NodeName, str]:
        """Take engines out and others in, in one step: what is known of the engine at an address
        stays known, so that it serves at once by its new name. Why some are not taken in."""
        before = [self._links[node] for name in leaving for node in self._nodes_of(name)]
        known = {link.spec.url: link for link in before}
        for link in before:
            self._drop(link.spec.name)
        refused = {}
        for listed in joining:
            try:
                self._enlist(listed)
            except NodeRefused as refusal:
                refused[listed.spec.name] = str(refusal)
            else:
                self._take_over(listed, known)
        return refused

    def retire(self, name: NodeName, within_s: float, after: Sequence[NodeName] = ()) -> bool:
        """Drain it once the nodes of `after` can take over, and take it out when nothing of
        ours runs there any more, or after `within_s`. False if there is no such node."""
        nodes = self._nodes_of(name)
        if not nodes or self._runtime is None:
            return False
        heirs = [self._links[node] for heir in after for node in self._nodes_of(heir)]
        for node in nodes:
            if node not in self._retiring:
                leaving = self._see_off(self._links[node], within_s, heirs)
                self._retiring[node] = self._runtime.tasks.create_task(leaving)
        return True

    async def until_back(self, name: NodeName, within_s: float) -> None:
        """Wait until an engine that has taken another's place can take its requests, for so long
        at most."""
        await until_described([self._links[node] for node in self._nodes_of(name)], within_s)

    def runs(self, wanted: ListedEngine) -> bool:
        """Whether an engine of that name is at that address, whatever else is said of it."""
        listed = self._listed.get(wanted.spec.name)
        return listed is not None and listed.is_at(wanted)

    def stay(self, name: NodeName) -> None:
        """Take back that it is to leave."""
        for node in self._nodes_of(name):
            retiring = self._retiring.pop(node, None)
            if retiring is not None:
                retiring.cancel()
                self._links[node].drain(False)

    def respecify(self, spec: NodeSpec) -> None:
        """Configure the engine of that name and address otherwise; what it holds stays."""
        listed = self._listed[spec.name]
        assert listed.spec.url == spec.url, (listed.spec.url, spec.url)
        listed.spec = spec
        for wanted in listed.nodes:
            link = self._links.get(wanted.name)
            if link is not None and link.spec != wanted:
                link.respecify(wanted)

    def apply(self, cadence: Cadence) -> None:
        """Look at all nodes this often from here on, and at once: keys may be others."""
        self._cadence = cadence
        for link in self._links.values():
            link.cadence = cadence
            link.describe_soon.set()

    def namesakes(self, spec: NodeSpec) -> list[NodeName]:
        """The engines that have its name or its address, or a rank of which has."""
        found = (self._holders.get(spec.name), self._holders.get(spec.url))
        return list(dict.fromkeys(name for name in found if name is not None))

    def is_retiring(self, name: NodeName) -> bool:
        """Whether it is on its way out."""
        return any(node in self._retiring for node in self._nodes_of(name))

    def drain(self, name: NodeName, draining: bool) -> bool:
        """Out of rotation, or back into it. False if there is no such node."""
        nodes = self._nodes_of(name)
        for node in nodes:
            self._links[node].drain(draining)
        return bool(nodes)

    def judge(self, name: NodeName, healthy: bool, detail: str) -> bool:
        """Take in how it is, from somebody who uses it. False if there is no such node."""
        nodes = self._nodes_of(name)
        for node in nodes:
            if (node_id := self._links[node].node_id) is not None:
                self._service.submit(NodeJudged(node_id, healthy, detail))
        return bool(nodes)

    def status(self, name: NodeName) -> NodeStatus | None:
        link = self._links.get(name)
        return NodeStatus(link.problem, link.events_note, link.restarts) if link else None

    # --- for agents ---------------------------------------------------------------------

    def attend(self, spec: NodeSpec, agent: str) -> NodeLink:
        """Let an agent tell of the engine at that address, instead of looking at it ourselves.
        It keeps the name it has here; one that is new is added. Raises NodeRefused."""
        link = self._at(spec.url)
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
        return self._at(url) is not None

    def leave_alone(self, link: NodeLink) -> None:
        """Its agent is gone: look at it ourselves again."""
        if self._links.get(link.spec.name) is link:
            link.leave_alone()

    # --- for everybody ------------------------------------------------------------------

    async def until_described(self) -> None:
        """Wait until every node there is has described itself."""
        while (waiting := next(self._undescribed, None)) is not None:
            await waiting.described.wait()

    @property
    def waiting(self) -> Iterable[tuple[NodeSpec, str]]:
        """Nodes that have not described themselves, and why."""
        return [(link.spec, link.problem) for link in self._undescribed]

    @property
    def _undescribed(self) -> Iterator[NodeLink]:
        return (link for link in self._links.values() if not link.described.is_set())

    @property
    def names(self) -> list[NodeName]:
        return list(self._links)

    # --- for the service: NodeWatcher and TrafficWatcher ---------------------------------

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
        link = self._by_id.pop(effect.node_id, None)
        if link is not None and link.node_id == effect.node_id:
            link.node_id = None  # another one has its name

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

    # --- engines and their nodes --------------------------------------------------------

    def _nodes_of(self, name: NodeName) -> list[NodeName]:
        """The nodes that an engine's name, or a rank's own, stands for."""
        listed = self._listed.get(name)
        if listed is None:
            return [name] if name in self._links else []
        names = [node.name for node in listed.nodes]
        return [n for n in names if n in self._links and self._holders[n] == name]

    def _at(self, url: str) -> NodeLink | None:
        """The node that has that address."""
        holder = self._holders.get(url)
        links = [self._links[node] for node in self._nodes_of(holder)] if holder else []
        return next((link for link in links if link.spec.url == url), None)

    def _divide(self, listed: ListedEngine, ranks: int) -> None:
        """So many data-parallel ranks are behind its address: a node for each, and no others."""
        if listed.divided_into == ranks or self.is_retiring(listed.spec.name):
            return
        before, drained = listed.nodes, self._drains(listed.spec.name)
        listed.divided_into = ranks
        log.info("engine %s has %d data-parallel ranks", listed.spec.name, ranks)
        for spec in listed.nodes:
            if spec not in before:
                try:
                    self._add(listed, spec).draining = drained
                except NodeRefused as refused:
                    log.warning("engine %s is not used: %s", spec.name, refused)
        for spec in before:
            if spec not in listed.nodes:
                self._drop(spec.name)

    def _drains(self, name: NodeName) -> bool:
        return all(self._links[node].draining for node in self._nodes_of(name))

    def _take_over(self, listed: ListedEngine, known: Mapping[str, NodeLink]) -> None:
        """Go by what is known of the nodes behind its address."""
        if listed.may_be_divided:
            self._divide(listed, listed.count_ranks(known))
        for spec in listed.nodes:
            if spec.url in known and spec.name in self._links:
                self._links[spec.name].succeed(known[spec.url])

    def _enlist(self, listed: ListedEngine) -> None:
        """Raises NodeRefused."""
        self._add(listed, listed.spec)
        self._listed[listed.spec.name] = listed

    def _add(self, listed: ListedEngine, spec: NodeSpec) -> NodeLink:
        """Raises NodeRefused."""
        if problem := door_problem(spec.url, self.doors):
            raise NodeRefused(problem)
        if spec.name in self._holders:
            raise NodeRefused(f"a node named '{spec.name}' exists; DELETE it first")
        if spec.url in self._holders:
            raise NodeRefused(f"{spec.url} is node '{self._holders[spec.url]}' already")
        if len(self._links) >= NODES_MAX:
            raise NodeRefused(f"the cluster has {NODES_MAX} nodes, its limit")
        link = NodeLink(
            spec,
            self._service,
            self._metrics.node(spec.name),
            Random(self._rng.random()),
            kv_events=listed.kv_events,
            cadence=self._cadence,
            on_ranks=partial(self._divide, listed) if listed.may_be_divided else None,
        )
        self._links[spec.name] = link
        self._holders[spec.name] = self._holders[spec.url] = listed.spec.name
        self._start(link)
        return link

    def _drop(self, name: NodeName) -> asyncio.Task[None] | None:
        """Take out a node. Returns the task that ends with it."""
        link = self._links.pop(name)
        server, others = link.spec.server, self._links.values()
        if self._keys.has_added(server) and all(o.spec.server != server for o in others):
            self._keys.drop(server)
        engine = self._listed[self._holders[name]].spec
        if name != engine.name:  # a rank
            self._let_go(link.spec)
        if not self._nodes_of(engine.name):
            self._let_go(engine)
            del self._listed[engine.name]
        retiring = self._retiring.pop(name, None)
        if retiring is not None and retiring is not asyncio.current_task():
            retiring.cancel()
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        return task

    def _let_go(self, spec: NodeSpec) -> None:
        del self._holders[spec.name], self._holders[spec.url]

    # --- tasks --------------------------------------------------------------------------

    def _start(self, link: NodeLink) -> None:
        if self._runtime is None:
            return  # `run` starts it
        client = EngineClient(self._runtime.session, link.spec.url)
        collector = NodeCollector(link, client, self._runtime.sockets)
        self._tasks[link.spec.name] = self._runtime.tasks.create_task(collector.run())

    async def _see_off(self, link: NodeLink, within_s: float, heirs: Iterable[NodeLink]) -> None:
        await see_off(link, self._service, within_s, heirs)
        await self.remove(link.spec.name)
        log.info("engine %s is gone", link.spec.name)
