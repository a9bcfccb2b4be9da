"""cache_aware_equal_cost: equal cost, discounted where the prompt is cached.

    score = remaining_s · (1 - alpha(u) · hit ratio)                          [s]
    alpha(u)  = alpha + (1 - alpha) · (1 - u)²,   u = q / (q + 1 s)

q is the mean prefill queue of the candidates in seconds. With no queue u = 0, alpha(u) = 1 and
locality decides; as queues grow alpha(u) falls smoothly to alpha and remaining time decides.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase, hit_ratio
from pointsman.core.policies.equal_cost import remaining_s
from pointsman.core.policies.pick import pick_cheapest
from pointsman.core.request import Request
from pointsman.core.row import Row

ALPHA = 0.3
QUEUE_SCALE_S = 1.0


class CacheAwareEqualCost(PolicyBase):
    name = "cache_aware_equal_cost"
    prunes = True

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        alpha = _alpha_at(rows)
        for row in rows:
            row.score = remaining_s(row) * (1 - alpha * hit_ratio(row))
        return pick_cheapest(rows, why="smallest remaining time, cached prompts discounted")


def _alpha_at(rows: Sequence[Row]) -> float:
    queue_s = sum(row.queue_s for row in rows) / len(rows)
    load = queue_s / (queue_s + QUEUE_SCALE_S)
    return ALPHA + (1 - ALPHA) * (1 - load) ** 2
