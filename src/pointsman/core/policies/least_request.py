"""least_request: the candidate with the fewest requests in flight.

Own requests are counted exactly, those of others from the engine's metrics; without metrics
own counts stand alone.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row


class LeastRequest(PolicyBase):
    name = "least_request"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = row.inflight
        return pick(rows, why="fewest requests in flight")
