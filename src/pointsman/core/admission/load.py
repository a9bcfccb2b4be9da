"""Knows how full each part of the cluster is: running totals of what placed requests hold.

A part is the nodes that could serve a request: those of its model that match its pool, zone and
labels. Requests are booked on nodes, and each node adds to the parts that it belongs to; so a
booking costs the same in a fleet of any size, and asking sums nothing up.

    fill    = max(in flight / slots, leased blocks / KV blocks where all nodes tell theirs)
              (a node's slots: what it runs at once, if it says so, `concurrency_max` at most)
    backlog = min(prefill seconds waiting / (nodes · backlog_s),
                  prompts waiting / (nodes · backlog_prefills))

Own counts are exact at any moment. What others sent to the nodes is added as far as scrapes tell.
"""

from typing import Final

from pointsman.core.admission.waits import MeanTimes
from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.candidates import matches_constraints
from pointsman.core.cluster import Cluster
from pointsman.core.ids import ModelName, NodeId, RequestId
from pointsman.core.ledger import Ledger
from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_NORMAL
from pointsman.core.node import Node
from pointsman.core.request import Request

PARTS_MAX: Final = 1_024
"""The most combinations of model, pool, zone and labels that have totals of their own. Clients name
them, so there could be any number. What is beyond goes by its model alone."""

_LOOK_S: Final = 1.0
"""How long a sum over the nodes' scrapes is good for: scrapes come as often as that."""

PartKey = tuple[ModelName, str | None, str | None, tuple[tuple[str, str], ...]]


def part_key(request: Request) -> PartKey:
    """The key of the nodes that could serve `request`: one for each part."""
    return (request.model, request.pool, request.zone, request.labels)


class Holding:
    """What some placed requests hold together. `prefill_s` is of those without a first token."""

    __slots__ = ("blocks", "inflight", "prefill_s", "prefills")

    def __init__(self) -> None:
        self.inflight = 0
        self.blocks = 0
        self.prefill_s = 0.0
        self.prefills = 0

    def add(self, other: "Holding") -> None:
        self.inflight += other.inflight
        self.blocks += other.blocks
        self.prefill_s += other.prefill_s
        self.prefills += other.prefills


class Part:
    """Nodes that could serve the same requests. `all` is what is held there. `high`, `low` and
    `long` are parts of it: what high priority, low priority and very long prompts hold."""

    __slots__ = (
        "_foreign",
        "_looked_s",
        "_nodes",
        "all",
        "blocks",
        "high",
        "long",
        "low",
        "slots",
        "urgent_until_s",
    )

    def __init__(self, nodes: list[Node], ledger: Ledger) -> None:
        self._nodes = nodes
        self.slots = sum(min(n.concurrency_configured, n.running_max) for n in nodes)
        self.blocks = _blocks(nodes, ledger)
        self.all = Holding()
        self.high = Holding()
        self.low = Holding()
        self.long = Holding()
        self.urgent_until_s = float("-inf")
        self._foreign = 0
        self._looked_s = float("-inf")

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    def foreign(self, now_s: float) -> int:
        """How many requests are there that are not ours, by the scrapes."""
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._foreign = sum(node.foreign(now_s) for node in self._nodes)
        return self._foreign

    def fill(self, now_s: float) -> float:
        """How full these nodes are: the share taken of slots or of blocks, whichever runs out
        first."""
        return self._share(self.all, self.foreign(now_s))

    def high_share(self) -> float:
        """The share of them that high priority holds."""
        return self._share(self.high, 0)

    def low_share(self) -> float:
        """The share of them that low priority holds."""
        return self._share(self.low, 0)

    def long_share(self) -> float:
        """The share that very long prompts hold: of slots or blocks, or of the nodes themselves. A
        node that computes such a prompt begins nothing else for many seconds."""
        nodes = len(self._nodes)
        computing = self.long.prefills / nodes if nodes else 0.0
        return max(computing, self._share(self.long, 0))

    def backlog(self, rules: AdmissionRules, now_s: float) -> float:
        """Prefill work that waits, as a share of what may wait while there are urgent requests."""
        nodes = len(self._nodes)
        if not nodes or now_s >= self.urgent_until_s:
            return 0.0
        return min(
            self.all.prefill_s / (nodes * rules.backlog_s),
            self.all.prefills / (nodes * rules.backlog_prefills),
        )

    def _share(self, holding: Holding, foreign: int) -> float:
        if not self.slots:
            return 0.0
        share = (holding.inflight + foreign) / self.slots
        return max(share, holding.blocks / self.blocks) if self.blocks else share


