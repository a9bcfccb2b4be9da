"""What a scenario is to show: bars on measures, and whether runs keep them.

    kept = at_least * reference <= value <= at_most * reference

`reference` is 1, or another measure (`times`). Both are means over the seeds. Of what nobody
knows, no bar is kept.
"""

from collections.abc import Iterator, Sequence

import msgspec

from pointsman.report.replay.measure import Measure
from pointsman.report.replay.study import ScenarioReport
from pointsman.report.replay.subset import Subset
from pointsman.report.replay.verdict import Verdict
from pointsman.report.rows import TIMES


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a bar is relative to. What is not given is that of the expectation."""

    scenario: str | None = None
    policy: str | None = None
    metric: str | None = None
    of: Subset | None = None


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bar on one number. `policy` None is the scenario's baseline."""

    metric: str
    of: Subset = Subset()
    policy: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    times: Reference | None = None

    @property
    def measure(self) -> Measure:
        return Measure(metric=self.metric, of=self.of)

    @property
    def reference(self) -> Measure | None:
        """What `times` measures."""
        if self.times is None:
            return None
        of = self.of if self.times.of is None else self.times.of
        return Measure(metric=self.times.metric or self.metric, of=of)


def measures_of(
    expectations: Sequence[tuple[str, Expectation]], scenario: str
) -> tuple[Measure, ...]:
    """What has to be measured in a scenario, for its own bars and as others' reference.
    `expectations` are of all scenarios, each with the name of its own."""
    found: list[Measure] = []
    for own, expectation in expectations:
        if own == scenario:
            found.append(expectation.measure)
        times, reference = expectation.times, expectation.reference
        if times is not None and reference is not None and (times.scenario or own) == scenario:
            found.append(reference)
    return tuple({measure.key: measure for measure in found}.values())


def judge(
    expectations: Sequence[tuple[str, Expectation]], reports: Sequence[ScenarioReport]
) -> tuple[Verdict, ...]:
    """One verdict an expectation, in their order; none for a policy that was not run."""
    named = {report.name: report for report in reports}
    return tuple(
        verdict
        for scenario, expectation in expectations
        for verdict in _verdict(expectation, named[scenario], named)
    )


def _verdict(
    expectation: Expectation, report: ScenarioReport, named: dict[str, ScenarioReport]
) -> Iterator[Verdict]:
    policy = expectation.policy or report.baseline
    if policy not in report.policies:
        return
    value = _mean(report, policy, expectation.measure)
    reference: float | None = None
    against, ratio = "", value
    times, base = expectation.times, expectation.reference
    if times is not None and base is not None:
        other = named[times.scenario or report.name]
        other_policy = times.policy or (policy if policy in other.policies else other.baseline)
        if other_policy not in other.policies:
            return
        reference = _mean(other, other_policy, base)
        ratio = value / reference if value is not None and reference else None
        against = ", ".join(
            name
            for name, differs in (
                (_differing(expectation.measure, base), base.key != expectation.measure.key),
                (other.name, other.name != report.name),
                (other_policy, other_policy != policy),
            )
            if differs
        )
    yield Verdict(
        scenario=report.name,
        policy=policy,
        measure=expectation.measure.key,
        bar=_bar(expectation),
        kept=_kept(expectation, value, reference),
        value=value,
        reference=reference,
        ratio=ratio if times is not None else None,
        against=against,
        policy_named=expectation.policy is not None,
    )


def _differing(measure: Measure, base: Measure) -> str:
    """What to call `base` beside `measure`: by its subset where only that differs."""
    return str(base.of) or "all" if base.metric == measure.metric else base.key


def _mean(report: ScenarioReport, policy: str, measure: Measure) -> float | None:
    found = report.over_seeds(policy, lambda run: run.measured.get(measure.key))
    return None if found is None else found.mean


def _kept(expectation: Expectation, value: float | None, reference: float | None) -> bool:
    if value is None or (expectation.times is not None and reference is None):
        return False
    base = 1.0 if reference is None else reference
    at_least, at_most = expectation.at_least, expectation.at_most
    high_enough = at_least is None or value >= at_least * base
    return high_enough and (at_most is None or value <= at_most * base)


def _bar(expectation: Expectation) -> str:
    parts = []
    if expectation.at_least is not None:
        parts.append(f"≥ {expectation.at_least:g}")
    if expectation.at_most is not None:
        parts.append(f"≤ {expectation.at_most:g}")
    return " and ".join(parts) + ("" if expectation.times is None else f" {TIMES}")
