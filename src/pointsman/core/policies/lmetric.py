"""lmetric: tokens to prefill times requests there (arXiv 2603.15202).

    score = (queue_tokens + new_tokens) · (inflight + 1)                  [tokens · requests]

No parameter and no speed enters it, so it serves where engines are not calibrated yet. The
pending prefill tokens belong to the first factor, as in the published implementations.
"""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row


class LMetric(PolicyBase):
    """`why` is what its decisions say; a policy that falls back to it says so."""

    name: ClassVar[str] = "lmetric"
    prunes = True

    def __init__(self, why: str = "least tokens to prefill times requests") -> None:
        self._why = why

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = float((row.queue_tokens + row.new_tokens) * (row.inflight + 1))
        return pick(rows, why=self._why)
