"""An engine's KV events: what its publisher sends while a probe runs, and what it remembers."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from pointsman.collectors.event_socket import EventSockets, Subscription, replay
from pointsman.control.doctor.seen import EventsSeen
from pointsman.core.cache_events import BlockStored
from pointsman.core.events import ModelCard
from pointsman.engines.adapters import EventSource
from pointsman.wire.engine_events import MalformedEvent, decode_message

CONNECT_S = 0.3
"""A subscription takes a round trip or two, and nothing tells when it stands."""

WAIT_S_MAX = 2.0
"""From a probe's answer to the message of its blocks; vLLM sends one with each step."""

REPLAY_S_MAX = 3.0
FOREIGN_MAX = 4
BLOCK_SIZES_MAX = 4
"""Kept of each, to be told; the first says all."""


class Listener:
    """One subscription. `close` it; a second call changes nothing."""

    def __init__(
        self,
        sockets: EventSockets,
        source: EventSource,
        *,
        served: Sequence[ModelCard],
        heard: asyncio.Event,
    ) -> None:
        """`heard` is set when blocks are told of; several listeners may share it."""
        self._source = source
        self._served = served
        self._heard = heard
        self._malformed = self._stored = 0
        self._block_sizes: dict[int, None] = {}
        self._foreign: dict[str, None] = {}
        self._trouble = ""
        self._subscription: Subscription | None = None
        try:
            self._subscription = Subscription(sockets.subscriptions, source.endpoint, self._take)
        except ValueError as error:
            self._trouble = str(error)

    def seen(self, replayed_from: int | None) -> EventsSeen:
        return EventsSeen(
            source=self._source,
            trouble=self._trouble,
            malformed=self._malformed,
            stored=self._stored,
            block_sizes=tuple(self._block_sizes),
            foreign=tuple(self._foreign),
            replayed_from=replayed_from,
        )

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    def _take(self, frames: Sequence[bytes]) -> None:
        try:
            message = decode_message(frames)
        except MalformedEvent:
            self._malformed += 1
            return
        if not self._source.owns(message.topic, self._served):
            if len(self._foreign) < FOREIGN_MAX:
                self._foreign[message.topic] = None
            return
        for event in message.batch.events:
            if isinstance(event, BlockStored) and not event.group_idx:
                self._stored += len(event.block_hashes)
                if len(self._block_sizes) < BLOCK_SIZES_MAX:
                    self._block_sizes[event.block_size] = None
                self._heard.set()


async def first_replayed(sockets: EventSockets, source: EventSource) -> int | None:
    """The first sequence number that the publisher remembers; None without an answer."""
    if source.replay_endpoint is None:
        return None
    try:
        async with (
            asyncio.timeout(REPLAY_S_MAX),
            aclosing(replay(sockets.replays, source.replay_endpoint, 0)) as answers,
        ):
            async for frames in answers:
                message = decode_message(frames)
                return 0 if message.ends_replay else message.seq
    except (TimeoutError, MalformedEvent):
        return None
    return None
