"""The KV-block ledger: what is leased is what is held, whatever happens in between."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman.core.ids import NodeId, RequestId
from pointsman.core.ledger import Ledger
from pointsman.core.placement import Lease, LeaseState

A, B = NodeId(1), NodeId(2)
ONE, TWO = RequestId("one"), RequestId("two")


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.set_capacity(A, 100)
    return ledger


def test_a_lease_is_reserved_committed_and_released_once(ledger: Ledger) -> None:
    lease = ledger.reserve(ONE, A, 30)
    assert lease == Lease(ONE, A, 30, LeaseState.RESERVED)
    account = ledger.account(A)
    assert (account.free, account.leased, account.leases) == (70, 30, 1)
    committed = ledger.commit(ONE)
    assert committed == Lease(ONE, A, 30, LeaseState.COMMITTED)
    assert (ledger.reserved_blocks, ledger.committed_blocks) == (0, 30)
    assert ledger.release(ONE) == committed
    assert ledger.release(ONE) is None
    assert (account.free, account.leased, account.leases) == (100, 0, 0)


def test_a_second_lease_of_a_request_is_a_programmers_error(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, 1)
    with pytest.raises(AssertionError):
        ledger.reserve(ONE, B, 1)
    ledger.release(ONE)
    assert ledger.reserve(ONE, B, 1).node_id == B


def test_a_node_of_unknown_capacity_has_room(ledger: Ledger) -> None:
    ledger.reserve(ONE, B, 10**9)
    assert ledger.account(B).fits(10**9)
    assert ledger.account(B).free is None
    assert ledger.account(B).leased == 10**9


def test_an_oversized_request_fits_an_idle_node_and_takes_all_of_it(ledger: Ledger) -> None:
    assert ledger.account(A).fits(5_000)
    assert ledger.reserve(ONE, A, 5_000).blocks == 100
    assert not ledger.account(A).fits(1)
    assert ledger.account(A).free == 0


def test_a_node_with_leases_has_room_for_what_is_free(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, 60)
    assert ledger.account(A).fits(40)
    assert not ledger.account(A).fits(41)


def test_late_messages_about_a_lease_that_is_gone_change_nothing(ledger: Ledger) -> None:
    assert ledger.commit(ONE) is None
    assert ledger.release(ONE) is None
    assert ledger.forget(B) == []
    ledger.check()
    assert len(ledger) == 0


def test_a_commit_may_come_twice(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, 1)
    assert ledger.commit(ONE) == ledger.commit(ONE)


def test_the_leases_of_a_node_that_died_are_void(ledger: Ledger) -> None:
    lost = ledger.reserve(ONE, A, 30)
    kept = ledger.reserve(TWO, B, 7)
    assert ledger.forget(A) == [lost]
    assert ledger.release(ONE) is None, "a late release finds nothing"
    assert ledger.get(TWO) == kept
    account = ledger.account(A)
    assert (account.leased, account.free, ledger.reserved_blocks) == (0, None, 7)


def test_capacity_may_shrink_below_what_is_leased(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, 80)
    ledger.set_capacity(A, 50)
    account = ledger.account(A)
    assert (account.free, account.fits(1), account.leased) == (0, False, 80)
    ledger.check()


NODES = st.sampled_from([NodeId(n) for n in range(4)])
REQUESTS = st.sampled_from([RequestId(f"r{n}") for n in range(12)])


class LedgerAgainstTwin(RuleBasedStateMachine):
    """Requests come, stream, are cancelled twice; nodes die and return; messages are late.

    The twin is a list of leases and a dict of capacities; every question is a scan.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.leases: list[Lease] = []
        self.capacities: dict[NodeId, int | None] = {}

    @rule(node_id=NODES, blocks=st.none() | st.integers(0, 50))
    def set_capacity(self, node_id: NodeId, blocks: int | None) -> None:
        self.ledger.set_capacity(node_id, blocks)
        self.capacities[node_id] = blocks

    @rule(request_id=REQUESTS, node_id=NODES, blocks=st.integers(0, 80))
    def place(self, request_id: RequestId, node_id: NodeId, blocks: int) -> None:
        if any(lease.request_id == request_id for lease in self.leases):
            return
        self.leases.append(self.ledger.reserve(request_id, node_id, blocks))
        self.capacities.setdefault(node_id, None)

    @rule(request_id=REQUESTS)
    def first_token(self, request_id: RequestId) -> None:
        committed = self.ledger.commit(request_id)
        self._replace(request_id, committed)
        assert committed is None or committed.state is LeaseState.COMMITTED

    @rule(request_id=REQUESTS)
    def end_or_cancel(self, request_id: RequestId) -> None:
        released = self.ledger.release(request_id)
        assert ([released] if released else []) == self._of(request_id)
        self._replace(request_id, None)

    @rule(node_id=NODES)
    def node_dies(self, node_id: NodeId) -> None:
        void = self.ledger.forget(node_id)
        here = [lease for lease in self.leases if lease.node_id == node_id]
        assert {lease.request_id: lease for lease in void} == {
            lease.request_id: lease for lease in here
        }
        self.leases = [lease for lease in self.leases if lease.node_id != node_id]
        self.capacities.pop(node_id, None)

    @invariant()
    def leases_are_what_is_held(self) -> None:
        self.ledger.check()
        assert len(self.ledger) == len(self.leases)
        for node_id in map(NodeId, range(4)):
            held = [lease.blocks for lease in self.leases if lease.node_id == node_id]
            capacity = self.capacities.get(node_id)
            free = None if capacity is None else max(0, capacity - sum(held))
            assert self.ledger.account(node_id).leased == sum(held)
            assert self.ledger.account(node_id).leases == len(held)
            assert self.ledger.account(node_id).free == free
            fits = free is None or sum(held) == 0 or free >= 17
            assert self.ledger.account(node_id).fits(17) == fits

    def _of(self, request_id: RequestId) -> list[Lease]:
        return [lease for lease in self.leases if lease.request_id == request_id]

    def _replace(self, request_id: RequestId, lease: Lease | None) -> None:
        had = self._of(request_id)
        assert lease is None or had, "a lease out of nothing"
        self.leases = [other for other in self.leases if other not in had]
        if lease is not None:
            self.leases.append(lease)


TestLedgerAgainstTwin: Any = LedgerAgainstTwin.TestCase
TestLedgerAgainstTwin.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
