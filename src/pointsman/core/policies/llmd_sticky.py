"""llmd_sticky: "sticky until saturated", llm-d's default since August 2026.

    sticky  = nodes that hold 80 % of the prompt or more; every node if there is none
    broken  = least queue_s of the sticky - least queue_s of the others > 18 s: every node
    score   = queue_tokens + new_tokens of those, the least                   [tokens]

queue_tokens are the uncached tokens that are still to be prefilled there: llm-d counts them
from dispatch to the first byte, as we do. Its estimate of a queue's time is those tokens by a
peak prefill rate that the operator measures (15,928 tokens/s where nobody has); `queue_s` is
the same by the speeds that are learned of each node, so no node is judged by another's.

As published: prefix-cache-affinity-filter, then token-load-scorer, no prefix scorer. Exploring
is off there by default, and so here. A node without room for the request is not offered.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase, hit_ratio
from pointsman.core.policies.pick import NO_ROOM, pick
from pointsman.core.request import Request
from pointsman.core.row import Row

AFFINITY_MIN = 0.8
PENALTY_MAX_S = 18.0


class LlmdSticky(PolicyBase):
    name = "llmd_sticky"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = row.queue_tokens + row.new_tokens
        offered = [row for row in rows if row.fits]
        if not offered:
            return Hold(NO_ROOM)
        sticky = [row for row in offered if hit_ratio(row) >= AFFINITY_MIN]
        others = [row for row in offered if hit_ratio(row) < AFFINITY_MIN]
        if not sticky:
            return pick(offered, why="nobody holds the prompt: fewest tokens to prefill")
        if _queue_s(sticky) - _queue_s(others) > PENALTY_MAX_S:
            return pick(offered, why="holders are saturated: fewest tokens to prefill")
        for row in others:
            row.score = inf
        return pick(sticky, why="of the prompt's holders, fewest tokens to prefill")


def _queue_s(rows: Sequence[Row]) -> float:
    return min((row.queue_s for row in rows), default=inf)
