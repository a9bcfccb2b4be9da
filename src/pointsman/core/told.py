"""What an agent has told of its node's cache, and credits that wait for its next word.

An agent's word comes up to a heartbeat after the engine's event. A request that has ended
meanwhile keeps its credit until then, or the next turn of its conversation would find nothing
where the engine has all of it.
"""

from collections.abc import Sequence
from typing import Final

from pointsman.core.block_set import BlockSet, with_hashes
from pointsman.core.ids import BlockHash
from pointsman.core.placement import Credit

WAITING_MAX = 4_096
"""Credits of requests that ended within two beats of one node; more are settled at once."""

_UNENTERED_MAX: Final = 1_024
"""Changes of one node that wait to be entered into its set: half a millisecond of work."""


class Told:
    """One node's blocks by its agent.

    What a beat changes is entered into the set when somebody asks for the set, or with what many
    beats have changed: half a second after the last one nothing of a set is in the processor's
    caches, and a few blocks take several times as long each as many do. Until then the digest
    is reckoned as if the agent had told only of what did change.
    """

    def __init__(self, blocks_max: int) -> None:
        self.digest = 0
        self.count = 0
        self._set = BlockSet(blocks_max)
        self._unentered: list[tuple[Sequence[BlockHash], Sequence[BlockHash]]] = []
        self._changes = 0
        self._settled: list[Credit] = []
        self._settled_before: list[Credit] = []

    def __repr__(self) -> str:
        return f"<Told {self._set!r}, {self._changes} changes to be entered>"

    # --- blocks -------------------------------------------------------------------------

    @property
    def blocks(self) -> BlockSet:
        """All of them, to be read only."""
        if self._unentered:
            self._enter()
        return self._set

    @property
    def is_full(self) -> bool:
        """Whether the agent has told of more than there is room for."""
        return self._set.overflows > 0

    def agrees(self, digest: int, count: int) -> bool:
        """Whether these blocks are those of a digest."""
        if digest == self.digest and count == self.count:
            return True
        self._enter()
        return digest == self.digest and count == self.count

    def change(
        self, stored: Sequence[BlockHash], removed: Sequence[BlockHash]
    ) -> tuple[Sequence[BlockHash], Sequence[BlockHash]]:
        """Take what left and what came, in this order. Returns what is to be believed of it:
        what came, and what left."""
        if self.count + len(stored) > self._set.blocks_max:
            return self._change_at_once(stored, removed)
        if not (stored or removed):
            return stored, removed
        self.digest = with_hashes(with_hashes(self.digest, removed), stored)
        self.count += len(stored) - len(removed)
        self._unentered.append((stored, removed))
        self._changes += len(stored) + len(removed)
        if self._changes >= _UNENTERED_MAX:
            self._enter()
        return stored, removed

    def replace(
        self, bucket: int, hashes: Sequence[BlockHash]
    ) -> tuple[Sequence[BlockHash], Sequence[BlockHash]]:
        """Take all that one bucket holds. Returns what came by that, and what left."""
        change = self.blocks.replace(bucket, hashes)
        self._reckon()
        return change

    def _change_at_once(
        self, stored: Sequence[BlockHash], removed: Sequence[BlockHash]
    ) -> tuple[Sequence[BlockHash], Sequence[BlockHash]]:
        blocks = self.blocks
        left, came = blocks.remove(removed), blocks.add(stored)
        self._reckon()
        return came, left

    def _enter(self) -> None:
        for stored, removed in self._unentered:
            self._set.remove(removed)
            self._set.add(stored)
        self._unentered.clear()
        self._changes = 0
        self._reckon()

    def _reckon(self) -> None:
        self.digest, self.count = self._set.digest, len(self._set)

    def check(self) -> None:
        """Assert that digest and counts are those of the blocks. Enters nothing."""
        self._set.check()
        waiting = sum(len(stored) + len(removed) for stored, removed in self._unentered)
        assert len(self._unentered) <= self._changes == waiting < _UNENTERED_MAX, self
        entered = (self._set.digest, len(self._set))
        assert waiting or (self.digest, self.count) == entered, (self.count, entered)

    # --- credits ------------------------------------------------------------------------

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
