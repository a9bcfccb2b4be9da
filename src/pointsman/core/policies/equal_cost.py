"""equal_cost: the smallest estimated remaining time, so that it stays equal across nodes.

    score = running_s + queue_s + room_wait_s + prefill_s + decode_s        [s]

What runs there, what is queued there, and this request. The prefix cache counts only through
the shorter prefill.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick_cheapest
from pointsman.core.request import Request
from pointsman.core.row import Row


def remaining_s(row: Row) -> float:
    """Seconds until the node has done all its work and this request's too."""
    return row.running_s + row.queue_s + row.room_wait_s + row.prefill_s + row.decode_s


class EqualCost(PolicyBase):
    """The smallest remaining time."""

    name = "equal_cost"
    prunes = True

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = remaining_s(row)
        return pick_cheapest(rows, why="smallest remaining time")
