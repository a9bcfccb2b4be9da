"""Many connections are read in few turns of the loop, and none is forgotten."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from pointsman.control.agents import gathering
from pointsman.control.agents.gathering import READS_A_TURN, Gathering
from tests.support.waiting import eventually


class Wires:
    """Pairs of sockets, one end of each gathered; what came there, and in which turn."""

    def __init__(self, count: int) -> None:
        self.gathering = Gathering()
        self.came: list[tuple[int, int]] = []
        self.turn = 0
        self._pairs = [socket.socketpair() for _ in range(count)]
        for number in range(count):
            self.join(number)
        self._counting = asyncio.get_running_loop().call_soon(self._count)

    def join(self, number: int, then: Callable[[], None] = lambda: None) -> None:
        def read() -> None:
            os.read(self._near(number), 10)
            self.came.append((self.turn, number))
            then()

        self.gathering.join(self._near(number), read)

    def leave(self, *numbers: int) -> None:
        for number in numbers:
            self.gathering.leave(self._near(number))

    def say(self, *numbers: int) -> None:
        for number in numbers:
            self._pairs[number][1].send(b"x")

    async def heard(self, *numbers: int) -> None:
        await eventually(lambda: sorted(number for _, number in self.came) == sorted(numbers))

    def close(self) -> None:
        self._counting.cancel()
        self.gathering.close()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _near(self, number: int) -> int:
        return self._pairs[number][0].fileno()

    def _count(self) -> None:
        self.turn += 1
        self._counting = asyncio.get_running_loop().call_soon(self._count)


COUNT = 3 * READS_A_TURN


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    made = Wires(COUNT)
    yield made
    made.close()


async def test_who_speaks_within_a_moment_is_read_with_the_first(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOMENT_S_MAX", 0.2)
    monkeypatch.setattr(gathering, "MOMENT_S_EACH", 0.2)
    wires.say(0)
    await asyncio.sleep(0.01)
    assert wires.came == []
    wires.say(1, 2)
    await wires.heard(0, 1, 2)
    assert len({turn for turn, _ in wires.came}) == 1


async def test_a_crowd_leaves_the_loop_its_turns(wires: Wires) -> None:
    wires.say(*range(COUNT))
    await wires.heard(*range(COUNT))
    turns = [turn for turn, _ in wires.came]
    assert max(map(turns.count, turns)) <= READS_A_TURN


async def test_who_speaks_again_is_heard_again(wires: Wires) -> None:
    for _ in range(3):
        wires.came.clear()
        wires.say(5)
        await wires.heard(5)


async def test_all_may_leave_while_one_is_read_and_others_come(wires: Wires) -> None:
    wires.leave(*range(1, COUNT), 0)
    wires.join(0, then=lambda: wires.leave(0, 1))
    wires.join(1)
    wires.say(0)
    await wires.heard(0)
    wires.join(2)
    wires.say(1, 2)
    await wires.heard(0, 2)


async def test_a_reader_that_fails_keeps_nobody_else_from_being_heard(wires: Wires) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    wires.leave(0)
    wires.join(0, then=fail)
    wires.say(0, 1, 2)
    await wires.heard(0, 1, 2)
    assert len(failed) == 1
