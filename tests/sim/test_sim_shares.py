"""Who is faster gets proportionally more, and nobody idles beside a queue."""

from collections import Counter
from random import Random

import pytest

from pointsman.sim import Scenario
from pointsman.sim.scenario import NodeGroup
from pointsman.traffic.outcome import Outcome
from tests.support.simulation import SMALL, ask, run

SLOWDOWNS = (1.0, 2.0, 4.0)
LEARNING = 300


def shares(policy: str, rate_rps: float) -> list[float]:
    """Of the requests that were answered once speeds are known, by node, the fastest first."""
    rng, at_s, requests = Random(1), 0.0, []
    for _ in range(3 * LEARNING):
        at_s += rng.expovariate(rate_rps)
        requests.append(ask(at_s, 128, 64))
    fleet = tuple(NodeGroup(profile=SMALL, slowdown=slowdown) for slowdown in SLOWDOWNS)
    records = run(Scenario(name="mixed", fleet=fleet), requests, policy=policy).records[LEARNING:]
    counts = Counter(record.node for record in records if record.outcome is Outcome.OK)
    return [counts[f"node-{n}"] / counts.total() for n in range(len(SLOWDOWNS))]


@pytest.mark.parametrize("rate_rps", [8.0, 12.0])
def test_a_full_fleet_is_used_by_its_speeds(rate_rps: float) -> None:
    """A slow engine must not idle while many wait for the fast one."""
    assert shares("marginal_cost", rate_rps) == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.05)


def test_what_the_fastest_can_serve_it_serves() -> None:
    fast, middle, slow = shares("marginal_cost", 4.0)
    assert fast > 0.7 > middle > slow
