"""jffc: Join-the-Fastest-Free-Chain (Sun, He, Hou, arXiv 2604.14993, algorithm 3).

    score = service_s, of the nodes with a free slot the least                [s]

`service_s` = 1/μ, the request's service time with the node to itself and nothing cached, from
learned speeds: in the paper's model neither other jobs nor a cache change it. A chain is one
node; chains across nodes come with the planner. A slot is free where the request's KV lease
fits and the concurrency limit is not reached: c = ⌊capacity / footprint⌋ for equal footprints.
Without a free slot it stays in the central queue, whose head a completion starts.

Of equally fast nodes, within the tie band of seconds, the one with the least in flight.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.decision import Candidate
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import (
    TIE_BAND_RATIO,
    TIE_BAND_S,
    Stateless,
    pick_in_order,
)
from pointsman.core.request import Request


class Jffc(Stateless):
    name = "jffc"

    def choose(self, request: Request, rows: Sequence[Candidate], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = row.service_s
        free = [row for row in rows if row.fits]
        if not free:
            return Hold("slots: no chain has a free one")
        bound = min(row.score for row in free) * (1 + TIE_BAND_RATIO) + TIE_BAND_S
        fastest = [row for row in free if row.score <= bound]
        return pick_in_order(fastest, _load, why="fastest chain with a free slot")


def _load(row: Candidate) -> tuple[float, ...]:
    return (row.inflight,)
