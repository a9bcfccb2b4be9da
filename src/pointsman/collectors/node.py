"""One node's four loops, and what keeps each of them going."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import zmq.asyncio

from pointsman.collectors.client import EngineClient
from pointsman.collectors.describer import Describer
from pointsman.collectors.link import NodeLink
from pointsman.collectors.prober import Prober
from pointsman.collectors.scraper import Scraper
from pointsman.collectors.subscriber import Subscriber

RESTART_PAUSE_S = 5.0
"""Before a loop that failed on a bug of ours goes on: it must not fill the log."""

log = logging.getLogger(__name__)


class NodeCollector:
    """Runs until cancelled; the incarnation leaves with it."""

    def __init__(self, link: NodeLink, client: EngineClient, context: zmq.asyncio.Context) -> None:
        self.link = link
        self._loops: tuple[Callable[[], Awaitable[None]], ...] = (
            Describer(link, client).run,
            Prober(link, client).run,
            Scraper(link, client).run,
            Subscriber(link, context).run,
        )

    async def run(self) -> None:
        self.link.join()
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in self._loops:
                    tasks.create_task(self._keep_going(loop))
        finally:
            self.link.leave()

    async def _keep_going(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except Exception:  # a driver's outermost loop
                log.exception("a collector of engine %s failed", self.link.spec.name)
                await asyncio.sleep(RESTART_PAUSE_S)
