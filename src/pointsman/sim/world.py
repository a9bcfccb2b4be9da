"""All of a simulation put together and run."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random

from msgspec.structs import replace

from pointsman.core.ids import NodeName
from pointsman.core.options import SchedulerOptions
from pointsman.sim.checkers import check_over, check_running
from pointsman.sim.clients import Population
from pointsman.sim.clock import Clock
from pointsman.sim.faults import Faults
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import SimulatedNode, profile_of
from pointsman.sim.prior import teach
from pointsman.sim.prompts import Prompts, block_tokens_of
from pointsman.sim.sampler import Sampler
from pointsman.sim.scenario import Scenario
from pointsman.sim.watch import Watch
from pointsman.traffic.replayed import ReplayedRun
from pointsman.traffic.request import TrafficRequest

SAMPLES = 200
PROGRESS = 100
"""How often progress is told while requests arrive."""

CHECKS = 3
"""How often the invariants are checked while requests arrive: each time goes through all that is
there. After that it gets twice as seldom each time, or a run with one request in an hour would be
nothing but checks."""

STALLED_S = 4 * 3_600.0
"""Virtual time in which something must end where nothing more is sent: the gateway gives any
request an hour, so what is longer is a deadlock."""


_DEFAULTS = SchedulerOptions()


def simulate(
    scenario: Scenario,
    requests: Sequence[TrafficRequest],
    *,
    policy: str,
    seed: int = 0,
    options: SchedulerOptions = _DEFAULTS,
    stopwatch: Callable[[], float] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> ReplayedRun:
    """Replay `requests`, in order of arrival, under `policy`; same seed, same run. Of `options`
    all but policy and seed counts.

    `stopwatch` is a clock of real time: with it, the run tells how long it and its decisions
    took. `on_progress` gets the share of requests that are over. Raises ValueError for a
    scenario that cannot be, AssertionError when an invariant breaks.
    """
    if not requests:
        raise ValueError("there is no request to replay. Remedy: give a trace with at least one.")
    began_s = 0.0 if stopwatch is None else stopwatch()
    options = replace(options, policy=policy)
    world = _World(scenario, requests, options=options, seed=seed, stopwatch=stopwatch)
    world.run(on_progress)
    run = world.replayed()
    return run if stopwatch is None else replace(run, wall_s=stopwatch() - began_s)


class _World:
    def __init__(
        self,
        scenario: Scenario,
        requests: Sequence[TrafficRequest],
        *,
        options: SchedulerOptions,
        seed: int,
        stopwatch: Callable[[], float] | None,
    ) -> None:
        self._scenario = scenario
        self._policy = options.policy
        self._seed = seed
        self._clock = Clock()
        self._span_s = max(requests[-1].at_s, 1.0)
        self._last_s = 0.0
        block_tokens = block_tokens_of(requests)
        self._nodes = _fleet(self._clock, scenario, block_tokens)
        named = {node.name: node for node in self._nodes}
        self._gateways = [
            SimulatedGateway(
                self._clock,
                named,
                replace(options, seed=seed + number * _SEEDS_APART),
                network=scenario.network,
                knowledge=scenario.knowledge,
                stopwatch=stopwatch,
            )
            for number in range(scenario.gateways)
        ]
        self._watches = self._watch(Random(f"watch {seed}"))
        Faults(self._clock, named, self._watches).schedule(scenario.faults)
        self._sampler = Sampler(self._clock, self._nodes, self._gateways, self._span_s / SAMPLES)
        self._population = Population(
            self._clock,
            self._gateways,
            requests,
            Prompts(requests, [node.profile.block_size for node in self._nodes]),
            behaviour=scenario.clients,
            by_part=scenario.clients_by_part,
            network=scenario.network,
            slo=scenario.slo,
            rng=Random(f"clients {seed}"),
            on_done=self._over,
        )

    def run(self, on_progress: Callable[[float], None] | None) -> None:
        self._clock.at(0.0, self._teach)
        self._clock.at(0.0, self._sampler.begin)
        self._clock.at(0.0, self._population.begin)
        self._clock.at(0.0, self._check, self._span_s / CHECKS)
        if on_progress is not None:
            self._clock.at(0.0, self._progress, on_progress)
        self._clock.at(STALLED_S, self._stop_if_stalled)
        self._clock.run()
        check_over(self._gateways, self._nodes, self._watches, self._population, self._clock.now_s)

    def replayed(self) -> ReplayedRun:
        return ReplayedRun(
            scenario=self._scenario.name,
            policy=self._policy,
            seed=self._seed,
            duration_s=self._last_s,
            records=tuple(record for record in self._population.records if record is not None),
            series=self._sampler.series(),
            attempts=self._population.attempts,
            held=sum(gateway.scheduler.stats.held for gateway in self._gateways),
            preemptions=sum(node.preemptions for node in self._nodes),
            decision_s=tuple(s for gateway in self._gateways for s in gateway.decision_s),
        )

    def _watch(self, rng: Random) -> dict[NodeName, list[Watch]]:
        """Every gateway watches every node, and knows all of them before the first request."""
        watches: dict[NodeName, list[Watch]] = {node.name: [] for node in self._nodes}
        for gateway in self._gateways:
            of_gateway = {}
            for node in self._nodes:
                watch = Watch(self._clock, gateway, node, self._scenario.knowledge, rng)
                watches[node.name].append(watch)
                of_gateway[node.name] = watch
                self._clock.at(node.group.startup_s, watch.join)
            gateway.on_trouble = partial(_probe_soon, of_gateway)
        return watches

    def _teach(self) -> None:
        """The first nodes are known: let the schedulers know their speeds, too."""
        if (prior := self._scenario.knowledge.prior) is not None:
            for gateway in self._gateways:
                teach(gateway, self._nodes, self._scenario.network, prior)

    def _over(self) -> None:
        """Every request has ended: let what is on its way arrive, then stop."""
        self._last_s = self._clock.now_s + self._scenario.network.client_s
        lag_s = self._scenario.knowledge.event_lag_s + self._scenario.network.engine_s
        self._clock.after(lag_s + _SETTLE_S, self._clock.stop)

    def _stop_if_stalled(self) -> None:
        due_s = self._population.busy_until_s + STALLED_S
        if due_s > self._clock.now_s:
            self._clock.at(due_s, self._stop_if_stalled)
        else:
            self._clock.stop()

    def _check(self, interval_s: float) -> None:
        check_running(self._gateways, self._nodes)
        self._clock.after(interval_s, self._check, max(interval_s, self._clock.now_s))

    def _progress(self, on_progress: Callable[[float], None]) -> None:
        on_progress(self._population.done / len(self._population.records))
        self._clock.after(self._span_s / PROGRESS, self._progress, on_progress)


_SETTLE_S = 1.0
_SEEDS_APART = 1_000_003  # gateways that draw the same lots would all send to the same node


def _probe_soon(watches: Mapping[NodeName, Watch], name: NodeName) -> None:
    watches[name].probe_soon()


def _fleet(clock: Clock, scenario: Scenario, block_tokens: int) -> list[SimulatedNode]:
    """All nodes in order of their groups; those that do not start later are up."""
    nodes: list[SimulatedNode] = []
    names = iter(scenario.node_names)
    for group in scenario.fleet:
        profile = profile_of(group, block_tokens)
        for name in islice(names, group.count):
            node = SimulatedNode(clock, name, group, profile)
            nodes.append(node)
            clock.at(group.startup_s, node.start)
    return nodes
