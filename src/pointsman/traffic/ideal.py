"""The best prefix hit ratio that a stream allows: what placement is measured against.

Strict prefix, weighted by tokens, in arrival order: a request hits the blocks of every request
before it, also of those stamped the same instant.

    ratio = sum over requests of min(leading blocks held * block_tokens, input_tokens)
            / sum of input_tokens

Only prompts are counted; generated tokens take no room and are never hit.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from itertools import takewhile

from pointsman.traffic.request import TrafficRequest


def ideal_hit_ratio(requests: Iterable[TrafficRequest]) -> float | None:
    """Hit ratio of one unbounded cache, cold at the start; None where no prefix is known."""
    seen: set[int] = set()
    hit_tokens = input_tokens = 0
    known = False
    for request in requests:
        known = known or bool(request.block_ids)
        hit_tokens += _found(request, seen)
        seen.update(request.block_ids)
        input_tokens += request.input_tokens
    return hit_tokens / input_tokens if known and input_tokens else None


def bounded_hit_ratio(requests: Iterable[TrafficRequest], *, capacity_tokens: int) -> float | None:
    """Hit ratio of one pooled LRU cache of `capacity_tokens`; None where no prefix is known.

    What a whole cluster could reach if its memory were one. A block takes `block_tokens` even if
    its last one is partial, as in engines. The least recently used block goes first, and of one
    request's blocks the tail before the head, so what is held is always a set of whole prefixes.
    """
    held: OrderedDict[int, int] = OrderedDict()  # block id -> tokens, least recently used first
    held_tokens = hit_tokens = input_tokens = 0
    known = False
    for request in requests:
        known = known or bool(request.block_ids)
        hit_tokens += _found(request, held)
        input_tokens += request.input_tokens
        for block_id in reversed(request.block_ids):
            if block_id in held:
                held.move_to_end(block_id)
            else:
                held[block_id] = request.block_tokens
                held_tokens += request.block_tokens
        while held_tokens > capacity_tokens:
            _, tokens = held.popitem(last=False)
            held_tokens -= tokens
    return hit_tokens / input_tokens if known and input_tokens else None


def _found(request: TrafficRequest, held: Container[int]) -> int:
    """The leading tokens of a request whose blocks are all held."""
    blocks = takewhile(held.__contains__, request.block_ids)
    return min(sum(1 for _ in blocks) * request.block_tokens, request.input_tokens)
