"""All that a scheduler owns, put together; and looks at it that change nothing."""

from pointsman.core import views
from pointsman.core.admission.admission import Admission
from pointsman.core.admission.fair import LANE_NAMES
from pointsman.core.admission.retry_budget import RetryBudget
from pointsman.core.admission.retry_guard import RetryGuard
from pointsman.core.audit import Audit
from pointsman.core.block_set import BlockSet
from pointsman.core.bookings import Bookings
from pointsman.core.calibration import OutputLengths, Pace, TokenRatio
from pointsman.core.cluster import Cluster
from pointsman.core.events import ModelCard
from pointsman.core.footprint import Footprints
from pointsman.core.homes import Homes, Keeper
from pointsman.core.hot_prefixes import HotPrefix
from pointsman.core.ids import NodeId
from pointsman.core.judge import Judge
from pointsman.core.ledger import Ledger
from pointsman.core.membership import Membership
from pointsman.core.options import SchedulerOptions
from pointsman.core.recalls import Recalls
from pointsman.core.request import Request
from pointsman.core.residency import Residency
from pointsman.core.router import Router
from pointsman.core.stats import Stats


class SchedulerState:
    """Changed by `Scheduler` alone."""

    def __init__(self, options: SchedulerOptions) -> None:
        self._cluster = Cluster(options.health)
        self._homes = Homes(self._cluster)
        self._residency = Residency(options.index_bytes_max)
        self._residency.hot.apply(options.hot_prefixes)
        self._ledger = Ledger()
        safety = options.admission.footprint_safety
        self._footprints = Footprints(self._residency, self._ledger, safety)
        self._lengths = OutputLengths()
        self._ratios = TokenRatio()
        self._admission = Admission(self._cluster, self._ledger, options)
        self._held = self._admission.held
        self._retries = RetryBudget(options.retries)
        self._router = Router(
            cluster=self._cluster,
            residency=self._residency,
            ledger=self._ledger,
            footprints=self._footprints,
            lengths=self._lengths,
            ratios=self._ratios,
            held=self._held,
        )
        self.guard = RetryGuard(options.retry_guard, self._is_contended, options.seed)
        self._judge = Judge(self._cluster)
        self._membership = Membership(
            cluster=self._cluster,
            judge=self._judge,
            ledger=self._ledger,
            residency=self._residency,
            ratios=self._ratios,
            rules=options.rules,
        )
        self._bookings = Bookings(
            cluster=self._cluster,
            ledger=self._ledger,
            footprints=self._footprints,
            residency=self._residency,
            loads=self._admission.loads,
        )
        self._recalls = Recalls(options.rules, self._bookings, self._retries)
        self._audit = Audit(options.rules, self._bookings)
        self.stats = Stats()
        self.turned = self._cluster.turned  # nodes, by health and cause
        self.compensations = self._audit.counts  # by cause

    def _is_contended(self, request: Request, now_s: float) -> bool:
        """Whether it would have to wait, in the queue or on any node. A client that gives up
        makes room, and is not to be the one who gets it."""
        demand = self._router.demand(request)
        if self._admission.is_contended(request, demand, now_s):
            return True
        within_s = self.guard.rules.room_within_s
        return self._router.is_contended(request, demand, now_s, within_s=within_s)

    def catch_up(self) -> None:
        """Credit the last placement now, since nobody waits for an answer at this moment."""
        self._bookings.catch_up()

    def models(self) -> list[ModelCard]:
        return self._cluster.models()

    def ready(self) -> bool:
        """Whether any node can take work."""
        return any(node.serving for node in self._cluster.nodes)

    def keeper(self, response_id: str) -> Keeper | None:
        """Who keeps a response of the Responses API, if that is known."""
        return self._homes.keeper(response_id)

    def nodes(self, now_s: float) -> list[views.NodeView]:
        self.catch_up()
        return views.node_views(self._cluster.nodes, self._ledger, self._residency, now_s)

    def hottest(self, count: int, now_s: float) -> list[HotPrefix]:
        """The `count` prefixes that most is asked of, the hottest first."""
        return self._residency.hot.hottest(count, now_s)

    def hot_prefixes(self, count: int, now_s: float) -> list[views.HotPrefixView]:
        return views.hot_prefix_views(self._cluster.nodes, self._residency, count, now_s)

    def inflight_on(self, node_id: NodeId) -> int:
        """Requests placed on an incarnation; none on one that has ended."""
        node = self._cluster.get(node_id)
        return 0 if node is None else node.inflight

    def pace(self, node_id: NodeId) -> Pace | None:
        """What is learned of a node's speeds, which who simulates may teach beforehand; None where
        there is no such node."""
        node = self._cluster.get(node_id)
        return None if node is None else node.calibration

    def told(self, node_id: NodeId) -> BlockSet | None:
        """What an agent has told of its node's cache, to be compared with what it has itself;
        None where there is no such node, or nothing is told of it or believed."""
        node = self._cluster.get(node_id)
        return None if node is None else self._residency.told(node)

    def admission(self, now_s: float) -> list[views.AdmissionView]:
        """How full the nodes of each model are."""
        return views.admission_views(self._admission, self.models(), now_s)

    @property
    def held_by_lane(self) -> dict[str, int]:
        """How many are held, by their class of size: tokens of prompt and output, at most."""
        return dict(zip(LANE_NAMES, self._held.lanes, strict=True))

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def in_flight(self) -> int:
        return len(self._bookings)

    @property
    def index_bytes(self) -> int:
        self.catch_up()
        return self._residency.bytes()

    def next_deadline_s(self) -> float | None:
        """When a `Tick` is next due; None when nothing waits for one. Who is held waits for
        prefills to be over, too, also those that are only assumed to be."""
        deadline_s, start_s = self._held.next_deadline_s(), self._bookings.next_assumed_start_s()
        if deadline_s is None or start_s is None:
            return deadline_s
        return min(start_s, deadline_s)

    def check(self) -> None:
        """Every booking has its flight: leases, in-flight counts and tokens add up."""
        self._cluster.check()
        self._ledger.check()
        self._residency.check()
        self._admission.check()
        self._bookings.check()
        self.guard.check()
