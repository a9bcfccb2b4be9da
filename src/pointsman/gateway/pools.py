"""All connections to engines: one pool a node incarnation, and what is being dialled."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pointsman.core.ids import NodeId
from pointsman.descriptors import is_for_want_of_descriptors
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway.upstream import AllPools, Caller, NodePool, UpstreamConnection

POOL_UNUSED_S: Final = 60.0
"""A pool with nothing in it is forgotten after this long: incarnations never come back."""

log = logging.getLogger(__name__)


class Pools(AllPools):
    """All connections to engines. Owns the tasks that dial; `close` ends both."""

    def __init__(
        self, *, idle_s: float, idle_max: int, engine_keys: EngineKeys, alias: str
    ) -> None:
        super().__init__(idle_s=idle_s, idle_max=idle_max, engine_keys=engine_keys, alias=alias)
        self._nodes: dict[NodeId, NodePool] = {}
        self._dials: dict[asyncio.Task[None], None] = {}

    def node(self, node_id: NodeId, url: str) -> NodePool:
        """The pool of an incarnation."""
        pool = self._nodes.get(node_id)
        if pool is None:
            pool = self._nodes[node_id] = NodePool(self, node_id, url)
        return pool

    def dial(self, pool: NodePool, caller: Caller) -> "Dial":
        """Begin a fresh connection; `caller` is told of it, after this call has returned."""
        dial = Dial(caller)
        task = asyncio.get_running_loop().create_task(dial.run(pool))
        dial.task = task
        self._dials[task] = None
        task.add_done_callback(self._dialled)
        return dial

    def forget(self, node_id: NodeId) -> None:
        """An incarnation has ended: its idle connections close, running requests go on."""
        pool = self._nodes.pop(node_id, None)
        if pool is not None:
            pool.is_forgotten = True  # nobody would sweep what its running requests put back
            pool.expire(float("inf"))

    def sweep(self, now_s: float) -> None:
        """Close what was idle for too long, forget pools out of use."""
        unused: list[NodeId] = []
        for pool in self._nodes.values():
            pool.expire(now_s - self.idle_s)
            if not pool.open_count and now_s - pool.used_s > POOL_UNUSED_S:
                unused.append(pool.node_id)
        for node_id in unused:
            del self._nodes[node_id]

    async def close(self) -> None:
        """Close what is idle, end what is being dialled."""
        self.is_closed = True
        for node_id in list(self._nodes):
            self.forget(node_id)
        dials = list(self._dials)
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)

    @property
    def idle_count(self) -> int:
        return sum(len(pool.idle) for pool in self._nodes.values())

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dials.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a dial failed", exc_info=error)


class Dial:
    """A connection being made for a caller. After `cancel` the caller hears nothing."""

    def __init__(self, caller: Caller) -> None:
        self._caller: Caller | None = caller
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self._caller = None
        if self.task is not None:
            self.task.cancel()

    async def run(self, pool: NodePool) -> None:
        loop = asyncio.get_running_loop()
        upstream = UpstreamConnection(pool)
        try:
            await loop.create_connection(lambda: upstream, pool.host, pool.port)
        except (OSError, UnicodeError) as error:  # the latter for an empty label: a..b
            upstream.forsake()
            is_ours = is_for_want_of_descriptors(error)
            self._tell(lambda caller: caller.unreachable(is_ours=is_ours))
        except asyncio.CancelledError:
            upstream.forsake()
            raise
        else:
            self._tell(lambda caller: caller.dialled(upstream))

    def _tell(self, news: Callable[[Caller], None]) -> None:
        caller, self._caller = self._caller, None
        if caller is None:
            return
        try:
            news(caller)
        except Exception:  # the driver's outermost loop; the caller has settled itself
            log.exception("a connection could not be used")
            caller.crashed()
