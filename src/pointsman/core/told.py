"""What an agent has told of its node's cache, and credits that wait for its next word.

An agent's word comes up to a heartbeat after the engine's event. A request that has ended
meanwhile keeps its credit until then, or the next turn of its conversation would find nothing
where the engine has all of it.
"""

from collections.abc import Sequence

from pointsman.core.block_set import BlockSet
from pointsman.core.placement import Credit

WAITING_MAX = 4_096
"""Credits of requests that ended within two beats of one node; more are settled at once."""


class Told:
    """One node's blocks by its agent."""

    def __init__(self, blocks_max: int) -> None:
        self.blocks = BlockSet(blocks_max)
        self._settled: list[Credit] = []
        self._settled_before: list[Credit] = []

    def keep(self, credit: Credit) -> bool:
        """Let a credit stand until the beat after the next one: the next one may have been
        under way when the request ended. False if there are too many."""
        if len(self._settled) + len(self._settled_before) >= WAITING_MAX:
            return False
        self._settled.append(credit)
        return True

    def beat(self) -> Sequence[Credit]:
        """The agent has told what is new: the credits that have stood long enough."""
        due, self._settled_before, self._settled = self._settled_before, self._settled, []
        return due
