"""Ledger of KV blocks: what each node has promised to requests, before its engine says so.

A lease is reserved when a request is placed, committed at its first token, and released
once, however the request ends. One that nobody releases expires. Blocks are the node's own.

A node whose capacity is unknown has room for everything. So has a node without leases: an
estimate above its whole capacity must not be refused for ever, so a lease is cut to it.
"""

from typing import Final

from pointsman.core.ids import NodeId, RequestId
from pointsman.core.limits import LEASE_TTL_S, RESERVATION_TTL_S
from pointsman.core.placement import Lease, LeaseState

_RESERVED: Final = LeaseState.RESERVED  # Python 3.11 takes 0.1 us to look an enum's member up


class Ledger:
    """All leases, in constant time an operation.

    All reservations last equally long, and so do all committed leases, so each of the two
    dicts is in order of expiry. `now_s` never goes back.
    """

    def __init__(self) -> None:
        self._reserved: dict[RequestId, Lease] = {}
        self._committed: dict[RequestId, Lease] = {}
        self._accounts: dict[NodeId, _Account] = {}

    def __repr__(self) -> str:
        return (
            f"<Ledger {len(self)} leases on {len(self._accounts)} nodes: "
            f"{self.reserved_blocks} blocks reserved, {self.committed_blocks} committed>"
        )

    # --- the life of a lease ---

    def reserve(self, request_id: RequestId, node_id: NodeId, blocks: int, now_s: float) -> Lease:
        """Lease `blocks` of the node, or all it has if that is less.

        Refuses nothing: `fits` is to be asked before. A request has one lease at a time.
        """
        assert request_id not in self._reserved, request_id
        assert request_id not in self._committed, request_id
        assert blocks >= 0, blocks
        account = self._account(node_id)
        if account.capacity is not None and blocks > account.capacity:
            blocks = account.capacity
        lease = Lease(request_id, node_id, blocks, _RESERVED, now_s + RESERVATION_TTL_S)
        self._reserved[request_id] = lease
        account.leased += blocks
        account.leases += 1
        return lease

    def commit(self, request_id: RequestId, now_s: float) -> Lease | None:
        """The first token is there. Harmless twice; None if there is no such lease."""
        lease = self._reserved.pop(request_id, None)
        if lease is None:
            return self._committed.get(request_id)
        state, expires_s = LeaseState.COMMITTED, now_s + LEASE_TTL_S
        lease = Lease(request_id, lease.node_id, lease.blocks, state, expires_s)
        self._committed[request_id] = lease
        return lease

    def release(self, request_id: RequestId) -> Lease | None:
        """The request is over: its blocks are free. Harmless twice, then None."""
        lease = self._committed.pop(request_id, None)
        if lease is None:
            lease = self._reserved.pop(request_id, None)
        if lease is None:
            return None
        account = self._accounts[lease.node_id]
        account.leased -= lease.blocks
        account.leases -= 1
        return lease

    def expire(self, now_s: float) -> list[Lease]:
        """Take back what should have been released by now."""
        expired: list[Lease] = []
        for leases in (self._reserved, self._committed):
            while leases:
                lease = next(iter(leases.values()))
                if lease.expires_s > now_s:
                    break
                self.release(lease.request_id)
                expired.append(lease)
        return expired

    # --- nodes ---

    def set_capacity(self, node_id: NodeId, blocks: int | None) -> None:
        """The node's KV blocks; None if unknown. Leases stand, even if it has fewer now."""
        assert blocks is None or blocks >= 0, blocks
        self._account(node_id).capacity = blocks

    def forget(self, node_id: NodeId) -> list[Lease]:
        """This incarnation of the node is gone, and with it the leases that it had."""
        void = [lease for lease in self._standing() if lease.node_id == node_id]
        for lease in void:
            self.release(lease.request_id)
        self._accounts.pop(node_id, None)
        return void

    # --- questions ---

    def get(self, request_id: RequestId) -> Lease | None:
        """The request's lease."""
        return self._reserved.get(request_id) or self._committed.get(request_id)

    def fits(self, node_id: NodeId, blocks: int) -> bool:
        """Whether a lease of `blocks` may be reserved on the node now."""
        account = self._accounts.get(node_id)
        if account is None or account.capacity is None or not account.leased:
            return True
        return account.capacity - account.leased >= blocks

    def capacity(self, node_id: NodeId) -> int | None:
        """All blocks of the node; None if unknown."""
        account = self._accounts.get(node_id)
        return None if account is None else account.capacity

    def free(self, node_id: NodeId) -> int | None:
        """Blocks that are not leased, at least 0; None if the capacity is unknown."""
        account = self._accounts.get(node_id)
        if account is None or account.capacity is None:
            return None
        return max(0, account.capacity - account.leased)

    def leased(self, node_id: NodeId) -> int:
        """Blocks that are leased on the node."""
        account = self._accounts.get(node_id)
        return 0 if account is None else account.leased

    def leased_share(self, node_id: NodeId) -> float:
        """Leased blocks of the node's capacity; 0 where that is unknown. Above 1 only when the
        node has less than when it promised them."""
        account = self._accounts.get(node_id)
        if account is None or not account.capacity:
            return 0.0
        return account.leased / account.capacity

    def lease_count(self, node_id: NodeId) -> int:
        """Requests with a lease on the node."""
        account = self._accounts.get(node_id)
        return 0 if account is None else account.leases

    @property
    def reserved_blocks(self) -> int:
        """Blocks of requests that have no token yet, over all nodes."""
        return sum(lease.blocks for lease in self._reserved.values())

    @property
    def committed_blocks(self) -> int:
        """Blocks of requests that are past their first token, over all nodes."""
        return sum(lease.blocks for lease in self._committed.values())

    def __len__(self) -> int:
        return len(self._reserved) + len(self._committed)

    def _standing(self) -> list[Lease]:
        return [*self._reserved.values(), *self._committed.values()]

    def _account(self, node_id: NodeId) -> "_Account":
        account = self._accounts.get(node_id)
        if account is None:
            account = self._accounts[node_id] = _Account()
        return account

    def check(self) -> None:
        """Assert that every total is the sum of the leases that stand, in order of expiry."""
        blocks = dict.fromkeys(self._accounts, 0)
        counts = dict.fromkeys(self._accounts, 0)
        for lease in self._standing():
            blocks[lease.node_id] += lease.blocks
            counts[lease.node_id] += 1
        accounts = self._accounts
        assert blocks == {node_id: account.leased for node_id, account in accounts.items()}
        assert counts == {node_id: account.leases for node_id, account in accounts.items()}
        assert not self._reserved.keys() & self._committed.keys(), "a request has one lease"
        self._check_order(self._reserved, LeaseState.RESERVED)
        self._check_order(self._committed, LeaseState.COMMITTED)

    def _check_order(self, leases: "dict[RequestId, Lease]", state: LeaseState) -> None:
        assert all(key == lease.request_id for key, lease in leases.items()), leases
        assert all(lease.state is state for lease in leases.values()), leases
        expiries = [lease.expires_s for lease in leases.values()]
        assert expiries == sorted(expiries), expiries


class _Account:
    """One node's side of the ledger."""

    __slots__ = ("capacity", "leased", "leases")

    def __init__(self) -> None:
        self.capacity: int | None = None
        self.leased = 0
        self.leases = 0
