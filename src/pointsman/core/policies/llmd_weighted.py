"""llmd_weighted: llm-d's default blend until August 2026, prefix 3, queue 2, KV 2.

    score  = 7 - (3·prefix + 2·queue + 2·kv)                                  [no unit]
    prefix = hit ratio
    queue  = (most waiting - waiting) / (most waiting - fewest waiting), 1 if all wait alike
    kv     = 1 - share of its KV blocks in use

Each part is 0 to 1 and higher is better there; lower is better here. llm-d polls `waiting`
and KV usage from the engines (prefix-cache-scorer, queue-scorer, kv-cache-utilization-scorer);
here they are our own counts, requests whose prefill is not over and leased blocks, which are
never stale. A node of unknown KV capacity counts as empty.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase, hit_ratio
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row

PREFIX_WEIGHT = 3.0
QUEUE_WEIGHT = 2.0
KV_WEIGHT = 2.0


class LlmdWeighted(PolicyBase):
    name = "llmd_weighted"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        waiting = [row.waiting for row in rows]
        most, spread = max(waiting), max(waiting) - min(waiting)
        for row in rows:
            queue = (most - row.waiting) / spread if spread else 1.0
            row.score = (
                PREFIX_WEIGHT * (1 - hit_ratio(row))
                + QUEUE_WEIGHT * (1 - queue)
                + KV_WEIGHT * row.kv_share
            )
        return pick(rows, why="best blend of prefix, queue and KV use")
