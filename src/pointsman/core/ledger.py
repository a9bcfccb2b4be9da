"""Ledger of KV blocks: what each node has promised to requests, before its engine says so.

A lease is reserved when a request is placed, committed at its first token, and released
once, however the request ends. Blocks are the node's own. Whether a lease still stands for
anything is not asked here, but in `audit`.

A node whose capacity is unknown has room for everything. So has a node without leases: an
estimate above its whole capacity must not be refused for ever, so a lease is cut to it.
"""

from typing import Final

from pointsman.core.ids import NodeId, RequestId
from pointsman.core.placement import Lease, LeaseState

# Python 3.11 takes 0.1 us to look an enum's member up.
_RESERVED: Final = LeaseState.RESERVED
_COMMITTED: Final = LeaseState.COMMITTED


class Ledger:
    """All leases, in constant time an operation."""

    def __init__(self) -> None:
        self._leases: dict[RequestId, Lease] = {}
        self._accounts: dict[NodeId, Account] = {}

    def __repr__(self) -> str:
        return (
            f"<Ledger {len(self)} leases on {len(self._accounts)} nodes: "
            f"{self.reserved_blocks} blocks reserved, {self.committed_blocks} committed>"
        )

    # --- the life of a lease ---

    def reserve(self, request_id: RequestId, node_id: NodeId, blocks: int) -> Lease:
        """Lease `blocks` of the node, or all it has if that is less.

        Refuses nothing: `fits` is to be asked before. A request has one lease at a time.
        """
        assert request_id not in self._leases, request_id
        assert blocks >= 0, blocks
        account = self._account(node_id)
        if account.capacity is not None and blocks > account.capacity:
            blocks = account.capacity
        lease = self._leases[request_id] = Lease(request_id, node_id, blocks, _RESERVED)
        account.leased += blocks
        account.leases += 1
        return lease

    def commit(self, request_id: RequestId) -> Lease | None:
        """The first token is there. Harmless twice; None if there is no such lease."""
        lease = self._leases.get(request_id)
        if lease is None or lease.state is _COMMITTED:
            return lease
        lease = Lease(request_id, lease.node_id, lease.blocks, _COMMITTED)
        self._leases[request_id] = lease
        return lease

    def release(self, request_id: RequestId) -> Lease | None:
        """The request is over: its blocks are free. Harmless twice, then None."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return None
        account = self._accounts[lease.node_id]
        account.leased -= lease.blocks
        account.leases -= 1
        return lease

    # --- nodes ---

    def set_capacity(self, node_id: NodeId, blocks: int | None) -> None:
        """The node's KV blocks; None if unknown. Leases stand, even if it has fewer now."""
        assert blocks is None or blocks >= 0, blocks
        self._account(node_id).capacity = blocks

    def forget(self, node_id: NodeId) -> list[Lease]:
        """This incarnation of the node is gone, and with it the leases that it had."""
        void = [lease for lease in self._leases.values() if lease.node_id == node_id]
        for lease in void:
            self.release(lease.request_id)
        self._accounts.pop(node_id, None)
        return void

    # --- questions ---

    def get(self, request_id: RequestId) -> Lease | None:
        """The request's lease."""
        return self._leases.get(request_id)

    def account(self, node_id: NodeId) -> "Account":
        """The node's side, to be read: of one that nothing is known of, an empty one."""
        account = self._accounts.get(node_id)
        return _UNKNOWN if account is None else account

    @property
    def reserved_blocks(self) -> int:
        """Blocks of requests that have no token yet, over all nodes."""
        return self._blocks(_RESERVED)

    @property
    def committed_blocks(self) -> int:
        """Blocks of requests that are past their first token, over all nodes."""
        return self._blocks(_COMMITTED)

    def __len__(self) -> int:
        return len(self._leases)

    def _blocks(self, state: LeaseState) -> int:
        return sum(lease.blocks for lease in self._leases.values() if lease.state is state)

    def _account(self, node_id: NodeId) -> "Account":
        account = self._accounts.get(node_id)
        if account is None:
            account = self._accounts[node_id] = Account()
        return account

    def check(self) -> None:
        """Assert that every total is the sum of the leases that stand."""
        blocks = dict.fromkeys(self._accounts, 0)
        counts = dict.fromkeys(self._accounts, 0)
        for request_id, lease in self._leases.items():
            assert lease.request_id == request_id, lease
            blocks[lease.node_id] += lease.blocks
            counts[lease.node_id] += 1
        accounts = self._accounts
        assert blocks == {node_id: account.leased for node_id, account in accounts.items()}
        assert counts == {node_id: account.leases for node_id, account in accounts.items()}


class Account:
    """One node's side of the ledger: its KV blocks, None if unknown, and those that are leased to
    how many requests. Changed by the ledger alone."""

    __slots__ = ("capacity", "leased", "leases")

    def __init__(self) -> None:
        self.capacity: int | None = None
        self.leased = 0
        self.leases = 0

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


_UNKNOWN = Account()
