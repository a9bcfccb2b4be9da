"""One node's blocks, in runs: stretches of a chain that came together and are used together.

A run is to a chain what an edge is to a radix tree, but without pointers: the table leads
from a block to its run, and since a hash stands for all that comes before it, a chain that
has a run's first and last block has all of it. So a prompt of a thousand known blocks is
followed, and marked as used, in a few steps. Where a chain leaves a run midway, it is split.

Runs lie in the order of their last use, of one chain the deepest first: what is evicted from
that end, tail first, always leaves the start of every chain. Of an exact node nobody tells
the uses; there it is the newest run that goes first, for the same reason.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final

from pointsman.core.ids import HASH_CODE, KeptInt
from pointsman.core.prefix.match import common
from pointsman.core.prefix.run import Run
from pointsman.core.prefix.table import SLOT_MASK, WAY_MASK, BlockTable

_GATHERED_MAX: Final = 128  # hashes of an exact node's events that are gathered in one run


class Holder:
    """What one node holds: runs, stamps of shared blocks, counts.

    A stamp is the name of a run: a negative int with the slot in its low bits.
    """

    __slots__ = (
        "_runs",
        "_table",
        "bit",
        "blocks",
        "capacity",
        "exact",
        "number",
        "shared",
    )

    def __init__(self, number: int, table: BlockTable) -> None:
        self.number = number
        self.bit = 1 << number
        self.capacity: int | None = None
        self.exact = False  # has been told what its engine holds
        self.blocks = 0
        self.shared: dict[KeptInt, KeptInt] = {}  # block that others hold too -> stamp
        self._runs: OrderedDict[KeptInt, Run] = OrderedDict()  # least recently used first
        self._table = table

    def stamp(self, block: KeptInt, value: KeptInt) -> KeptInt:
        """The run that `block` is in here, given its value in the table; 0 if not held."""
        number: int = value
        if number < 0:
            return value if ~number & SLOT_MASK == self.number else 0
        return self.shared[block] if number & self.bit else 0

    def follow(self, chain: Sequence[KeptInt]) -> tuple[list[KeptInt], int]:
        """The runs along `chain`, split where it leaves one, and the blocks they cover."""
        path: list[KeptInt] = []
        ways, at, end = self._table.ways, 0, len(chain)
        while at < end:
            block = chain[at]
            way: int = block & WAY_MASK
            value = ways[way].get(block)
            if value is None or not (stamp := self.stamp(block, value)):
                break
            run = self._runs[stamp]
            length = common(run.hashes, chain, at)
            if not length:  # a run without its first blocks: an exact node's
                break
            path.append(stamp if length == len(run.hashes) else self._split(run, length))
            at += length
        return path, at

    def use(self, path: list[KeptInt]) -> None:
        """The runs along a chain are used now."""
        for stamp in reversed(path):
            self._runs.move_to_end(stamp)
            self._runs[stamp].used_again = True

    def add_run(self, stamp: KeptInt, hashes: Sequence[KeptInt]) -> None:
        """`hashes` are held now, as the newest run."""
        if hashes:
            self._runs[stamp] = Run(array(HASH_CODE, hashes))
            self._table.runs += 1
            self._table.run_hashes += len(hashes)

    def gathering(self) -> KeptInt:
        """The newest run, if it has room for more of an engine's events, else a new one's name."""
        newest = next(reversed(self._runs), 0)
        if newest and len(self._runs[newest].hashes) < _GATHERED_MAX:
            return newest
        return self._table.new_stamp(self.number)

    def gather(self, stamp: KeptInt, hashes: Sequence[KeptInt]) -> None:
        """`hashes` are held now, in the run `stamp`."""
        run = self._runs.get(stamp)
        if run is None:
            self.add_run(stamp, hashes)
        else:
            run.hashes.extend(hashes)
            self._table.run_hashes += len(hashes)

    def was_used_again(self, stamp: KeptInt) -> bool:
        """Whether a placement after the one that made this run has used all of it."""
        run = self._runs.get(stamp)
        return run is not None and run.used_again

    def dropped(self, blocks: Sequence[KeptInt], stamp: KeptInt) -> None:
        """`blocks`, of the run `stamp`, are no longer held."""
        run = self._runs[stamp]
        hashes = run.hashes
        dead = array(HASH_CODE) if run.dead is None else run.dead
        popped = _pop_common(hashes, blocks)
        dead.extend(blocks[popped:])
        self._table.run_hashes += len(blocks) - 2 * popped
        if 2 * len(dead) >= len(hashes):
            self._drop_dead(run, dead, stamp)
        elif dead:
            run.dead = dead

    def next_victim(self) -> KeptInt:
        """The run to evict from; 0 if nothing is left."""
        return next(reversed(self._runs) if self.exact else iter(self._runs), 0)

    def take_tail(self, stamp: KeptInt, count: int) -> list[KeptInt]:
        """Take at least `count` hashes off the end of a run, or all; some may be dead.

        A run with dead hashes is taken as a whole: it is an exact node's, so it is short.
        """
        run = self._runs[stamp]
        if run.dead or count >= len(run.hashes):
            taken = run.hashes
            del self._runs[stamp]
            self._table.runs -= 1
            self._table.run_hashes -= len(run.dead or ())
        else:
            taken = run.hashes[-count:]
            del run.hashes[-count:]
        self._table.run_hashes -= len(taken)
        return taken.tolist()

    def _split(self, run: Run, length: int) -> KeptInt:
        """Make a run of the first `length` hashes; returns its stamp. The rest stays."""
        stamp = self._table.new_stamp(self.number)
        front = run.hashes[:length]
        run.hashes = run.hashes[length:]
        self._runs[stamp] = Run(front)
        self._table.runs += 1
        for block in front:
            table = self._table.ways[block & WAY_MASK]
            value: int = table[block]
            if value < 0:
                table[block] = stamp
            else:
                self.shared[block] = stamp
        return stamp

    def _drop_dead(self, run: Run, dead: "array[int]", stamp: KeptInt) -> None:
        """Rewrite a run most of whose blocks are dead, or drop it if all are. Nothing is looked
        up in the table: each place there is far away in memory."""
        before = len(run.hashes) + len(dead)
        live = _without(run.hashes, dead)
        run.hashes, run.dead = live, None
        self._table.run_hashes += len(live) - before
        if not live:
            del self._runs[stamp]
            self._table.runs -= 1

    def check(self, held: dict[KeptInt, KeptInt]) -> tuple[int, int]:
        """Assert that these books agree with `held`, which is block -> stamp by the table.

        Returns how many runs there are, and hashes in them.
        """
        assert self.blocks == len(held), (self.number, self.blocks, len(held))
        assert all(held.get(block) == stamp for block, stamp in self.shared.items())
        assert self.exact or self.capacity is None or self.blocks <= self.capacity
        live: dict[KeptInt, KeptInt] = {}
        for stamp, run in self._runs.items():
            mine = [block for block in run.hashes if held.get(block) == stamp]
            assert mine, f"slot {self.number} has an empty run"
            dead = run.dead or ()
            assert len(run.hashes) - len(mine) <= len(dead) <= len(run.hashes) // 2
            assert not Counter(dead) - Counter(run.hashes), (stamp, run)
            live |= dict.fromkeys(mine, stamp)
        assert live == held, f"slot {self.number} holds a block that nothing can evict"
        hashes = sum(len(run.hashes) + len(run.dead or ()) for run in self._runs.values())
        return len(self._runs), hashes


def _pop_common(hashes: "array[int]", blocks: Sequence[KeptInt]) -> int:
    """Take off the end of `hashes` the first of `blocks`, as long as they are there: how many."""
    popped = 0
    while popped < len(blocks) and hashes and hashes[-1] == blocks[popped]:
        hashes.pop()
        popped += 1
    return popped


def _without(hashes: "array[int]", dead: "array[int]") -> "array[int]":
    """`hashes` but for the dead: of one that came again, but for the earlier place."""
    kept: Sequence[KeptInt] = hashes
    gone: frozenset[KeptInt] = frozenset(dead)
    live = array(HASH_CODE, [block for block in kept if block not in gone])
    if len(live) + len(dead) == len(hashes):
        return live
    live, places = array(HASH_CODE), Counter(dead)
    for block in hashes:
        if places.get(block):
            places[block] -= 1
        else:
            live.append(block)
    return live
