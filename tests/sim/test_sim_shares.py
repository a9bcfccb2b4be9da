"""Who is faster gets proportionally more, and nobody idles beside a queue."""

from collections import Counter
from random import Random
from statistics import fmean

import pytest
from msgspec.structs import replace

from pointsman.sim import Scenario
from pointsman.sim.scenario import Clients, Knowledge, NodeGroup
from pointsman.traffic.outcome import Outcome, RequestRecord
from tests.support.profiles import SMALL
from tests.support.simulation import ask, run

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


def test_engines_of_three_kinds_that_are_full_get_what_they_can_do() -> None:
    kinds = (
        NodeGroup(profile=WIDE, slowdown=0.4, sequences_max=4, tells_running_max=True),
        NodeGroup(profile=WIDE, sequences_max=8, kv_tokens=64_000),
        NodeGroup(profile=WIDE, sequences_max=8, kv_tokens=63_000, slowdown=1.2),
    )
    records = full(36, *kinds)
    counts = Counter(record.node for record in records)
    shares = [counts[f"node-{n}"] / counts.total() for n in range(len(kinds))]
    able = [answers_per_s(kind) for kind in kinds]
    assert shares == pytest.approx([each / sum(able) for each in able], abs=0.07)


def answers_per_s(kind: NodeGroup) -> float:
    """Of one engine alone, kept full."""
    return 12 / fmean(record.e2e_s for record in full(12, kind))


def full(clients: int, *fleet: NodeGroup) -> list[RequestRecord]:
    """What clients get, once speeds are known, that ask again as soon as they have an answer."""
    scenario = Scenario(name="full", fleet=fleet, clients=Clients(closed_loop=True))
    count = 2 * LEARNING
    asked = [ask(0.0, 64, 16, session=f"s{n % clients}", turn=n // clients) for n in range(count)]
    return list(run(scenario, asked).records[LEARNING:])


WIDE = replace(SMALL, kv_blocks=4_096, max_num_seqs=64)


def served(*, streams: bool, tells: bool) -> tuple[float, list[float]]:
    """The share of a slow engine that runs two at once, and how long each answer took, where 36
    clients ask again and again."""
    few = NodeGroup(profile=WIDE, slowdown=3.0, sequences_max=2, tells_running_max=tells)
    scenario = Scenario(
        name="few slots",
        fleet=(few, NodeGroup(count=2, profile=WIDE)),
        knowledge=Knowledge(kv_blocks=False),
        clients=Clients(closed_loop=True, streams=streams),
    )
    requests = [ask(0.0, 64, 16, session=f"s{n % 36}", turn=n // 36) for n in range(720)]
    records = run(scenario, requests).records
    share = sum(record.node == "node-0" for record in records) / 720
    return share, [record.e2e_s for record in records]


def longest_s(took_s: list[float]) -> float:
    """All but one in a hundred are shorter."""
    return sorted(took_s)[int(0.99 * len(took_s))]


def test_what_waits_inside_an_engine_that_tells_what_it_runs_hides_nothing() -> None:
    """Of answers that are not streamed no first token tells how many wait there. They take longer
    to learn from, and until then some wait longer."""
    share, took_s = served(streams=False, tells=True)
    seen_share, seen_s = served(streams=True, tells=True)
    assert share == pytest.approx(seen_share, abs=0.01)
    assert longest_s(took_s[LEARNING:]) == pytest.approx(longest_s(seen_s[LEARNING:]), rel=0.1)
    _, untold_s = served(streams=False, tells=False)
    assert longest_s(untold_s) > 5 * longest_s(took_s)
