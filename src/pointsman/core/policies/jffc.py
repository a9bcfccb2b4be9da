"""jffc: Join-the-Fastest-Free-Chain (Sun, He, Hou, arXiv 2604.14993, algorithm 3).

    score = service_s, the least of the nodes with room                       [s]

`service_s` = 1/μ is the request's service time there from learned speeds, as if nothing were
cached or queued. The paper's rates are constants, measured beforehand, which neither other
jobs nor a cache change; ours hold for the batch that is there, since learned speeds are true
near the load they were learned at, and noise when extrapolated to an idle node.

The paper's chain (of servers) is one node here; chains across nodes come with the planner. One
of its job servers is free where the request's KV lease fits and the concurrency limit is not
reached: that is c = ⌊capacity / footprint⌋ of them, were all footprints equal.
Without one it stays in the central queue, whose head a completion starts.

Of equally fast nodes, within the tie band of seconds, the one with the least in flight.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import NO_ROOM, TIE_BAND_RATIO, TIE_BAND_S, pick_in_order
from pointsman.core.request import Request
from pointsman.core.row import Row


class Jffc(PolicyBase):
    name = "jffc"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = row.service_s
        free = [row for row in rows if row.fits]
        if not free:
            return Hold(NO_ROOM)
        bound = min(row.score for row in free) * (1 + TIE_BAND_RATIO) + TIE_BAND_S
        fastest = [row for row in free if row.score <= bound]
        return pick_in_order(fastest, _load, why="fastest of those with room")


def _load(row: Row) -> tuple[float, ...]:
    return (row.inflight,)
