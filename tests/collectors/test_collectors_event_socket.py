"""A publisher that floods us takes turns with the loop's other work."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, cast

import zmq

from pointsman.collectors.event_socket import BYTES_PER_WAKE_UP, Subscription


class Flood:
    """A ZMQ context and its one socket, on which so many messages are there at once."""

    def __init__(self, count: int, size: int) -> None:
        self.left = [[b"", b"x" * size] for _ in range(count)]
        self._ends = os.pipe()

    def socket(self, kind: int) -> "Flood":
        return self

    def setsockopt(self, option: int, value: object) -> None:
        pass

    def getsockopt(self, option: int) -> int:
        return self._ends[0]

    def connect(self, endpoint: str) -> None:
        pass

    def recv_multipart(self, flags: int) -> Sequence[bytes]:
        if not self.left:
            raise zmq.Again
        return self.left.pop()

    def close(self, linger: int) -> None:
        for end in self._ends:
            os.close(end)


async def test_a_large_message_has_a_turn_of_the_loop_for_itself() -> None:
    flood = Flood(count=3, size=BYTES_PER_WAKE_UP)
    got: list[Sequence[bytes]] = []
    subscription = Subscription(cast("Any", flood), "tcp://127.0.0.1:1", got.append)
    for turn in range(1, 4):
        assert len(got) == turn
        await asyncio.sleep(0)
    subscription.close()


async def test_small_messages_share_one() -> None:
    got: list[Sequence[bytes]] = []
    flood = Flood(count=50, size=100)
    Subscription(cast("Any", flood), "tcp://127.0.0.1:1", got.append).close()
    assert len(got) == 50


async def test_while_what_was_read_is_handed_on_nothing_more_is_read() -> None:
    got: list[Sequence[bytes]] = []
    flood = Flood(count=50, size=100)
    subscription = Subscription(
        cast("Any", flood), "tcp://127.0.0.1:1", got.append, is_busy=lambda: len(got) == 1
    )
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(got) == 1
    got.clear()
    await asyncio.sleep(0)
    assert len(got) == 1
    subscription.close()
