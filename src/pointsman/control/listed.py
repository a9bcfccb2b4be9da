"""What is configured as one engine: an address, and the nodes that are behind it.

Mostly that is one node. A server of several data-parallel ranks has a scheduler and a cache for
each, so each is a node, once they are found; the engine's name then stands for all of them.
"""

from collections.abc import Container, Sequence
from itertools import count
from typing import Literal

import msgspec

from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName
from pointsman.engines.adapters.address import rank_of

Ranks = Literal["auto", "off"]
"""Whether data-parallel ranks are looked for."""


FORGET_S = 600.0
"""For an engine that an agent has added, to be told of or to answer again."""


class ListedEngine(msgspec.Struct):
    """`spec` is as configured; `divided_into` says how many ranks have been found, 0 for none."""

    spec: NodeSpec
    kv_events: str = "auto"
    ranks: Ranks = "auto"
    divided_into: int = 0

    @property
    def may_be_divided(self) -> bool:
        """Not where one rank is named, or one place of KV events, which is one rank's."""
        finds_events = self.kv_events in ("auto", "off")
        return self.ranks == "auto" and finds_events and rank_of(self.spec.url) is None

    @property
    def nodes(self) -> Sequence[NodeSpec]:
        """One, or one for each rank."""
        if not self.divided_into:
            return (self.spec,)
        return [self._rank(number) for number in range(self.divided_into)]

    def is_at(self, other: "ListedEngine") -> bool:
        """Whether both are one address, asked for the same."""
        one, another = (
            (listed.spec.url, listed.kv_events, listed.ranks) for listed in (self, other)
        )
        return one == another

    def count_ranks(self, urls: Container[str]) -> int:
        """How many of its ranks are among them, from the first one on."""
        return next(number for number in count() if self._rank(number).url not in urls)

    def _rank(self, number: int) -> NodeSpec:
        name = NodeName(f"{self.spec.name}-rank-{number}")
        url = f"{self.spec.server}#{number}"
        return msgspec.structs.replace(self.spec, name=name, url=url)
