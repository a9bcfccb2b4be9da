"""Small clusters and streams for tests of the simulator."""

from collections.abc import Sequence

import msgspec

from pointsman.core.options import SchedulerOptions
from pointsman.sim import Scenario, simulate
from pointsman.sim.scenario import Network, NodeGroup
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.request import TrafficRequest
from tests.support.profiles import SMALL

_DEFAULTS = SchedulerOptions()

NO_DELAYS = Network(client_s=0.0, engine_s=0.0, dispatch_s=0.0)


def small(count: int = 2, **changes: object) -> Scenario:
    """A scenario of `count` small nodes."""
    fleet = (NodeGroup(count=count, profile=SMALL),)
    return msgspec.structs.replace(Scenario(name="small", fleet=fleet), **changes)


def ask(
    at_s: float, prompt: int, output: int, *, prefix: int = 0, session: str = "", **rest: object
) -> TrafficRequest:
    """A request whose blocks of 16 tokens are those of `prefix`: equal ones share what both
    have. `prefix` 0 shares nothing."""
    blocks = range(prefix * 1_000, prefix * 1_000 + prompt // 16) if prefix else ()
    request = TrafficRequest(
        at_s=at_s,
        input_tokens=prompt,
        output_tokens=output,
        block_ids=tuple(blocks),
        block_tokens=16,
        session=session,
    )
    return msgspec.structs.replace(request, **rest)


def in_order(requests: Sequence[TrafficRequest]) -> list[TrafficRequest]:
    """Sorted by arrival."""
    return sorted(requests, key=lambda request: request.at_s)


def run(
    scenario: Scenario,
    requests: Sequence[TrafficRequest],
    *,
    policy: str = "marginal_cost",
    seed: int = 0,
    options: SchedulerOptions = _DEFAULTS,
) -> ReplayedRun:
    """Simulate; a run that breaks an invariant raises."""
    replayed = simulate(scenario, requests, policy=policy, seed=seed, options=options)
    assert len(replayed.records) == len(requests)
    assert [record.index for record in replayed.records] == list(range(len(requests)))
    return replayed
