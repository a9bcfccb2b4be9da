"""Knows what an engine's cache holds: subscribes to its KV events and keeps them complete.

It subscribes first and then replays from the start. What happens in between comes twice and is
dropped by its number, never missed.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from pointsman.collectors.event_socket import EventSockets, Subscription, replay
from pointsman.collectors.event_stream import EventStream
from pointsman.collectors.link import NodeLink, wait_for
from pointsman.core.cache_events import CacheChange
from pointsman.core.events import CacheChanged, IndexTrust, IndexTrusted
from pointsman.core.ids import NodeId
from pointsman.engines.adapters import EventSource
from pointsman.engines.adapters.event_sources import source_at

REPLAY_PAUSE_S = 0.5
"""The pause between replays of one engine: each may be thousands of messages."""

RESUMES_MAX = 4
"""How often a replay that breaks off is asked for the rest. Each time must have brought
something."""

REPLAY_MESSAGES_MAX = 1_000_000
"""The most answers of one replay: a hundred times vLLM's buffer. A publisher that says more is out
of order."""

RECONNECT_S = 5.0
"""The pause before an endpoint that ZMQ refuses is tried again."""

log = logging.getLogger(__name__)


class Subscriber:
    """One node's cache events, over all its incarnations."""

    def __init__(self, link: NodeLink, sockets: EventSockets) -> None:
        self._link = link
        self._sockets = sockets
        self._behind = asyncio.Event()

    async def run(self) -> None:
        """Follow each incarnation until it ends."""
        while True:
            await self._link.described.wait()
            self._link.resync_events.clear()
            if not self._link.described.is_set():
                continue  # it restarted before this task had its turn
            node_id, source = self._link.node_id, self._source()
            if node_id is None or source is None:
                await self._link.resync_events.wait()
            else:
                await self._follow(node_id, source)

    def _source(self) -> EventSource | None:
        """Where to subscribe; None where no events are to be had."""
        configured, sources = self._link.kv_events, self._link.sources
        if configured == "off":
            self._link.events_note = "switched off"
            return None
        if configured != "auto":
            return source_at(configured, sources)
        if len(sources) > 1:
            # A block may leave one rank's cache and stay in another's; one index for the
            # node could not tell. Our own history claims less, and is right.
            self._link.events_note = (
                f"{len(sources)} data-parallel ranks: own history is used, "
                f"until each is a node, by ranks: auto, or listed like {self._link.spec.url}#0"
            )
            return None
        self._link.events_note = "" if sources else "the engine publishes none"
        return sources[0] if sources else None

    async def _follow(self, node_id: NodeId, source: EventSource) -> None:
        stream = EventStream(
            self._link.tally,
            is_ours=lambda topic: source.owns(topic, self._link.served),
            changes=lambda changes: self._changed(node_id, changes),
            trust=lambda trust: self._trusted(node_id, trust),
        )
        self._behind.set()
        try:
            subscription = Subscription(
                self._sockets.subscriptions,
                source.endpoint,
                lambda frames: self._message(stream, frames),
                is_busy=lambda: stream.is_busy,
            )
        except ValueError as error:
            self._link.events_note = str(error)
            log.warning("engine %s: no KV events: %s", self._link.spec.name, error)
            await wait_for(self._link.resync_events, RECONNECT_S)
            return
        self._link.events_note = f"subscribed to {source.endpoint}"
        try:
            await self._keep_complete(stream, source)
        finally:
            subscription.close()
            stream.close()

    async def _keep_complete(self, stream: EventStream, source: EventSource) -> None:
        """Replay whenever the stream has fallen behind, until the incarnation ends."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._replay_on_demand(stream, source))
            await self._link.resync_events.wait()
            keeper.cancel()

    async def _replay_on_demand(self, stream: EventStream, source: EventSource) -> None:
        while True:
            await self._behind.wait()
            self._behind.clear()
            if stream.is_live:
                continue
            await self._replay(stream, source)
            if not stream.is_live:
                self._behind.set()
            await asyncio.sleep(REPLAY_PAUSE_S)

    async def _replay(self, stream: EventStream, source: EventSource) -> None:
        """Replay all that is missing. If an engine falls silent amid it, go on from where it
        stopped."""
        try:
            for _ in range(1 + RESUMES_MAX):
                first_seq = stream.replay_from
                if first_seq is None or source.replay_endpoint is None:
                    break
                async with self._sockets.turns:
                    is_whole = await self._read_replay(stream, source.replay_endpoint, first_seq)
                if is_whole or stream.replay_from == first_seq:
                    break
        finally:
            stream.replay_ended()

    async def _read_replay(self, stream: EventStream, endpoint: str, first_seq: int) -> bool:
        """Read one replay. Whether it came to its end."""
        self._link.tally.event_replays.add()
        async with aclosing(replay(self._sockets.replays, endpoint, first_seq)) as answers:
            count = 0
            async for frames in answers:
                await stream.handed_on()
                count += 1
                if not stream.replayed(frames) or count >= REPLAY_MESSAGES_MAX:
                    return True
        return False

    def _message(self, stream: EventStream, frames: Sequence[bytes]) -> None:
        restarts = stream.restarts
        stream.live(frames)
        if not stream.is_live:
            self._behind.set()
        if stream.restarts != restarts:
            log.warning("engine %s: its KV events start over", self._link.spec.name)
            self._link.scrape_soon.set()  # the start time of its process tells for certain

    def _changed(self, node_id: NodeId, changes: Sequence[CacheChange]) -> None:
        self._link.sink.submit(CacheChanged(node_id, changes))

    def _trusted(self, node_id: NodeId, trust: IndexTrust) -> None:
        log.info("engine %s: its cache index is %s", self._link.spec.name, trust)
        self._link.sink.submit(IndexTrusted(node_id, trust))
