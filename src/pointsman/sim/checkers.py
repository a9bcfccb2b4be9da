"""What must hold in every simulation, whatever the policy and the faults. An AssertionError is a
bug of the core's or the simulator's."""

from collections.abc import Sequence

from pointsman.core.limits import QUEUE_TIMEOUT_S
from pointsman.sim.clients import Crowd
from pointsman.sim.gateway import TICK_S, SimulatedGateway
from pointsman.sim.node import SimulatedNode


def check_running(gateways: Sequence[SimulatedGateway], nodes: Sequence[SimulatedNode]) -> None:
    """At any moment: blocks are conserved on every engine, every scheduler's ledger equals the
    sum of its leases and its index only credits nodes that are there."""
    for node in nodes:
        if node.engine is not None:
            node.engine.model.check()
    for gateway in gateways:
        gateway.scheduler.check()


def check_over(
    gateways: Sequence[SimulatedGateway], nodes: Sequence[SimulatedNode], crowd: Crowd, now_s: float
) -> None:
    """At the end: each request ended exactly once, nothing is booked any more, nobody was held
    beyond the deadline."""
    check_running(gateways, nodes)
    assert crowd.done == len(crowd.records), f"{crowd.done} of {len(crowd.records)} ended"
    assert all(record is not None for record in crowd.records), "a request has no record"
    for gateway in gateways:
        scheduler = gateway.scheduler
        assert gateway.unsettled == 0, f"{gateway.unsettled} requests are open"
        assert scheduler.in_flight == scheduler.held == 0, (scheduler.in_flight, scheduler.held)
        for view in scheduler.nodes(now_s):
            assert view.inflight == view.kv_blocks_leased == 0, view
        assert gateway.held_longest_s <= QUEUE_TIMEOUT_S + TICK_S, gateway.held_longest_s
