"""The index against its slow twin, over random histories."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pointsman.core.ids import BlockHash, Slot
from pointsman.core.prefix import Added, PrefixIndex
from tests.core.prefix.slow_index import SlowIndex, chain

GUESSED = st.sampled_from([Slot(n) for n in (0, 1, 2, 63, 4_095)])
EXACT = st.sampled_from([Slot(n) for n in (3, 64)])
PATHS = st.builds(
    lambda trunk, branch, repeat: [0] * trunk + branch * repeat,
    st.integers(0, 12),
    st.lists(st.integers(0, 2), max_size=6),
    st.integers(1, 4),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 25), st.lists(PATHS, min_size=2, max_size=20))
def test_one_small_node_evicts_what_its_twin_does(capacity: int, paths: list[list[int]]) -> None:
    index, twin, slot = PrefixIndex(), SlowIndex(), Slot(0)
    index.set_capacity(slot, capacity)
    twin.set_capacity(slot, capacity)
    for path in paths:
        assert index.credit(slot, chain(path)) == twin.credit(slot, chain(path))
        for other in paths:
            assert index.depth(slot, chain(other)) == twin.depth(slot, chain(other))


class IndexAgainstTwin(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.twin = SlowIndex()
        self.credits: list[tuple[Slot, Added, int]] = []

    @initialize(capacity=st.sampled_from([0, 3, 8, 30]))
    def one_small_node(self, capacity: int) -> None:
        self.index.set_capacity(Slot(0), capacity)
        self.twin.set_capacity(Slot(0), capacity)

    @rule(slot=GUESSED, path=PATHS)
    def credit(self, slot: Slot, path: list[int]) -> None:
        added = self.index.credit(slot, chain(path))
        assert added == self.twin.credit(slot, chain(path))
        self.credits.append((slot, added, self.twin.now))

    @precondition(lambda self: self.credits)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        slot, added, at = self.credits.pop(data.draw(st.integers(0, len(self.credits) - 1)))
        self.index.withdraw(slot, added)
        self.twin.withdraw(slot, added, at)

    @rule(slot=GUESSED, blocks=st.none() | st.integers(0, 40))
    def set_capacity(self, slot: Slot, blocks: int | None) -> None:
        self.index.set_capacity(slot, blocks)
        self.twin.set_capacity(slot, blocks)

    @rule(slot=EXACT, path=PATHS, start=st.integers(0, 12))
    def insert(self, slot: Slot, path: list[int], start: int) -> None:
        self.index.insert(slot, chain(path)[start:])
        self.twin.insert(slot, chain(path)[start:])

    @rule(slot=EXACT, path=PATHS, end=st.integers(0, 12))
    def remove(self, slot: Slot, path: list[int], end: int) -> None:
        self.index.remove(slot, chain(path)[:-end])
        self.twin.remove(slot, chain(path)[:-end])

    @rule(slot=GUESSED | EXACT)
    def clear(self, slot: Slot) -> None:
        self.index.clear(slot)
        self.twin.clear(slot)

    @rule(path=PATHS)
    def match(self, path: list[int]) -> None:
        hashes = chain(path)
        claimed = self.index.match(hashes)
        if not self._holes(hashes):
            assert claimed == self.twin.match(hashes)
        self._ends_are_true(hashes, claimed)

    @rule(slot=GUESSED, path=PATHS)
    def depth(self, slot: Slot, path: list[int]) -> None:
        if slot not in self._holes(chain(path)):
            assert self.index.depth(slot, chain(path)) == self.twin.depth(slot, chain(path))

    @invariant()
    def same_books(self) -> None:
        for slot, held in self.twin.held.items():
            assert self.index.blocks(Slot(slot)) == len(held)
            assert all(self.index.holders(block) >> slot & 1 for block in held)
        self.index.check()

    def _holes(self, hashes: list[BlockHash]) -> list[int]:
        """Slots that hold a block of the chain without one before it."""
        return [
            slot
            for slot, held in self.twin.held.items()
            if sum(block in held for block in hashes) != self.twin.depth(slot, hashes)
        ]

    def _ends_are_true(self, hashes: list[BlockHash], claimed: list[tuple[int, int]]) -> None:
        """Whatever the holes: the last block claimed is there, and the masks are disjoint."""
        seen = 0
        for mask, depth in claimed:
            assert not mask & seen
            seen |= mask
            for slot, held in self.twin.held.items():
                assert not mask >> slot & 1 or hashes[depth - 1] in held


TestIndexAgainstTwin: Any = IndexAgainstTwin.TestCase
TestIndexAgainstTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
