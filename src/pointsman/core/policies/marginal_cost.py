"""marginal_cost: the increase of everybody's delay, in seconds. The default.

    T     = queue_s + room_wait_s + prefill_s             the request's own time to first token, its
                                                          work as the fastest candidate would do it
    D     = decode_s + interrupted_s                      and from there to its end
    X     = stall_s + slowdown_s                          the delay it imposes on who is there;
                                                          half of it if more urgent than usual
                                                          (`urgent_imposes`)
    W     = work_s                                        the work that it costs the cluster
    score = price(T) + D + X + 3·W                        [s]
    price = 5·T + 2·T² up to T = 1 s, from there 9 s a second     (5 is `first_token_weight`)

A second before the first token is worth several of later ones: people watch an empty screen, and
it is where placements differ most. The first moments are cheaper, so that a short wait for a
cached prefix or a calm node is taken. Work that a cached prefix saves is saved for all who come
later.

What a slow node takes longer than the fastest is priced as work and not as a wait. Nobody can have
a fast node's time without taking it from others: were it priced as a wait, all long prompts would
go to the fast nodes and interrupt whoever decodes there (measured in docs/POLICIES.md).

Whoever is more urgent than normal finds mostly others there, whose delay matters less than its own.

Where a candidate's speeds are not learned yet, seconds cannot be compared: lmetric decides.
"""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import ClassVar, Final

from pointsman.core.limits import PRIORITY_NORMAL
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.lmetric import LMetric
from pointsman.core.policies.pick import pick_cheapest
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.rules import CostWeights

CONVEXITY_PER_S: Final = 2.0
CONVEX_UP_TO_S: Final = 1.0
WORK_WEIGHT: Final = 3.0

_WEIGHTS = CostWeights()


class MarginalCost(PolicyBase):
    name: ClassVar[str] = "marginal_cost"
    prunes = True

    def __init__(self, weights: CostWeights = _WEIGHTS) -> None:
        self.weights = weights
        self._uncalibrated = LMetric(
            "speeds not learned yet: least tokens to prefill times requests"
        )

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        fastest_s = inf
        for row in rows:
            if not row.calibrated:
                return self._uncalibrated.choose(request, rows, rng)
            fastest_s = row.uncached_s if row.uncached_s < fastest_s else fastest_s
        weight = self.weights.first_token_weight
        others = self.weights.urgent_imposes if request.priority > PRIORITY_NORMAL else 1.0
        for row in rows:
            speed = fastest_s / row.uncached_s if row.uncached_s else 1.0
            longer_s = row.work_s * (1 - speed)
            first_token_s = row.queue_s + row.room_wait_s + row.prefill_s - longer_s
            own_s = _price_s(first_token_s, weight) + row.decode_s + row.interrupted_s
            imposed_s = others * row.stall_s
            row.score = own_s + imposed_s + others * row.slowdown_s + WORK_WEIGHT * row.work_s
            if row.shared_s:
                sooner_s = _price_s(first_token_s - row.shared_s * speed, weight)
                saved_s = _price_s(first_token_s, weight) - sooner_s
                row.score -= saved_s + _invested_s(row, imposed_s)
        return pick_cheapest(rows, why="least delay for all", weight=weight)


def _invested_s(row: Row, imposed_s: float) -> float:
    """What of its score, but for its own first token, is for the later users of a hot prefix."""
    return row.shared_s / row.work_s * imposed_s + WORK_WEIGHT * row.shared_s


def _price_s(first_token_s: float, weight: float) -> float:
    """What it is worth to avoid a first token after so long."""
    convex_s = first_token_s if first_token_s < CONVEX_UP_TO_S else CONVEX_UP_TO_S
    return weight * first_token_s + CONVEXITY_PER_S * convex_s * (2 * first_token_s - convex_s)
