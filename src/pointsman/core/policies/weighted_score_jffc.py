"""weighted_score_jffc: practitioners' "JFFC" score with fast-forward to the cache.

    score = 0.3·load - 0.5·hit ratio - 0.2·health                             [no unit]
    load  = 0.4·utilisation + 0.3·min(1, waiting / 10)
    fast-forward: a node that holds half of the prompt or more is taken without a score while
                  its utilisation is below 0.7; of several the one that holds most

`utilisation` is the share of KV blocks leased or of the concurrency limit in flight, the
larger: GPU utilisation as polled says 100 % of every engine that decodes at all, and is old.
`health` = recent SLO · (1 - unhealthy), both as in weighted_score, whose tie band it shares.

Not Join-the-Fastest-Free-Chain, which practitioners give the same four letters: see jffc.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase, hit_ratio, load_share, waiting_share
from pointsman.core.policies.pick import pick
from pointsman.core.policies.weighted_score import TIE_BAND
from pointsman.core.request import Request
from pointsman.core.row import Row

CACHE_WEIGHT = 0.5
LOAD_WEIGHT = 0.3
HEALTH_WEIGHT = 0.2
UTILISATION_WEIGHT = 0.4
WAITING_WEIGHT = 0.3
HOLDS_MIN = 0.5
FORWARD_BELOW = 0.7


class WeightedScoreJffc(PolicyBase):
    name = "weighted_score_jffc"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = _score(row)
        deepest = _deepest_open(rows)
        if not deepest:
            return pick(rows, why="best of cache, load and health", band=TIE_BAND)
        for row in rows:
            if row.hit_tokens == deepest and _is_open(row):
                row.score -= 1.0  # more than all weights together
        return pick(rows, why="fast-forward to the holder of the cache", band=TIE_BAND)


def _score(row: Row) -> float:
    load = UTILISATION_WEIGHT * load_share(row) + WAITING_WEIGHT * waiting_share(row)
    health = row.slo_share * (1 - row.unhealthy)
    return LOAD_WEIGHT * load - CACHE_WEIGHT * hit_ratio(row) - HEALTH_WEIGHT * health


def _deepest_open(rows: Sequence[Row]) -> int:
    """Most tokens of the prompt held by a node that fast-forwarding may choose; 0 if none."""
    return max((row.hit_tokens for row in rows if _is_open(row)), default=0)


def _is_open(row: Row) -> bool:
    return row.fits and hit_ratio(row) >= HOLDS_MIN and load_share(row) < FORWARD_BELOW
