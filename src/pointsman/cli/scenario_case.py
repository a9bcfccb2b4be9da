"""One scenario of a file: a cluster, its traffic, its policies, and what it is to show."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec.structs import asdict, replace

from pointsman.cli.config import Config
from pointsman.report.replay.expectation import Expectation
from pointsman.sim.scenario import Clients, Gateways, Knowledge, Network, Scenario
from pointsman.traffic.mix import Part
from pointsman.traffic.source import Source, Window

Seed = Annotated[int, msgspec.Meta(ge=0)]


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy under a name and a configuration of its own, which then counts instead of the
    scenario's."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    policy: str
    config: Config | None = None


class Case(Scenario, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A scenario with its traffic, and what it is to show.

    `config` is as in a configuration file: what of it the scheduler goes by. `windows` are times
    to tell apart; where there are faults and no windows, they are before, during and after.
    No `policies` and no `seeds` mean the command's.
    """

    traffic: Source | tuple[Part, ...]
    config: Config = Config()
    windows: dict[str, Window] = msgspec.field(default_factory=dict)
    expect: tuple[Expectation, ...] = ()
    policies: tuple[str | Variant, ...] = ()
    seeds: tuple[Seed, ...] = ()

    def under(self, name: str, circumstance: "Circumstance") -> "Case":
        """The same under this circumstance, which its name tells."""
        differs = asdict(circumstance).items()
        given = {field: value for field, value in differs if value is not None}
        return replace(self, name=f"{self.name}: {name}", **given)

    @property
    def scenario(self) -> Scenario:
        """Without the traffic."""
        fields = Scenario.__struct_fields__
        return Scenario(**{field: getattr(self, field) for field in fields})

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The policies, each with the configuration that it runs under."""
        named = (Variant(name=p, policy=p) if isinstance(p, str) else p for p in self.policies)
        return tuple({each.name: each for each in named}.values())

    @property
    def spans_s(self) -> dict[str, tuple[float, float]]:
        """The windows, given or by the faults."""
        if self.windows:
            return {name: (span.start_s, span.end_s) for name, span in self.windows.items()}
        troubled_s = self.troubled_s
        if troubled_s is None:
            return {}
        begin_s, end_s = troubled_s
        return {"before": (0.0, begin_s), "during": troubled_s, "after": (end_s, float("inf"))}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The traffic, part by part."""
        return (self.traffic,) if isinstance(self.traffic, Source) else self.traffic

    def with_sources(self, changes: Callable[[Source], dict[str, Any]]) -> "Case":
        """The case with these fields of each of its sources changed."""
        if isinstance(self.traffic, Source):
            return replace(self, traffic=replace(self.traffic, **changes(self.traffic)))
        parts = tuple(replace(part, **changes(part)) for part in self.traffic)
        return replace(self, traffic=parts)


class Circumstance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What scenarios are tried under: whatever is given counts instead of a scenario's own."""

    gateways: Gateways | None = None
    knowledge: Knowledge | None = None
    network: Network | None = None
    clients: Clients | None = None
