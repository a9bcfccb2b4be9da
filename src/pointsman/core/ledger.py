"""Ledger of KV blocks: what each node has promised to requests, before its engine says so.

A lease is reserved when a request is placed, committed at its first token, and released
once, however the request ends. One that nobody releases expires. Blocks are the node's own.

A node whose capacity is unknown has room for everything. So has a node without leases: an
estimate above its whole capacity must not be refused for ever, so a lease is cut to it.
"""

from enum import StrEnum
from heapq import heapify, heappop, heappush

import msgspec

from pointsman.core.ids import NodeId, RequestId
from pointsman.core.limits import LEASE_TTL_S, RESERVATION_TTL_S

_STALE_MAX = 64  # expiries of leases that are gone, beside as many as there are leases


class LeaseState(StrEnum):
    """How firm a lease is."""

    RESERVED = "reserved"  # placed, no token yet
    COMMITTED = "committed"  # its prefill is over: the blocks are taken


class Lease(msgspec.Struct, frozen=True, gc=False):
    """KV blocks of one node, promised to one request until `expires_s`."""

    request_id: RequestId
    node_id: NodeId
    blocks: int
    state: LeaseState
    expires_s: float


class Ledger:
    """All leases. Each operation takes constant time (expiry a logarithm more).

    `reserved_blocks` and `committed_blocks` are totals over all nodes.
    """

    def __init__(self) -> None:
        self.reserved_blocks = 0
        self.committed_blocks = 0
        self._leases: dict[RequestId, Lease] = {}
        self._accounts: dict[NodeId, _Account] = {}
        self._expiries: list[tuple[float, RequestId]] = []  # heap; stale where a lease moved on
        self._free_blocks = 0  # sum over the nodes of known capacity
        self._always_fitting = 0  # nodes that are without lease or of unknown capacity

    def __repr__(self) -> str:
        return (
            f"<Ledger {len(self._leases)} leases on {len(self._accounts)} nodes: "
            f"{self.reserved_blocks} blocks reserved, {self.committed_blocks} committed>"
        )

    # --- the life of a lease ---

    def reserve(self, request_id: RequestId, node_id: NodeId, blocks: int, now_s: float) -> Lease:
        """Lease `blocks` of the node, or all it has if that is less.

        Refuses nothing: `fits` is to be asked before. A request has one lease at a time.
        """
        assert request_id not in self._leases, request_id
        assert blocks >= 0, blocks
        blocks = self._account(node_id).clamped(blocks)
        lease = Lease(request_id, node_id, blocks, LeaseState.RESERVED, now_s + RESERVATION_TTL_S)
        self._book(lease)
        return lease

    def commit(self, request_id: RequestId, now_s: float) -> Lease | None:
        """The first token is there. Harmless twice; None if there is no such lease."""
        lease = self._leases.get(request_id)
        if lease is None or lease.state is LeaseState.COMMITTED:
            return lease
        return self._replace(lease, lease.blocks, LeaseState.COMMITTED, now_s + LEASE_TTL_S)

    def resize(self, request_id: RequestId, blocks: int) -> Lease | None:
        """The request's true size is known. None if there is no such lease."""
        assert blocks >= 0, blocks
        lease = self._leases.get(request_id)
        if lease is None:
            return None
        clamped = self._account(lease.node_id).clamped(blocks)
        return self._replace(lease, clamped, lease.state, lease.expires_s)

    def release(self, request_id: RequestId) -> Lease | None:
        """The request is over: its blocks are free. Harmless twice, then None."""
        lease = self._leases.get(request_id)
        if lease is not None:
            self._unbook(lease)
        return lease

    def expire(self, now_s: float) -> list[Lease]:
        """Take back what should have been released by now, in order of expiry."""
        expired: list[Lease] = []
        while self._expiries and self._expiries[0][0] <= now_s:
            expires_s, request_id = heappop(self._expiries)
            lease = self._leases.get(request_id)
            if lease is not None and lease.expires_s == expires_s:
                self._unbook(lease)
                expired.append(lease)
        return expired

    # --- nodes ---

    def set_capacity(self, node_id: NodeId, blocks: int | None) -> None:
        """The node's KV blocks; None if unknown. Leases stand, even if it has fewer now."""
        assert blocks is None or blocks >= 0, blocks
        account = self._account(node_id)
        self._discount(account)
        account.capacity = blocks
        self._count(account)

    def forget(self, node_id: NodeId) -> list[Lease]:
        """This incarnation of the node is gone, and with it the leases that it had."""
        account = self._accounts.get(node_id)
        if account is None:
            return []
        void = [self._leases[request_id] for request_id in account.requests]
        for lease in void:
            self._unbook(lease)
        self._discount(account)
        del self._accounts[node_id]
        return void

    # --- questions ---

    def get(self, request_id: RequestId) -> Lease | None:
        """The request's lease."""
        return self._leases.get(request_id)

    def fits(self, node_id: NodeId, blocks: int) -> bool:
        """Whether a lease of `blocks` may be reserved on the node now."""
        account = self._accounts.get(node_id)
        return account is None or account.always_fits or account.free >= blocks

    def fits_cluster(self, blocks: int) -> bool:
        """Whether all nodes together have `blocks` free; only `fits` says that one has."""
        return self._always_fitting > 0 or self._free_blocks >= blocks

    def free(self, node_id: NodeId) -> int | None:
        """Blocks that are not leased, at least 0; None if the capacity is unknown."""
        account = self._accounts.get(node_id)
        return None if account is None or account.capacity is None else account.free

    def leased(self, node_id: NodeId) -> int:
        """Blocks that are leased on the node."""
        account = self._accounts.get(node_id)
        return 0 if account is None else account.leased

    def lease_count(self, node_id: NodeId) -> int:
        """Requests with a lease on the node."""
        account = self._accounts.get(node_id)
        return 0 if account is None else len(account.requests)

    def __len__(self) -> int:
        return len(self._leases)

    def check(self) -> None:
        """Assert that every total is the sum of the leases that stand."""
        leased = dict.fromkeys(self._accounts, 0)
        totals = dict.fromkeys(LeaseState, 0)
        for request_id, lease in self._leases.items():
            assert lease.request_id == request_id, (lease, request_id)
            assert request_id in self._accounts[lease.node_id].requests, lease
            leased[lease.node_id] += lease.blocks
            totals[lease.state] += lease.blocks
        accounts = self._accounts
        assert leased == {node_id: account.leased for node_id, account in accounts.items()}
        assert totals[LeaseState.RESERVED] == self.reserved_blocks, totals
        assert totals[LeaseState.COMMITTED] == self.committed_blocks, totals
        assert len(self._leases) == sum(len(account.requests) for account in accounts.values())
        assert self._free_blocks == sum(account.free for account in accounts.values())
        assert self._always_fitting == sum(account.always_fits for account in accounts.values())
        pending = dict.fromkeys(self._expiries)
        for lease in self._leases.values():
            assert (lease.expires_s, lease.request_id) in pending, f"never expires: {lease}"
        assert len(self._expiries) <= 2 * len(self._leases) + _STALE_MAX, len(self._expiries)

    # --- bookkeeping ---

    def _account(self, node_id: NodeId) -> "_Account":
        account = self._accounts.get(node_id)
        if account is None:
            account = self._accounts[node_id] = _Account()
            self._count(account)
        return account

    def _book(self, lease: Lease) -> None:
        account = self._accounts[lease.node_id]
        self._leases[lease.request_id] = lease
        account.requests[lease.request_id] = None
        self._change(account, lease, lease.blocks)
        self._watch(lease)

    def _unbook(self, lease: Lease) -> None:
        account = self._accounts[lease.node_id]
        del self._leases[lease.request_id]
        del account.requests[lease.request_id]
        self._change(account, lease, -lease.blocks)
        self._drop_stale()

    def _replace(self, lease: Lease, blocks: int, state: LeaseState, expires_s: float) -> Lease:
        account = self._accounts[lease.node_id]
        new = Lease(lease.request_id, lease.node_id, blocks, state, expires_s)
        self._change(account, lease, -lease.blocks)
        self._change(account, new, blocks)
        self._leases[lease.request_id] = new
        if expires_s != lease.expires_s:
            self._watch(new)
        return new

    def _change(self, account: "_Account", lease: Lease, blocks: int) -> None:
        self._discount(account)
        account.leased += blocks
        self._count(account)
        if lease.state is LeaseState.RESERVED:
            self.reserved_blocks += blocks
        else:
            self.committed_blocks += blocks

    def _count(self, account: "_Account") -> None:
        self._free_blocks += account.free
        self._always_fitting += account.always_fits

    def _discount(self, account: "_Account") -> None:
        self._free_blocks -= account.free
        self._always_fitting -= account.always_fits

    def _watch(self, lease: Lease) -> None:
        heappush(self._expiries, (lease.expires_s, lease.request_id))
        self._drop_stale()

    def _drop_stale(self) -> None:
        """Keep the heap within twice the leases: each rebuild is paid for by what it drops."""
        if len(self._expiries) > 2 * len(self._leases) + _STALE_MAX:
            standing = self._leases.values()
            self._expiries = [(lease.expires_s, lease.request_id) for lease in standing]
            heapify(self._expiries)


class _Account:
    """One node's side of the ledger."""

    __slots__ = ("capacity", "leased", "requests")

    def __init__(self) -> None:
        self.capacity: int | None = None
        self.leased = 0
        self.requests: dict[RequestId, None] = {}

    @property
    def free(self) -> int:
        return 0 if self.capacity is None else max(0, self.capacity - self.leased)

    @property
    def always_fits(self) -> bool:
        return self.capacity is None or self.leased == 0

    def clamped(self, blocks: int) -> int:
        return blocks if self.capacity is None else min(blocks, self.capacity)
