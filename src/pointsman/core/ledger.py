"""Ledger of KV blocks: what each node has promised to requests, before its engine says so.

A lease is reserved when a request is placed, committed at its first token, and released once,
however the request ends: what is reserved waits inside the engine, or is being prefilled. Blocks
are the node's own; those of a prefix that several requests hold are leased once, until the last
of them is over. Whether a lease still stands for anything is not asked here, but in `audit`.

A node whose capacity is unknown has room for everything. So has a node without leases: an
estimate above its whole capacity must not be refused for ever, so a lease is cut to it.
"""

from typing import Final

from pointsman.core.ids import NodeId, RequestId
from pointsman.core.pins import Pins
from pointsman.core.placement import NO_SEGMENTS, Footprint, Segments


class Ledger:
    """All leases, in constant time an operation."""

    def __init__(self) -> None:
        self._leases: dict[RequestId, Lease] = {}
        self._accounts: dict[NodeId, Account] = {}

    def __repr__(self) -> str:
        accounts = self._accounts.values()
        leased, reserved = sum(a.leased for a in accounts), sum(a.reserved for a in accounts)
        return (
            f"<Ledger {len(self)} leases on {len(self._accounts)} nodes: "
            f"{reserved} blocks reserved, {leased - reserved} committed>"
        )

    # --- the life of a lease ---

    def reserve(self, request_id: RequestId, node_id: NodeId, footprint: Footprint) -> int:
        """Lease that many blocks of the node, or all it has if that is less. How many are taken by
        that: what others hold of the segments is taken already.

        Refuses nothing: `fits` is to be asked before. A request has one lease at a time.
        """
        assert request_id not in self._leases, request_id
        account, segments = self._account(node_id), footprint.segments
        own_blocks, capacity = footprint.blocks - segments.blocks, account.capacity
        assert own_blocks >= 0, footprint
        if capacity is not None and footprint.blocks > capacity:
            own_blocks, segments = capacity, NO_SEGMENTS
        taken = own_blocks + account.pins.pin(segments)
        self._leases[request_id] = Lease(node_id, own_blocks, segments, taken)
        account.leased += taken
        account.reserved += taken
        account.leases += 1
        return taken

    def commit(self, request_id: RequestId) -> None:
        """The first token is there. A second call changes nothing, nor one without a lease."""
        lease = self._leases.get(request_id)
        if lease is not None:
            self._accounts[lease.node_id].reserved -= lease.reserved
            lease.reserved = 0

    def release(self, request_id: RequestId) -> int:
        """The request is over: how many blocks are free that it alone held. A second call changes
        nothing."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return 0
        account = self._accounts[lease.node_id]
        freed = lease.own_blocks + account.pins.unpin(lease.segments)
        account.leased -= freed
        account.reserved -= lease.reserved
        account.leases -= 1
        return freed

    # --- nodes ---

    def set_capacity(self, node_id: NodeId, blocks: int | None) -> None:
        """The node's KV blocks; None if unknown. Leases stand, even if it has fewer now."""
        assert blocks is None or blocks >= 0, blocks
        self._account(node_id).capacity = blocks

    def forget(self, node_id: NodeId) -> None:
        """This incarnation of the node is gone, and with it the leases that it had."""
        for request_id in [r for r, lease in self._leases.items() if lease.node_id == node_id]:
            del self._leases[request_id]
        self._accounts.pop(node_id, None)

    # --- questions ---

    def held_alone(self, request_id: RequestId) -> int:
        """Blocks that would be free if the request ended now."""
        lease = self._leases.get(request_id)
        if lease is None:
            return 0
        return lease.own_blocks + self._accounts[lease.node_id].pins.held_once(lease.segments)

    def account(self, node_id: NodeId) -> "Account":
        """The node's side, for reading only; an empty one for a node that is not known."""
        account = self._accounts.get(node_id)
        return _UNKNOWN if account is None else account

    def __len__(self) -> int:
        return len(self._leases)

    def _account(self, node_id: NodeId) -> "Account":
        account = self._accounts.get(node_id)
        if account is None:
            account = self._accounts[node_id] = Account()
        return account

    def check(self) -> None:
        """Assert that every total is the sum of the leases that stand."""
        here: dict[NodeId, list[Lease]] = {node_id: [] for node_id in self._accounts}
        for lease in self._leases.values():
            here[lease.node_id].append(lease)
        for node_id, account in self._accounts.items():
            leases = here[node_id]
            own_blocks = sum(lease.own_blocks for lease in leases)
            assert account.leased == own_blocks + account.pins.blocks, node_id
            assert account.reserved == sum(lease.reserved for lease in leases), node_id
            assert 0 <= account.reserved <= account.leased, node_id
            assert account.leases == len(leases), node_id


class Lease:
    """KV blocks of one node, promised to one request: its own, and its part in `segments`, which
    others may hold as well. `reserved` are those that it took when it was placed, until its first
    token."""

    __slots__ = ("node_id", "own_blocks", "reserved", "segments")

    def __init__(self, node_id: NodeId, own_blocks: int, segments: Segments, reserved: int) -> None:
        self.node_id = node_id
        self.own_blocks = own_blocks
        self.segments = segments
        self.reserved = reserved


class Account:
    """One node's side of the ledger: its KV blocks, None if unknown, and those that are leased to
    how many requests; of these, those `reserved` for requests that have no token yet. What such a
    request shares is reserved by who took it first. Changed by the ledger alone."""

    __slots__ = ("capacity", "leased", "leases", "pins", "reserved")

    def __init__(self) -> None:
        self.capacity: int | None = None
        self.leased = 0
        self.reserved = 0
        self.leases = 0
        self.pins = Pins()

    def needed(self, footprint: Footprint) -> int:
        """Blocks that it would take now, beside what others here hold with it."""
        return footprint.blocks - self.pins.shared(footprint.segments)

    def fits(self, blocks: int) -> bool:
        """Whether a lease of so many may be reserved now."""
        if self.capacity is None or not self.leased:
            return True
        return self.capacity - self.leased >= blocks

    @property
    def free(self) -> int | None:
        """Blocks that are not leased, at least 0; None if the capacity is unknown."""
        return None if self.capacity is None else max(0, self.capacity - self.leased)

    @property
    def leased_share(self) -> float:
        """Leased blocks of the capacity; 0 where that is unknown. Above 1 only when the node has
        less than when it promised them."""
        return self.leased / self.capacity if self.capacity else 0.0


_UNKNOWN: Final = Account()