def _blocks(nodes: list[Node], ledger: Ledger) -> int:
    """KV blocks of all of them; 0, which bounds nothing, if one does not tell its own: what is
    leased there is in the totals as well."""
    capacities = [ledger.account(node.id).capacity for node in nodes]
    known = [capacity for capacity in capacities if capacity is not None]
    return sum(known) if len(known) == len(nodes) else 0


class _Account:
    """What is held on one node, with the holdings of the parts that it belongs to."""

    __slots__ = ("all", "high", "long", "low", "parts", "urgent_until_s")

    def __init__(self) -> None:
        self.all = Holding()
        self.high = Holding()
        self.low = Holding()
        self.long = Holding()
        self.parts: list[Part] = []
        self.urgent_until_s = float("-inf")

    def urge(self, until_s: float) -> None:
        """Note that a request of high priority goes to the node. For a while that makes the node
        urgent."""
        self.urgent_until_s = until_s
        for part in self.parts:
            part.urgent_until_s = until_s

    def holdings(self, priority: int, *, is_long: bool) -> list[Holding]:
        """All holdings that a request of that kind changes."""
        parts = self.parts
        holdings = [self.all, *[part.all for part in parts]]
        if priority >= PRIORITY_HIGH:
            holdings += [self.high, *[part.high for part in parts]]
        if priority <= PRIORITY_LOW:
            holdings += [self.low, *[part.low for part in parts]]
        if is_long:
            holdings += [self.long, *[part.long for part in parts]]
        return holdings


class _Burden:
    """What one placed request holds, and since when. Once it has begun to stream `prefill_s` is 0
    and `prefills` False."""

    __slots__ = (
        "account",
        "blocks",
        "is_long",
        "model",
        "placed_s",
        "prefill_s",
        "prefills",
        "priority",
    )

    def __init__(
        self, model: ModelName, account: _Account, blocks: int, prefill_s: float, placed_s: float
    ) -> None:
        self.model = model
        self.account = account
        self.blocks = blocks
        self.prefill_s = prefill_s
        self.placed_s = placed_s
        self.prefills = True
        self.priority = PRIORITY_NORMAL
        self.is_long = False


