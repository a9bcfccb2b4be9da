"""Runs one node's four loops, and keeps each of them going.

While an agent attends to the node only the prober runs. The agent tells how the engine fares, but
only from here can be told whether it is reached.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pointsman.collectors.cancellation import heed_cancellation
from pointsman.collectors.client import EngineClient
from pointsman.collectors.describer import Describer
from pointsman.collectors.event_socket import EventSockets
from pointsman.collectors.link import NodeLink
from pointsman.collectors.prober import Prober
from pointsman.collectors.scraper import Scraper
from pointsman.collectors.subscriber import Subscriber

RESTART_PAUSE_S = 5.0
"""The pause before a loop goes on that failed on a bug of ours: it must not fill the log."""

log = logging.getLogger(__name__)


class NodeCollector:
    """The collector of one node. It runs until cancelled, and the incarnation leaves with it."""

    def __init__(self, link: NodeLink, client: EngineClient, sockets: EventSockets) -> None:
        self.link = link
        self._client = client
        self._sockets = sockets

    async def run(self) -> None:
        if self.link.node_id is None:  # else its agent was faster
            self.link.join()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_going(Prober(self.link, self._client).run))
                while True:
                    await self.link.alone.wait()
                    await self._look_until_attended()
        finally:
            self.link.leave()

    async def _look_until_attended(self) -> None:
        looks: tuple[Callable[[], Awaitable[None]], ...] = (
            Describer(self.link, self._client).run,
            Scraper(self.link, self._client).run,
            Subscriber(self.link, self._sockets).run,
        )
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(self._keep_going(look)) for look in looks]
            await self.link.attended.wait()
            for loop in loops:
                loop.cancel()

    async def _keep_going(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except Exception:  # a driver's outermost loop
                heed_cancellation()
                log.exception("a collector of engine %s failed", self.link.spec.name)
                await asyncio.sleep(RESTART_PAUSE_S)
