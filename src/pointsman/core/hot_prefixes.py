"""Prefixes that so many requests share that one node is not enough for them.

Each placement counts for the deepest boundary that any node held of its prompt: the system prompt
of requests that share nothing more, and for a further turn its own conversation, which nobody else
asks for. Counts fade, so that what is hot now is what counts.

A prefix with the share s of a model's requests needs s of its n nodes, and some slack to balance
them. While fewer hold it, computing it on one more node is an investment: it is paid by the one
request, and used by the k that will come there while it is hot. So of that work a share of
1 - 1/k is left out of the costs that are compared (`Row.shared_s`): the choice is then the
one that would be made if the node held the prefix already. When enough nodes hold it, or it
cools, nothing is left out, and engines evict it as anything else.
"""

from collections.abc import Iterator
from heapq import nlargest
from typing import Final, NamedTuple

from pointsman.core.faded import Faded, left
from pointsman.core.ids import BlockHash, ModelName
from pointsman.core.rules import HotPrefixRules

HOT_REQUESTS_MIN: Final = 4.0
"""Requests lately, for each holder, below which nothing is invested in a prefix."""

HOT_PREFIXES_MAX: Final = 2_048
"""Boundaries counted: with 100 bytes each, 0.2 MB."""

MODELS_MAX: Final = 2 * HOT_PREFIXES_MAX
"""Models counted: twice as many as may have a boundary, so that making room is rare."""


class HotPrefix(NamedTuple):
    """One prefix at one moment. `share` is of its model's requests, `tokens` its length,
    `requests` those of the last seconds, of which `hit_share` went where it is held."""

    block: BlockHash
    model: ModelName
    tokens: int
    share: float
    requests: float
    hit_share: float


_HIT_WEIGHT: Final = 1 / 32  # of the newest request in a prefix's hit share


class HotPrefixes:
    """Counts by boundary. Bounded: the coldest half gives way when it is full."""

    def __init__(self) -> None:
        self._prefixes: dict[BlockHash, _Prefix] = {}
        self._totals: dict[ModelName, Faded] = {}
        self.apply(HotPrefixRules())

    def apply(self, rules: HotPrefixRules) -> None:
        """Go by these from here on."""
        self._memory_s, self._slack = rules.memory_s, rules.holders_slack

    def placed(
        self, block: BlockHash | None, model: ModelName, tokens: int, now_s: float, *, hits: bool
    ) -> None:
        """A request was placed whose deepest known boundary is `block`, at `tokens`; whether its
        node `hits`, that is holds it."""
        total = self._totals.get(model)
        if total is None:
            if len(self._totals) >= MODELS_MAX:
                self._forget_models()
            total = self._totals[model] = Faded()
        total.add(1.0, now_s, self._memory_s)
        if block is None:
            return
        prefix = self._prefixes.get(block)
        if prefix is None:
            if len(self._prefixes) >= HOT_PREFIXES_MAX:
                self._forget_coldest(now_s)
            before = total.at(now_s, self._memory_s) - 1.0
            prefix = self._prefixes[block] = _Prefix(model, tokens, before, now_s)
        prefix.requests.add(1.0, now_s, self._memory_s)
        prefix.hit_share += (hits - prefix.hit_share) * _HIT_WEIGHT

    def invested(self, block: BlockHash, nodes: int, holders: int, now_s: float) -> float:
        """The share of its work that is for later requests, if one more of `nodes` computes it
        beside its `holders`; 0 where it is not hot enough for one more."""
        prefix = self._prefixes.get(block)
        if prefix is None:
            return 0.0
        requests = prefix.requests.at(now_s, self._memory_s)
        if requests < HOT_REQUESTS_MIN * (holders + 1):
            return 0.0
        share = requests / self._since(prefix, now_s)
        if holders >= min(nodes, int(share * nodes * self._slack)):
            return 0.0
        return 1.0 - (holders + 1) / requests

    def _since(self, prefix: "_Prefix", now_s: float) -> float:
        """Its model's requests since it was first seen, so that a sudden one has its full share at
        once."""
        total = self._totals[prefix.model].at(now_s, self._memory_s)
        before = prefix.before * left(now_s - prefix.first_s, self._memory_s)
        return max(1.0, total - before)

    def hottest(self, count: int, now_s: float) -> list[HotPrefix]:
        """The `count` that most was asked of, the hottest first."""
        found = nlargest(count, self._seen(now_s), key=lambda prefix: prefix.requests)
        return [prefix for prefix in found if prefix.requests >= HOT_REQUESTS_MIN]

    def _seen(self, now_s: float) -> Iterator[HotPrefix]:
        for block, known in self._prefixes.items():
            requests = known.requests.at(now_s, self._memory_s)
            share = requests / max(self._totals[known.model].at(now_s, self._memory_s), 1.0)
            hits = known.hit_share
            yield HotPrefix(block, known.model, known.tokens, min(share, 1.0), requests, hits)

    def _forget_coldest(self, now_s: float) -> None:
        counts = {b: p.requests.at(now_s, self._memory_s) for b, p in self._prefixes.items()}
        median = sorted(counts.values())[len(counts) // 2]
        kept = [(b, p) for b, p in self._prefixes.items() if counts[b] > median]
        self._prefixes = dict(kept[: HOT_PREFIXES_MAX // 2])

    def _forget_models(self) -> None:
        """All without a boundary: nothing is invested by their counts."""
        counted = {prefix.model for prefix in self._prefixes.values()}
        self._totals = {name: total for name, total in self._totals.items() if name in counted}

    def __len__(self) -> int:
        return len(self._prefixes)

    @property
    def models(self) -> int:
        """Models counted."""
        return len(self._totals)


class _Prefix:
    """What is counted of one. `before` are its model's requests of late when it was first seen."""

    __slots__ = ("before", "first_s", "hit_share", "model", "requests", "tokens")

    def __init__(self, model: ModelName, tokens: int, before: float, now_s: float) -> None:
        self.model = model
        self.tokens = tokens
        self.requests = Faded()
        self.hit_share = 1.0
        self.before = before
        self.first_s = now_s
