"""What must hold in every simulation, whatever the policy and the faults. An AssertionError is a
bug of the core's or the simulator's."""

from collections.abc import Mapping, Sequence
from typing import assert_never

from pointsman.core.events import IndexTrust
from pointsman.core.ids import NodeName
from pointsman.core.limits import TICK_S_MAX
from pointsman.core.views import NodeView
from pointsman.sim.clients import Population
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import SimulatedNode
from pointsman.sim.watch import Watch


def check_running(gateways: Sequence[SimulatedGateway], nodes: Sequence[SimulatedNode]) -> None:
    """At any moment: blocks are conserved on every engine, every scheduler's ledger equals the
    sum of its leases and its index only credits nodes that are there."""
    for node in nodes:
        if node.engine is not None:
            node.engine.model.check()
    for gateway in gateways:
        gateway.scheduler.check()


def check_over(
    gateways: Sequence[SimulatedGateway],
    nodes: Sequence[SimulatedNode],
    watches: Mapping[NodeName, Sequence[Watch]],
    population: Population,
    now_s: float,
) -> None:
    """At the end: each request ended exactly once, nothing is booked any more, nobody was held
    beyond the deadline, and no index credits a node with more than its incarnation has."""
    check_running(gateways, nodes)
    assert population.done == len(population.records), (
        f"{population.done} of {len(population.records)} ended"
    )
    assert all(record is not None for record in population.records), "a request has no record"
    for gateway in gateways:
        scheduler = gateway.scheduler
        assert gateway.unsettled == 0, f"{gateway.unsettled} requests are open"
        assert scheduler.in_flight == scheduler.held == 0, (scheduler.in_flight, scheduler.held)
        for view in scheduler.nodes(now_s):
            assert view.inflight == view.kv_blocks_leased == 0, view
        assert gateway.held_longest_s <= gateway.hold_s + TICK_S_MAX, gateway.held_longest_s
    for place, gateway in enumerate(gateways):
        views = {view.name: view for view in gateway.scheduler.nodes(now_s)}
        for node in nodes:
            if node.name in views:
                _check_index(views[node.name], watches[node.name][place], node)


def _check_index(view: NodeView, watch: Watch, node: SimulatedNode) -> None:
    """An index fed by events is the engine's cache once everything was told; one of our own
    placements is no larger than the engine."""
    match view.index_trust:
        case IndexTrust.HISTORY | IndexTrust.DISTRUSTED:
            assert view.kv_blocks is None or view.index_blocks <= view.kv_blocks, view
        case IndexTrust.EXACT:
            if watch.in_sync and node.engine is not None:
                cached = len(node.engine.model.pool.cached)
                assert view.index_blocks == cached, f"{cached} blocks are cached: {view}"
        case IndexTrust.DEGRADED:
            pass  # what was lost is not known
        case _:
            assert_never(view.index_trust)
