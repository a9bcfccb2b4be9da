"""smg_cache_aware: the `cache_aware` policy of SGLang's router and of smg.

    imbalanced = max load - min load > 32  and  max load > 1.1 · min load
    score      = load          if imbalanced
               = -hit ratio    if the best hit ratio > 0.5
               = load          otherwise                      load = requests in flight

Ties go to the lower load, then to the smaller tree. So does smg (sources and documents of
2026). SGLang's first router, and comments that outlived it, take the smallest tree alone
where nothing matches: that is blind to load, and the weaker choice.

The peers keep a tree of characters for each node; here the block index says how much of the
prompt a node holds. A tree's size is what was inserted for its node, in tokens, without the
eviction that at last makes all trees equally large.

The thresholds are the library's; the released command lines start with 0.3, 64 and 1.5.
smg 1.13 tests the matched node alone instead of the fleet.
"""

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

from pointsman.core.ids import NodeName
from pointsman.core.limits import NODES_MAX
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase, hit_ratio
from pointsman.core.policies.pick import pick_in_order
from pointsman.core.recent import keep
from pointsman.core.request import Request
from pointsman.core.row import Row

CACHE_THRESHOLD = 0.5
BALANCE_REQUESTS = 32
BALANCE_RATIO = 1.1


class SmgCacheAware(PolicyBase):
    name = "smg_cache_aware"

    def __init__(self) -> None:
        self._trees: OrderedDict[NodeName, int] = OrderedDict()

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        if _is_imbalanced(rows):
            return self._least_busy(rows, why="imbalanced: fewest requests in flight")
        if max((hit_ratio(row) for row in rows if row.fits), default=0.0) <= CACHE_THRESHOLD:
            return self._least_busy(rows, why="no match: fewest requests in flight")
        for row in rows:
            row.score = -hit_ratio(row)
        return pick_in_order(rows, self._order, why="holds most of the prompt")

    def _least_busy(self, rows: Sequence[Row], *, why: str) -> Choice | Hold:
        for row in rows:
            row.score = row.inflight
        return pick_in_order(rows, self._order, why=why)

    def _order(self, row: Row) -> tuple[float, ...]:
        return row.score, row.inflight, self._trees.get(row.node, 0)

    def placed(self, request: Request, row: Row) -> None:
        size = self._trees.get(row.node, 0) + row.new_tokens
        keep(self._trees, row.node, size, NODES_MAX)

    def gone(self, node: NodeName) -> None:
        self._trees.pop(node, None)


def _is_imbalanced(rows: Sequence[Row]) -> bool:
    loads = [row.inflight for row in rows]
    most, least = max(loads), min(loads)
    return most - least > BALANCE_REQUESTS and most > BALANCE_RATIO * least
