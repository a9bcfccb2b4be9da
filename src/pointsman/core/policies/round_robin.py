"""round_robin: every candidate in turn.

All scores are equal, so the tie rule alone decides: the node not chosen for longest. A node
that joins late is next, and one that was full has not lost its turn.
"""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row


class RoundRobin(PolicyBase):
    name: ClassVar[str] = "round_robin"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = 0.0
        return pick(rows, why="next in turn")
