"""Real requests that begin with hot prefixes, kept to warm up nodes with.

Off unless configured, since bodies stay in memory: one for each of the hottest prefixes, all of
them within a bound, forgotten when the prefix cools; never logged, shown or written. Headers are
not kept, so nobody's key is. A request is looked at once in a while, for looking takes longer
than placing it.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from pointsman.core.blocks import Prompt
from pointsman.core.ids import BlockHash
from pointsman.core.request import Request
from pointsman.core.scheme import TEXT_SCHEME, Scheme, Unit
from pointsman.wire.endpoints import Endpoint

LOOK_S: Final = 0.05
"""A request is looked at this often: hot prefixes have many a second."""

HOTTEST_S: Final = 1.0
"""How long a list of the hottest prefixes is gone by."""

REPLAYABLE: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
"""Routes whose bodies have a `max_tokens` of 1."""


class Sample(NamedTuple):
    """A request to be replayed."""

    target: bytes
    body: bytes
    prompt: Prompt


class Samples:
    """`hottest` tells up to so many prefixes by the block that ends them, the hottest first;
    `schemes` are the ways in which nodes cut prompts."""

    def __init__(
        self,
        hottest: Callable[[int], Collection[BlockHash]],
        schemes: Callable[[], Collection[Scheme]] = lambda: (TEXT_SCHEME,),
    ) -> None:
        self._hottest = hottest
        self._schemes = schemes
        self._prefixes_max = self._bytes_max = 0
        self._kept: dict[BlockHash, Sample] = {}
        self._hot: frozenset[BlockHash] = frozenset()
        self._cuts: Collection[Scheme] = ()
        self._looks_s = self._asks_s = 0.0

    def apply(self, prefixes_max: int, bytes_max: int) -> None:
        """Keep so much from here on; 0 prefixes keep nothing."""
        self._prefixes_max, self._bytes_max = prefixes_max, bytes_max
        if not prefixes_max or self.bytes > bytes_max:
            self._kept.clear()

    def offer(
        self, request: Request, endpoint: Endpoint, target: bytes, body: bytes, now_s: float
    ) -> None:
        """A request is on its way; keep it if it is worth it."""
        if not self._prefixes_max or now_s < self._looks_s or endpoint not in REPLAYABLE:
            return
        self._looks_s = now_s + LOOK_S
        if now_s >= self._asks_s:
            self._asks_s = now_s + HOTTEST_S
            self._hot = frozenset(self._hottest(self._prefixes_max))
            self._cuts = self._schemes() if self._hot else ()
            self._kept = {block: kept for block, kept in self._kept.items() if block in self._hot}
        prompt, by_tokens = request.prompt, request.prompt.token_count is not None
        for scheme in self._cuts:
            if (scheme.unit is Unit.TOKENS) is by_tokens:
                for block in self._hot.intersection(prompt.chain(scheme)):
                    self._keep(block, Sample(target, body, prompt))

    def _keep(self, block: BlockHash, sample: Sample) -> None:
        """The shortest one: what comes behind the prefix is of no use."""
        before = self._kept.get(block)
        known_bytes = 0 if before is None else len(before.body)
        if before is not None and known_bytes <= len(sample.body):
            return
        if self.bytes - known_bytes + len(sample.body) <= self._bytes_max:
            self._kept[block] = sample

    def get(self, block: BlockHash) -> Sample | None:
        return self._kept.get(block)

    @property
    def bytes(self) -> int:
        """Body bytes in memory. A body kept for two prefixes counts twice."""
        return sum(len(sample.body) for sample in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)
