"""dynamo: the KV router of NVIDIA Dynamo with its defaults.

    score   = max(prefill - overlap, 0) + decode                              [tokens]
    prefill = uncached tokens of the prefills there that are not over + prompt tokens
    overlap = cached tokens of the prompt
    decode  = prompt blocks of the requests in flight there, each block once, and those that
              this prompt adds to them, times the tokens in a block

Dynamo counts in blocks of the one size that all of its engines have: the order is the same.
Lower is better, ties are even (by lot there). Both load scale and overlap credit are 1,
temperature, credit decay and the weight of an active request 0; only cache on the device
counts. Output blocks are not tracked, which is the default there, too. Same choices as
`SelectionService` of ai-dynamo-runtime 1.6.1: tests/core/policies/test_dynamo_itself.py.

What a prompt adds to `decode` is what no request in flight shares with it, cached or not:
so a burst of siblings on one node counts its common prefix once.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random

from pointsman.core.blocks import Prompt
from pointsman.core.ids import BlockHash, NodeName, RequestId
from pointsman.core.limits import TEXT_BLOCK_BYTES
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.scheme import TEXT_SCHEME, Scheme, Unit

ACTIVE_BLOCKS_MAX = 1 << 22
"""Blocks of requests in flight that are remembered: about 400 MB. What comes on top is counted
as shared with nobody."""

_BYTES_PER_TOKEN = 4  # of the text in flight, where a prompt of token ids does not tell


class Dynamo(PolicyBase):
    """The fewest tokens to prefill and to hold. That a node is gone changes nothing by itself: what
    is in flight there leaves request by request."""

    name = "dynamo"

    def __init__(self) -> None:
        self._active = ActiveBlocks()

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        prompt = request.prompt
        text_tokens = _text_block_tokens(prompt, rows[0])
        for row in rows:
            scheme, chain = _blocks(prompt, row)
            decode = self._active.tokens_with(row.node, scheme, chain, text_tokens=text_tokens)
            row.score = row.queue_tokens + row.new_tokens + decode
        return pick(rows, why="fewest tokens to prefill and to hold")

    def placed(self, request: Request, row: Row) -> None:
        scheme, chain = _blocks(request.prompt, row)
        self._active.add(request.id, row.node, scheme, chain)

    def left(self, request: Request, node: NodeName) -> None:
        self._active.remove(request.id)


def _blocks(prompt: Prompt, row: Row) -> tuple[Scheme, list[BlockHash]]:
    """The prompt as the node cuts it, or as text."""
    scheme = TEXT_SCHEME if prompt.token_count is None else _token_scheme(row.block_tokens)
    return scheme, prompt.chain(scheme)


@lru_cache(maxsize=64)
def _token_scheme(block_tokens: int) -> Scheme:
    return Scheme(Unit.TOKENS, block_tokens)


def _text_block_tokens(prompt: Prompt, row: Row) -> float:
    """Tokens in a block of text, going by this prompt: the others are of the same ratio."""
    if prompt.token_count is not None or not prompt.text:
        return TEXT_BLOCK_BYTES / _BYTES_PER_TOKEN
    return (row.hit_tokens + row.new_tokens) * TEXT_BLOCK_BYTES / len(prompt.text)


class ActiveBlocks:
    """Prompt blocks of the requests in flight, by node, each counted once."""

    def __init__(self, blocks_max: int = ACTIVE_BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._uses: dict[NodeName, dict[BlockHash, int]] = {}
        self._counts: dict[NodeName, dict[Scheme, int]] = {}
        self._booked: dict[RequestId, tuple[NodeName, Scheme, list[BlockHash]]] = {}
        self._alone: dict[RequestId, tuple[NodeName, Scheme, int]] = {}
        self._remembered = 0

    def add(
        self, request_id: RequestId, node: NodeName, scheme: Scheme, chain: list[BlockHash]
    ) -> None:
        """The prompt of `chain` is in flight on `node`. One shorter than a block holds none."""
        if not chain:
            return
        counts = self._counts.setdefault(node, {})
        if self._remembered + len(chain) > self._blocks_max:
            counts[scheme] = counts.get(scheme, 0) + len(chain)
            self._alone[request_id] = (node, scheme, len(chain))
            return
        uses = self._uses.setdefault(node, {})
        before = len(uses)
        for block in chain:
            uses[block] = uses.get(block, 0) + 1
        counts[scheme] = counts.get(scheme, 0) + len(uses) - before
        self._booked[request_id] = (node, scheme, chain)
        self._remembered += len(chain)

    def remove(self, request_id: RequestId) -> None:
        """It is over. Changes nothing if it was never added."""
        if request_id in self._alone:
            node, scheme, count = self._alone.pop(request_id)
            self._uncount(node, scheme, count)
        if request_id not in self._booked:
            return
        node, scheme, chain = self._booked.pop(request_id)
        uses, before = self._uses[node], len(self._uses[node])
        for block in chain:
            uses[block] -= 1
            if not uses[block]:
                del uses[block]
        if not uses:
            del self._uses[node]
        self._uncount(node, scheme, before - len(uses))
        self._remembered -= len(chain)

    def _uncount(self, node: NodeName, scheme: Scheme, blocks: int) -> None:
        """So many fewer; nothing is kept of a node that has none."""
        counts = self._counts[node]
        counts[scheme] -= blocks
        if not any(counts.values()):
            del self._counts[node]

    def tokens_with(
        self, node: NodeName, scheme: Scheme, chain: list[BlockHash], *, text_tokens: float
    ) -> float:
        """Tokens that were held there with this prompt, too; a block of text has
        `text_tokens`."""
        added = len(chain) - _shared(self._uses.get(node, {}), chain)
        tokens = added * (text_tokens if scheme is TEXT_SCHEME else scheme.size)
        for held, count in self._counts.get(node, {}).items():
            tokens += count * (text_tokens if held is TEXT_SCHEME else held.size)
        return tokens


def _shared(uses: Mapping[BlockHash, int], chain: Sequence[BlockHash]) -> int:
    """Leading blocks in use: chains are there as a whole, so by bisection."""
    return bisect_left(chain, True, key=lambda block: block not in uses)
