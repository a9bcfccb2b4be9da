"""power_of_two: the less busy of two candidates drawn by lot (Mitzenmacher, 2001).

Score: requests in flight for the two that were drawn, infinity for the rest.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row


class PowerOfTwo(PolicyBase):
    name = "power_of_two"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        fitting = [row for row in rows if row.fits]
        for row in rows:
            row.score = inf
        for row in rng.sample(fitting, min(2, len(fitting))):
            row.score = row.inflight
        return pick(rows, why="less busy of two")
