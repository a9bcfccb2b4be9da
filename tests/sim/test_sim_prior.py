"""Schedulers begin with speeds that were learned before, and mend what is wrong of them."""

from random import Random

import pytest

from pointsman.core.calibration import Speeds
from pointsman.core.options import SchedulerOptions
from pointsman.sim.clock import Clock
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import SimulatedNode, profile_of
from pointsman.sim.prior import teach
from pointsman.sim.scenario import Knowledge, Network, NodeGroup, Prior
from pointsman.sim.watch import Watch
from tests.support.profiles import SMALL
from tests.support.simulation import ask, run, small

NETWORK = Network(engine_s=0.001, dispatch_s=0.008)


def believed(prior: Prior, *groups: NodeGroup) -> list[Speeds]:
    """The speeds with which nodes of these groups begin."""
    clock, knowledge = Clock(), Knowledge(prior=prior)
    nodes = [
        SimulatedNode(clock, f"node-{place}", group, profile_of(group, 16))
        for place, group in enumerate(groups)
    ]
    named = {node.name: node for node in nodes}
    options = SchedulerOptions()
    gateway = SimulatedGateway(clock, named, options, network=NETWORK, knowledge=knowledge)
    for node in nodes:
        node.start()
        clock.at(0.0, Watch(clock, gateway, node, knowledge, Random(0)).join)
    clock.at(0.0, clock.stop)
    clock.run()
    teach(gateway, nodes, NETWORK, prior)
    views = gateway.scheduler.nodes(clock.now_s)
    assert all(view.calibrated for view in views)
    return [view.speeds for view in views]


PLAIN = NodeGroup(profile=SMALL)
AS_THEY_ARE = Speeds(
    dispatch_s=0.02,  # the way there and back, and a step
    prefill_s_per_token=1e-4,
    attention_s_per_token2=2e-8,
    step_s=0.01,
    sequence_s=1e-3,
    kv_token_s=1e-6,
)


def times(speeds: Speeds) -> tuple[float, float]:
    """Of a prompt of 2,000 tokens, and of a step of 8 sequences of as many."""
    prefill_s = speeds.dispatch_s + 2e3 * speeds.prefill_s_per_token
    step_s = speeds.step_s + 8 * speeds.sequence_s + 16e3 * speeds.kv_token_s
    return prefill_s + 2e6 * speeds.attention_s_per_token2, step_s


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 2), (0.5, 0.5), (2, 1), (1, 0.5)])
def test_speeds_are_taken_to_be_off_by_the_factors_given(prefill: float, decode: float) -> None:
    prefill_s, step_s = times(AS_THEY_ARE)
    prior = Prior(prefill=prefill, decode=decode)
    for speeds in believed(prior, PLAIN, PLAIN):
        assert times(speeds) == pytest.approx((prefill * prefill_s, decode * step_s), rel=0.02)


def test_of_nodes_that_are_not_named_the_truth_is_known() -> None:
    prior = Prior(prefill=2, decode=2, nodes=("node-1",))
    one, other, third = (times(s) for s in believed(prior, PLAIN, PLAIN, PLAIN))
    truth = times(AS_THEY_ARE)
    assert one == third == pytest.approx(truth, rel=0.1)
    assert other == pytest.approx((2 * truth[0], 2 * truth[1]), rel=0.02)


def test_a_slow_node_is_known_to_be_slow() -> None:
    slow = NodeGroup(profile=SMALL, slowdown=3.0)
    _, _, known = (times(speeds) for speeds in believed(Prior(), PLAIN, PLAIN, slow))
    assert known[1] == pytest.approx(3 * times(AS_THEY_ARE)[1], rel=0.02)


def test_answers_mend_what_is_wrong() -> None:
    """At first one of two equal nodes is taken for slow, and given little; later it is not."""
    requests = [ask(at_s / 2, 160, 20) for at_s in range(400)]
    prior = Prior(prefill=4, decode=4, nodes=("node-0",))
    records = run(small(2, knowledge=Knowledge(prior=prior)), requests).records
    first, last = (
        sum(record.node == "node-0" for record in part) for part in (records[:20], records[-100:])
    )
    assert first <= 6
    assert 35 <= last <= 65
