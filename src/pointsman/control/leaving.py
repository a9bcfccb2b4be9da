"""An engine that is to leave: what is waited for before it may go."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from pointsman.collectors.link import NodeLink
from pointsman.control.service import SchedulerService

SEE_OFF_S = 0.1
"""Between looks at a node that is to leave once it has nothing to do."""

HEIRS_S_MAX = 60.0
"""For new nodes to describe themselves before the old ones go: an engine that is still loading
its model is no successor yet, and one that never comes up must not keep the old ones for ever."""

log = logging.getLogger(__name__)


async def see_off(
    link: NodeLink, service: SchedulerService, within_s: float, heirs: Iterable[NodeLink]
) -> None:
    """Drain a node once its heirs can take over, and wait until nothing of ours runs there."""
    await until_described(heirs, HEIRS_S_MAX)
    link.drain(True)
    try:
        async with asyncio.timeout(within_s):
            while service.inflight_on(link.node_id):  # noqa: ASYNC110 - settlements tell nobody
                await asyncio.sleep(SEE_OFF_S)
    except TimeoutError:
        log.warning("engine %s leaves with requests of ours on it", link.spec.name)


async def until_described(links: Iterable[NodeLink], within_s: float) -> None:
    """Wait until all of them can take requests, for so long at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            for link in links:
                await link.described.wait()
