"""marginal_cost: the increase of everybody's delay, in seconds. The default.

    E     = queue_s + kv_wait_s + prefill_s + decode_s    the request's own latency
    X     = stall_s + slowdown_s                          the delay it imposes on the others
    score = E + c·E² + X·(1 + 2c·E)                       [s]

φ(E) = E + c·E² is the cost of a delay: one long wait hurts more than many short ones. X is
weighed by its derivative at E, since the others wait about as long (marginal-cost pricing;
facts in docs/POLICIES.md). c trades mean latency against the tail.

Where a candidate's speeds are not learned yet, seconds cannot be compared: lmetric decides.
"""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from pointsman.core.decision import Candidate
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import Stateless, pick_cheapest
from pointsman.core.policies.lmetric import LMetric
from pointsman.core.request import Request

CONVEXITY_PER_S = 0.1


class MarginalCost(Stateless):
    name: ClassVar[str] = "marginal_cost"
    prunes = True

    def __init__(self, convexity_per_s: float = CONVEXITY_PER_S) -> None:
        assert convexity_per_s >= 0.0, convexity_per_s
        self._convexity = convexity_per_s
        self._uncalibrated = LMetric(
            "speeds not learned yet: least tokens to prefill times requests"
        )

    def choose(self, request: Request, rows: Sequence[Candidate], rng: Random) -> Choice | Hold:
        convexity = self._convexity
        for row in rows:
            if not row.calibrated:
                return self._uncalibrated.choose(request, rows, rng)
            own = row.queue_s + row.kv_wait_s + row.prefill_s + row.decode_s
            imposed = row.stall_s + row.slowdown_s
            row.score = own + convexity * own * own + imposed * (1 + 2 * convexity * own)
        return pick_cheapest(rows, why="least delay for all")
