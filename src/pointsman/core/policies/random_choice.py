"""random: any candidate, each as likely as the others."""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row


class RandomChoice(PolicyBase):
    name = "random"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = rng.random()
        return pick(rows, why="drawn by lot")
