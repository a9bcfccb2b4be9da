"""Does anybody still listen where a request waits in silence?

A server that shuts down stops listening and should end its streams, but some never do: vLLM 0.32
left four of nine open for good after SIGTERM. So where nothing has come for a while, a fresh
connection is tried: if it is refused, the process is going or gone, and nothing will come. A
server that is merely busy, or preempts for minutes, still listens.
"""

import asyncio
from typing import Final, Protocol

from pointsman.core.ids import NodeId
from pointsman.core.limits import NODES_MAX

CONNECT_S_MAX: Final = 5.0


class Place(Protocol):
    """Where an incarnation of a node is: its connection pool."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class _Look:
    """The last look at one incarnation."""

    def __init__(self) -> None:
        self.begun_s = float("-inf")
        self.is_refused = False


class Lookout:
    """Looks at each node at most once in `look_s`, however many requests wait there. Owns its
    tasks."""

    def __init__(self, look_s: float) -> None:
        self.look_s = look_s
        self._looks: dict[NodeId, _Look] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def is_deserted(self, place: Place, now_s: float, silent_s: float) -> bool:
        """Whether nobody was found after so much silence; looks, or looks again, if it is time."""
        if silent_s < self.look_s:
            return False
        look = self._looks.get(place.node_id)
        if look is None:
            if len(self._looks) >= NODES_MAX:
                self._looks.clear()
            look = self._looks[place.node_id] = _Look()
        if now_s - look.begun_s >= self.look_s:
            look.begun_s, look.is_refused = now_s, False
            task = asyncio.get_running_loop().create_task(_look(place.host, place.port, look))
            self._tasks[task] = None
            task.add_done_callback(self._ended)
        return look.is_refused

    async def close(self) -> None:
        """End what looks right now."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)


async def _look(host: str, port: int, look: _Look) -> None:
    """Try to connect. Only a refusal is proof: a silent host may be cut off for a moment."""
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        look.is_refused = True
    except OSError:  # a timeout too
        look.is_refused = False
    else:
        look.is_refused = False
        writer.close()
