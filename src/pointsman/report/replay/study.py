"""Scenarios of runs, and how policies compare there.

Ratios are made seed by seed and then averaged, since both sides of one seed saw the same requests:
what the seed does to both cancels out.
"""

from collections.abc import Callable, Sequence

import msgspec

from pointsman.report.replay.numbers import RunNumbers
from pointsman.report.replay.spread import Estimate, estimate
from pointsman.report.replay.verdict import Verdict
from pointsman.traffic.request import TrafficSummary
from pointsman.traffic.slo import Slo

Value = Callable[[RunNumbers], float | None]

ORACLE = "oracle"
"""The name under which the pooled engine is shown: the same work on one engine as fast and as
large as all of them."""

TIED_WITHIN = 0.005
"""Means closer than this share one rank: no user sees the difference."""


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """Every policy under one seed, all with the same requests. `ideal_hit_ratio` is of one
    unbounded cache; None where no prefix is known."""

    seed: int
    traffic: TrafficSummary
    ideal_hit_ratio: float | None
    runs: tuple[RunNumbers, ...]
    oracle: RunNumbers | None = None


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was met at one speed, as the mean over seeds. Rates in requests per second."""

    speed: float
    rate_rps: float
    slo_attainment: float
    goodput_rps: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The highest speed found at which one policy keeps `target` of the requests within the
    objective; None where none was found. `tried` is in order of speed."""

    policy: str
    target: float
    best: SweepPoint | None
    tried: tuple[SweepPoint, ...]


class ScenarioReport(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario: every seed has the same policies in the same order. `windows` are times that
    are told apart, `troubled_s` is when something befalls it."""

    name: str
    trace: str
    nodes: int
    speed: float
    fleet: str
    slo: Slo
    baseline: str
    seeds: tuple[SeedResult, ...]
    notes: tuple[str, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    windows: dict[str, tuple[float, float]] = {}
    troubled_s: tuple[float, float] | None = None

    @property
    def policies(self) -> tuple[str, ...]:
        """In the order in which they were asked for."""
        return tuple(run.policy for run in self.seeds[0].runs)

    def runs(self, policy: str) -> tuple[RunNumbers, ...]:
        """One a seed; of the oracle too, where it was run."""
        if policy == ORACLE:
            return tuple(seed.oracle for seed in self.seeds if seed.oracle is not None)
        return tuple(run for seed in self.seeds for run in seed.runs if run.policy == policy)

    def over_seeds(self, policy: str, value: Value) -> Estimate | None:
        """One number of one policy, as a mean over the seeds."""
        return estimate(value(run) for run in self.runs(policy))

    def ratio(self, policy: str, other: str, value: Value) -> Estimate | None:
        """`policy` over `other`, seed by seed; None where there is nothing to divide by."""
        pairs = zip(self.runs(policy), self.runs(other), strict=False)
        return estimate(_ratio(value(run), value(base)) for run, base in pairs)

    def best(self, names: Sequence[str], value: Value, better: int) -> str | None:
        """Of `names` the one with the best mean; the first of equals, None if none has one."""
        found = [(name, each.mean) for name in names if (each := self.over_seeds(name, value))]
        if not found:
            return None
        return min(found, key=lambda item: -better * item[1])[0]

    def leaders(self, value: Value, better: int) -> tuple[str, ...]:
        """The policies that are as good as the best, within TIED_WITHIN; none where all are."""
        best = self.best(self.policies, value, better)
        if best is None or not better:
            return ()
        means = {
            name: each.mean for name in self.policies if (each := self.over_seeds(name, value))
        }
        allowed = TIED_WITHIN * abs(means[best])
        found = tuple(name for name, mean in means.items() if abs(mean - means[best]) <= allowed)
        return found if len(found) < len(self.policies) else ()

    def against_best_peer(self, policy: str, value: Value, better: int) -> Estimate | None:
        """The ratio to the best of the other policies; None where it is alone."""
        peers = [name for name in self.policies if name != policy]
        peer = self.best(peers, value, better)
        return None if peer is None else self.ratio(policy, peer, value)


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one replay ran."""

    scenarios: tuple[ScenarioReport, ...]
    verdicts: tuple[Verdict, ...] = ()

    @property
    def policies(self) -> tuple[str, ...]:
        """All that occur, in the order in which they do."""
        return tuple(dict.fromkeys(name for each in self.scenarios for name in each.policies))


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
