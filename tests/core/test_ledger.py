"""The KV-block ledger: what is leased is what is held, whatever happens in between."""

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman.core.ids import BlockHash, NodeId, RequestId
from pointsman.core.ledger import Ledger
from pointsman.core.pins import segments
from pointsman.core.placement import NO_SEGMENTS, Footprint, Segments

A, B = NodeId(1), NodeId(2)
ONE, TWO = RequestId("one"), RequestId("two")


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.set_capacity(A, 100)
    return ledger


def test_a_lease_is_reserved_committed_and_released_once(ledger: Ledger) -> None:
    assert ledger.reserve(ONE, A, blocks(30)) == 30
    account = ledger.account(A)
    assert (account.free, account.leased, account.reserved, account.leases) == (70, 30, 30, 1)
    ledger.commit(ONE)
    assert (account.free, account.leased, account.reserved, account.leases) == (70, 30, 0, 1)
    assert ledger.release(ONE) == 30
    assert ledger.release(ONE) == 0
    assert (account.free, account.leased, account.reserved, account.leases) == (100, 0, 0, 0)


def test_what_ends_before_its_first_token_is_reserved_no_more(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, blocks(30))
    ledger.reserve(TWO, A, blocks(7))
    ledger.release(ONE)
    assert ledger.account(A).reserved == 7


def test_a_second_lease_of_a_request_is_a_programmers_error(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, blocks(1))
    with pytest.raises(AssertionError):
        ledger.reserve(ONE, B, blocks(1))
    ledger.release(ONE)
    assert ledger.reserve(ONE, B, blocks(1)) == 1


def test_a_node_of_unknown_capacity_has_room(ledger: Ledger) -> None:
    ledger.reserve(ONE, B, blocks(10**9))
    assert ledger.account(B).fits(10**9)
    assert ledger.account(B).free is None
    assert ledger.account(B).leased == 10**9


def test_an_oversized_request_fits_an_idle_node_and_takes_all_of_it(ledger: Ledger) -> None:
    assert ledger.account(A).fits(5_000)
    assert ledger.reserve(ONE, A, blocks(5_000)) == 100
    assert not ledger.account(A).fits(1)
    assert ledger.account(A).free == 0


def test_a_node_with_leases_has_room_for_what_is_free(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, blocks(60))
    assert ledger.account(A).fits(40)
    assert not ledger.account(A).fits(41)


def test_late_messages_about_a_lease_that_is_gone_change_nothing(ledger: Ledger) -> None:
    ledger.commit(ONE)
    assert ledger.release(ONE) == 0
    ledger.forget(B)
    ledger.check()
    assert len(ledger) == 0


def test_a_commit_may_come_twice(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, blocks(1))
    ledger.reserve(TWO, A, blocks(7))
    for _ in range(2):
        ledger.commit(ONE)
        assert ledger.account(A).reserved == 7


def test_the_leases_of_a_node_that_died_are_void(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, blocks(30))
    ledger.reserve(TWO, B, blocks(7))
    ledger.forget(A)
    assert ledger.release(ONE) == 0, "a late release finds nothing"
    assert (ledger.account(A).leased, ledger.account(A).reserved, ledger.account(A).free) == (
        0,
        0,
        None,
    )
    assert (len(ledger), ledger.account(B).leased, ledger.account(B).reserved) == (1, 7, 7)


def test_capacity_may_shrink_below_what_is_leased(ledger: Ledger) -> None:
    ledger.reserve(ONE, A, blocks(80))
    ledger.set_capacity(A, 50)
    assert (ledger.account(A).free, ledger.account(A).fits(1), ledger.account(A).leased) == (
        0,
        False,
        80,
    )
    ledger.check()


@pytest.fixture
def shared() -> Footprint:
    """A prompt of 20 blocks, and 5 for what comes after it."""
    return Footprint(25, segments(CHAIN, 1))


CHAIN = [BlockHash(n) for n in range(1, 21)]


def test_what_two_hold_together_is_leased_once(ledger: Ledger, shared: Footprint) -> None:
    assert ledger.reserve(ONE, A, shared) == 25
    assert ledger.account(A).pins.shared(shared.segments) == 20
    assert ledger.reserve(TWO, A, shared) == 5
    assert (ledger.account(A).leased, ledger.account(A).reserved) == (30, 30)
    ledger.commit(ONE)
    assert ledger.account(A).reserved == 5, "what is shared, by who took it"
    ledger.check()


def test_a_prefix_is_leased_until_the_last_of_its_holders_ends(
    ledger: Ledger, shared: Footprint
) -> None:
    ledger.reserve(ONE, A, shared)
    ledger.reserve(TWO, A, shared)
    assert ledger.release(ONE) == 5, "the other one holds the prefix"
    assert ledger.account(A).leased == 25
    assert ledger.release(TWO) == 25
    assert ledger.account(A).pins.shared(shared.segments) == 0


def test_a_node_that_died_shares_nothing_with_its_successor(
    ledger: Ledger, shared: Footprint
) -> None:
    ledger.reserve(ONE, A, shared)
    ledger.forget(A)
    assert ledger.account(A).pins.shared(shared.segments) == ledger.account(A).leased == 0
    assert ledger.account(B).pins.shared(shared.segments) == 0


