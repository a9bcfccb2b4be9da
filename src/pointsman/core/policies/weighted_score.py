"""weighted_score: cache gain against load, health and kept promises.

    score = 0.3·load + 0.1·unhealthy - 0.5·cache gain - 0.1·recent SLO       [no unit]

    load        0 to 1: share of KV blocks leased, of the concurrency limit in flight, or of
                ten requests that wait for their first token, whichever is largest
    cache gain  hit ratio · fade, fade = 1 up to a load of 0.7, then falling to 0 at 1: a
                cached prompt is worth little on a node that cannot begin it
    unhealthy   requests in a row that came to nothing there, of those that take it out of service
    recent SLO  share of first tokens that came within their request's own bound; 1 where no
                request had one

The practitioners' weights, their sign turned: lower is better. They leave the load's unit
open; ours is what a router knows of every engine without polling it. Scores within 0.01 are
equal, so that nodes which differ by a request or an SLO missed long ago take turns.
"""

from collections.abc import Sequence
from random import Random

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase, hit_ratio, load_share, waiting_share
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row

CACHE_WEIGHT = 0.5
LOAD_WEIGHT = 0.3
HEALTH_WEIGHT = 0.1
SLO_WEIGHT = 0.1
FADES_FROM = 0.7
TIE_BAND = 0.01


class WeightedScore(PolicyBase):
    """The best of cache gain, load, health and SLO."""

    name = "weighted_score"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = _score(row)
        return pick(rows, why="best of cache gain, load, health and SLO", band=TIE_BAND)


def _score(row: Row) -> float:
    load = max(load_share(row), waiting_share(row))
    fade = min(1.0, (1 - load) / (1 - FADES_FROM))
    return (
        LOAD_WEIGHT * load
        + HEALTH_WEIGHT * row.unhealthy
        - CACHE_WEIGHT * hit_ratio(row) * fade
        - SLO_WEIGHT * row.slo_share
    )