class Loads:
    """All totals. The bookings change them, the gate asks for them. `rules` may be replaced at any
    time; what was booked under the old rules stays counted by those."""

    def __init__(self, cluster: Cluster, ledger: Ledger, rules: AdmissionRules) -> None:
        self.rules = rules
        self._cluster = cluster
        self._ledger = ledger
        self.first_tokens = MeanTimes()
        self.executions = MeanTimes()
        self._accounts: dict[NodeId, _Account] = {}
        self._burdens: dict[RequestId, _Burden] = {}
        self._parts: dict[PartKey, Part] = {}
        self._version = -1

    def part(self, request: Request) -> Part:
        """The nodes that could serve `request` at this moment, were they free."""
        if self._version != self._cluster.version:
            self._regroup()
        key = part_key(request)
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= PARTS_MAX:
                key = (request.model, None, None, ())
                part = self._parts.get(key)
            if part is None:
                part = self._grouped(key, request)
                if part.nodes:  # clients may name models without end that nobody serves
                    self._parts[key] = part
        return part

    def book(
        self,
        request: Request,
        node_id: NodeId,
        now_s: float,
        *,
        prompt_tokens: int,
        blocks: int,
        prefill_s: float,
    ) -> None:
        """Note that a request is placed: it has taken so many blocks, and has so much prefill to
        come."""
        if self._version != self._cluster.version:
            self._regroup()
        account = self._account(node_id)
        is_long = prompt_tokens >= self.rules.long_context_tokens
        burden = _Burden(request.model, account, blocks, prefill_s, now_s)
        burden.priority, burden.is_long = request.priority, is_long
        if request.priority >= PRIORITY_HIGH:
            account.urge(now_s + self.rules.urgent_memory_s)
        self._burdens[request.id] = burden
        for holding in account.holdings(request.priority, is_long=is_long):
            holding.inflight += 1
            holding.blocks += blocks
            holding.prefill_s += prefill_s
            holding.prefills += 1

    def prefilled(self, request_id: RequestId, now_s: float) -> None:
        """Note that its first token is there, or is taken to be. A second call changes nothing."""
        burden = self._burdens.get(request_id)
        if burden is None or not burden.prefills:
            return
        prefill_s, burden.prefill_s, burden.prefills = burden.prefill_s, 0.0, False
        for holding in burden.account.holdings(burden.priority, is_long=burden.is_long):
            holding.prefill_s -= prefill_s
            holding.prefills -= 1
        self.first_tokens.took(burden.model, now_s - burden.placed_s)

    def release(self, request_id: RequestId, freed_blocks: int, now_s: float) -> None:
        """Note that it is over, and so many blocks are free. A second call changes nothing."""
        burden = self._burdens.pop(request_id, None)
        if burden is None:
            return
        for holding in burden.account.holdings(burden.priority, is_long=burden.is_long):
            holding.inflight -= 1
            holding.blocks -= burden.blocks
            holding.prefill_s -= burden.prefill_s
            holding.prefills -= burden.prefills
            if not holding.inflight:
                holding.prefill_s = 0.0  # rounding does not add up
        account, outlasting = burden.account, burden.blocks - freed_blocks
        if outlasting:
            for holding in [account.all, *[part.all for part in account.parts]]:
                holding.blocks += outlasting  # what it shared is others' from here on
        if not burden.prefills:
            self.executions.took(burden.model, now_s - burden.placed_s)

    def _account(self, node_id: NodeId) -> _Account:
        account = self._accounts.get(node_id)
        if account is None:
            account = self._accounts[node_id] = _Account()
        return account

    def _regroup(self) -> None:
        """Nodes came, went or changed: drop the parts, which are made anew when they are asked
        for."""
        self._version = self._cluster.version
        self._parts.clear()
        for node_id, account in list(self._accounts.items()):
            account.parts.clear()
            if not account.all.inflight and self._cluster.get(node_id) is None:
                del self._accounts[node_id]

    def _grouped(self, key: PartKey, request: Request) -> Part:
        nodes = self._cluster.serving(request.model)
        if key[1:] != (None, None, ()):
            nodes = [node for node in nodes if matches_constraints(node, request)]
        part = Part(nodes, self._ledger)
        for node in nodes:
            account = self._account(node.id)
            account.parts.append(part)
            part.all.add(account.all)
            part.high.add(account.high)
            part.low.add(account.low)
            part.long.add(account.long)
            part.urgent_until_s = max(part.urgent_until_s, account.urgent_until_s)
        return part

    def check(self) -> None:
        """Assert that every total is the sum of what the requests hold, and that nothing is
        negative."""
        for node_id, account in self._accounts.items():
            burdens = [b for b in self._burdens.values() if b.account is account]
            if self._cluster.get(node_id) is not None:
                _check(account.all, burdens, self._ledger.account(node_id).leased)
            _check(account.high, [b for b in burdens if b.priority >= PRIORITY_HIGH])
            _check(account.low, [b for b in burdens if b.priority <= PRIORITY_LOW])
            _check(account.long, [b for b in burdens if b.is_long])
        if self._version != self._cluster.version:
            return
        for part in self._parts.values():
            accounts = [a for a in self._accounts.values() if part in a.parts]
            assert part.all.inflight == sum(a.all.inflight for a in accounts), part.all.inflight
            assert part.all.blocks == sum(a.all.blocks for a in accounts), part.all.blocks


def _check(holding: Holding, burdens: list[_Burden], blocks: int | None = None) -> None:
    """Assert that a holding is the sum of its burdens; of blocks, `blocks` where that is given."""
    blocks = sum(burden.blocks for burden in burdens) if blocks is None else blocks
    assert holding.inflight == len(burdens), (holding.inflight, burdens)
    assert holding.blocks == blocks, (holding.blocks, blocks)
    assert abs(holding.prefill_s - sum(b.prefill_s for b in burdens)) < 1e-3, holding.prefill_s