def test_a_prompt_that_is_too_long_for_a_node_shares_nothing(
    ledger: Ledger, shared: Footprint
) -> None:
    ledger.set_capacity(A, 10)
    assert ledger.reserve(ONE, A, shared) == 10
    assert ledger.account(A).pins.shared(shared.segments) == 0
    assert ledger.release(ONE) == 10


def blocks(count: int) -> Footprint:
    """Of a request that shares nothing."""
    return Footprint(count, NO_SEGMENTS)


NODES = st.sampled_from([NodeId(n) for n in range(4)])
REQUESTS = st.sampled_from([RequestId(f"r{n}") for n in range(12)])
PROMPTS = st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 30))
"""Three families that part from themselves at some depth: family, depth, length."""


def chain(family: int, depth: int, length: int) -> list[BlockHash]:
    """Equal prefixes have equal hashes, and only these."""
    shared = [BlockHash(1_000 * family + n) for n in range(min(depth, length))]
    own = [BlockHash(100_000 + 10_000 * family + 100 * depth + n) for n in range(length)]
    return shared + own[len(shared) :]


class Held(NamedTuple):
    """A lease, as the twin keeps it."""

    node_id: NodeId
    own_blocks: int
    segments: Segments
    reserved: int


class LedgerAgainstTwin(RuleBasedStateMachine):
    """Requests come, stream, are cancelled twice; nodes die and return; messages are late.

    The twin is a list of leases and a dict of capacities; every question is a scan.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.leases: dict[RequestId, Held] = {}
        self.capacities: dict[NodeId, int | None] = {}

    @rule(node_id=NODES, count=st.none() | st.integers(0, 50))
    def set_capacity(self, node_id: NodeId, count: int | None) -> None:
        self.ledger.set_capacity(node_id, count)
        self.capacities[node_id] = count

    @rule(request_id=REQUESTS, node_id=NODES, own=st.integers(0, 80), prompt=PROMPTS)
    def place(
        self, request_id: RequestId, node_id: NodeId, own: int, prompt: tuple[int, int, int]
    ) -> None:
        if request_id in self.leases:
            return
        of = segments(chain(*prompt), 1)
        before, shared = self.held(node_id), self.ledger.account(node_id).pins.shared(of)
        taken = self.ledger.reserve(request_id, node_id, Footprint(own + of.blocks, of))
        capacity = self.capacities.setdefault(node_id, None)
        if capacity is not None and own + of.blocks > capacity:
            own, of, shared = capacity, NO_SEGMENTS, 0
        self.leases[request_id] = Held(node_id, own, of, taken)
        assert taken == own + of.blocks - shared == self.held(node_id) - before

    @rule(request_id=REQUESTS)
    def first_token(self, request_id: RequestId) -> None:
        self.ledger.commit(request_id)
        if request_id in self.leases:
            self.leases[request_id] = self.leases[request_id]._replace(reserved=0)

    @rule(request_id=REQUESTS)
    def end_or_cancel(self, request_id: RequestId) -> None:
        lease = self.leases.get(request_id)
        alone = self.ledger.held_alone(request_id)
        before = 0 if lease is None else self.held(lease.node_id)
        freed = self.ledger.release(request_id)
        self.leases.pop(request_id, None)
        assert freed == alone
        assert freed == (0 if lease is None else before - self.held(lease.node_id)) >= 0

    @rule(node_id=NODES)
    def node_dies(self, node_id: NodeId) -> None:
        self.ledger.forget(node_id)
        self.leases = {r: lease for r, lease in self.leases.items() if lease.node_id != node_id}
        self.capacities.pop(node_id, None)

    @invariant()
    def leases_are_what_is_held(self) -> None:
        self.ledger.check()
        assert len(self.ledger) == len(self.leases)
        for node_id in map(NodeId, range(4)):
            held, capacity = self.held(node_id), self.capacities.get(node_id)
            free = None if capacity is None else max(0, capacity - held)
            assert self.ledger.account(node_id).leased == held
            reserved = sum(lease.reserved for lease in self._here(node_id))
            assert self.ledger.account(node_id).reserved == reserved
            assert self.ledger.account(node_id).leases == len(self._here(node_id))
            assert self.ledger.account(node_id).free == free
            fits = free is None or held == 0 or free >= 17
            assert self.ledger.account(node_id).fits(17) == fits

    def held(self, node_id: NodeId) -> int:
        """What each holds for itself, and each segment that anybody holds once."""
        here = self._here(node_id)
        together: dict[BlockHash, int] = {}
        for lease in here:
            ends = [0, *lease.segments.ends]
            widths = [end - begin for begin, end in pairwise(ends)]
            together |= dict(zip(lease.segments.marks, widths, strict=True))
        return sum(lease.own_blocks for lease in here) + sum(together.values())

    def _here(self, node_id: NodeId) -> list[Held]:
        return [lease for lease in self.leases.values() if lease.node_id == node_id]


TestLedgerAgainstTwin: Any = LedgerAgainstTwin.TestCase
TestLedgerAgainstTwin.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
