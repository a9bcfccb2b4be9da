"""Reads ZMQ on the event loop: a subscription, by its socket's descriptor, and replays.

pyzmq's asyncio sockets make a future for every message. Here one wake-up of the loop reads a batch
of them, which keeps the ingest of a busy engine cheap.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import zmq
import zmq.asyncio

from pointsman.core.limits import NODES_MAX

MESSAGES_PER_WAKE_UP = 64
BYTES_PER_WAKE_UP = 64 * 1024
"""The most messages of one wake-up, and what they may hold before there is no other: about 2 ms of
decoding. Then the loop's other work gets its turn."""

RECEIVE_QUEUE_MAX = 10_000
"""The most messages that ZMQ keeps for us while the loop is busy; what is beyond shows as a gap."""

RECONNECT_MS_MIN = 200
RECONNECT_MS_MAX = 5_000

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of a message: the blocks of a million tokens that an engine stores in one step. A
larger one ends the connection, and what is missed shows as a gap."""

REPLAY_TIMEOUT_S = 5.0
"""The silence that ends a replay: vLLM's publisher answers within 0.1 s."""

REPLAYS_AT_ONCE = 16
"""The most replays at once, over all engines. A gateway that starts before hundreds of engines
reads ten thousand messages of each. It serves requests meanwhile, and keeps sockets for them."""


SOCKETS_MAX = NODES_MAX + REPLAYS_AT_ONCE
"""Of one context; ZMQ's own bound is 1,023."""


class EventSockets:
    """What the subscriptions and replays of all engines share. Replays take their turns."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.replays = context
        self.subscriptions: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        self.turns = asyncio.Semaphore(REPLAYS_AT_ONCE)


class Subscription:
    """A SUB socket that hands each message to `on_message`, in order, on the loop's thread. While
    who takes them `is_busy` they wait in ZMQ."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        on_message: Callable[[Sequence[bytes]], None],
        *,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raises ValueError for an endpoint that ZMQ cannot connect to."""
        self._on_message = on_message
        self._is_busy = is_busy
        self._loop = asyncio.get_running_loop()
        self._closed = False
        try:
            self._socket = context.socket(zmq.SUB)
        except zmq.ZMQError as error:  # no descriptors are left
            raise ValueError(f"{endpoint}: {error}") from None
        try:
            self._set_up(endpoint)
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            raise ValueError(f"{endpoint}: {error}") from None
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._read)
        self._read()  # the descriptor is edge-triggered: look before the first edge

    def _set_up(self, endpoint: str) -> None:
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE_MAX)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS_MIN)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")  # foreign topics are to be counted
        self._socket.connect(endpoint)

    def _read(self) -> None:
        read_bytes = 0
        for _ in range(MESSAGES_PER_WAKE_UP):
            if self._closed:
                return
            if self._is_busy():
                break
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(frames)
            read_bytes += sum(map(len, frames))
            if read_bytes >= BYTES_PER_WAKE_UP:
                break
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """A second call changes nothing."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=0)


async def replay(
    context: zmq.asyncio.Context, endpoint: str, first_seq: int
) -> AsyncGenerator[Sequence[bytes], None]:
    """The publisher's answers from `first_seq` on; ends after its silence.

    A DEALER, since a REQ would get only the first answer; its empty frame is REQ's
    delimiter, which the publisher's ROUTER expects.
    """
    try:
        socket = context.socket(zmq.DEALER)
    except zmq.ZMQError:  # no descriptors are left
        return
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.connect(endpoint)
        async with asyncio.timeout(REPLAY_TIMEOUT_S):
            await socket.send_multipart([b"", first_seq.to_bytes(8)])
        while True:
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                frames = await socket.recv_multipart()
            yield frames
    except (TimeoutError, zmq.ZMQError):
        return
    finally:
        socket.close(linger=0)


@asynccontextmanager
async def event_sockets() -> AsyncIterator[EventSockets]:
    """The sockets for all engines of a process. What they have left open is closed at the end."""
    context = zmq.asyncio.Context()
    context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
    try:
        yield EventSockets(context)
    finally:
        context.destroy(linger=0)
