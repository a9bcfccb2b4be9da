"""session: the node that served this session before, while it is not overloaded.

Affinity is a wish: the node is left for one request when it has over twice the requests in
flight of the least busy candidate plus a margin, and for as long as it is no candidate.
It stays remembered by name, so it gets its sessions back after a flap or a restart; a node that
leaves the cluster does not, and each of its sessions finds a new home with its next request.
Requests without a session, and new sessions, go where the fewest requests are.
"""

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

from pointsman.core.ids import NodeName
from pointsman.core.limits import SESSIONS_MAX
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.recent import keep
from pointsman.core.request import Request
from pointsman.core.row import Row

OVERLOAD_RATIO = 2
OVERLOAD_MARGIN = 4


class Session(PolicyBase):
    name = "session"

    def __init__(self) -> None:
        self._homes: OrderedDict[str, NodeName] = OrderedDict()

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        for row in rows:
            row.score = row.inflight
        home = self._home(request, rows)
        if home is None:
            return pick(rows, why="fewest requests in flight")
        home.score = -1.0
        return pick(rows, why="home of the session")

    def _home(self, request: Request, rows: Sequence[Row]) -> Row | None:
        name = None if request.session is None else self._homes.get(request.session)
        bound = OVERLOAD_RATIO * min(row.inflight for row in rows) + OVERLOAD_MARGIN
        for row in rows:
            if row.node == name:
                return row if row.inflight <= bound and row.fits else None
        return None

    def placed(self, request: Request, row: Row) -> None:
        if request.session is None:
            return
        home = self._homes.get(request.session, row.node)
        keep(self._homes, request.session, home, SESSIONS_MAX)

    def gone(self, node: NodeName) -> None:
        for session in [session for session, home in self._homes.items() if home == node]:
            del self._homes[session]
