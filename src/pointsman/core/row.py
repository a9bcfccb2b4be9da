"""One candidate: a node's costs for one request.

Made by `core/cost.py`; a policy writes `score`, and nothing changes once it has chosen: then the
best rows are the decision's record. Compiled, its numbers are a machine's own: a decision makes
and compares sixteen of them.
"""

from typing import Final

from pointsman.core.compiler import mypyc_attr
from pointsman.core.ids import NodeName
from pointsman.core.value import Value


@mypyc_attr(acyclic=True)
class Row(Value):
    """One node's costs for one request, each term in seconds. Formulas are in `core/cost.py`;
    `score` is a policy's.

    hit_tokens        of the prompt, counted as cached there; `index_hit_tokens` before doubt
    restored_tokens   of the hit, those that come from slower tiers than the GPU's memory
    new_tokens        to compute; `attention` is what each of them attends to, summed
    inflight          requests there; `queue_tokens` are those that prefills there still need
    queue_s           work ahead of it: prefill seconds placed there and not yet begun to stream
    work_s            its own uncached prompt; prefill_s adds the engine's fixed latency
    room_wait_s       until there is room: enough KV blocks, and one of those that it runs has ended
    decode_s          its own output, undisturbed
    interrupted_s     what later prefills are expected to take from that
    stall_s           what its prefill takes from the requests that decode there and the next ones
    slowdown_s        what its decoding takes from them
    running_s         what is left to decode of the requests there
    uncached_s        what `work_s` would be if nothing were cached
    kv_blocks, fits   the lease it needs, and whether there is room for it: blocks, and to run
    block_tokens      tokens in a block of the node's
    kv_share          of the node's KV blocks that are leased; 0 where its capacity is unknown
    concurrency_max   requests that may be in flight there, or that it runs at once, if less
    waiting           requests there whose prefill is not over
    unhealthy         0 to 1: requests in a row that came to nothing there, of those that take it
                      out of service
    slo_share         of the requests with a bound on their first token, those that met it of late
    calibrated        whether the node's speeds are learned; they are assumed until then
    placed_order      when the node was last chosen: among equals the lowest is next
    shared_s          of work_s, what is an investment in later requests (`hot_prefixes`)
    score             the policy's, lower is better; in seconds for the cost policies
    """

    __match_args__ = (
        "node",
        "hit_tokens",
        "index_hit_tokens",
        "new_tokens",
        "attention",
        "inflight",
        "queue_tokens",
        "queue_s",
        "work_s",
        "prefill_s",
        "room_wait_s",
        "decode_s",
        "interrupted_s",
        "stall_s",
        "slowdown_s",
        "running_s",
        "uncached_s",
        "kv_blocks",
        "fits",
        "block_tokens",
        "kv_share",
        "concurrency_max",
        "waiting",
        "unhealthy",
        "slo_share",
        "calibrated",
        "placed_order",
        "restored_tokens",
        "shared_s",
        "score",
    )
    __slots__ = __match_args__

    def __init__(  # noqa: PLR0917 - interpreted, thirty names take longer than all else of a row
        self,
        node: NodeName,
        hit_tokens: int,
        index_hit_tokens: int,
        new_tokens: int,
        attention: float,
        inflight: int,
        queue_tokens: int,
        queue_s: float,
        work_s: float,
        prefill_s: float,
        room_wait_s: float,
        decode_s: float,
        interrupted_s: float,
        stall_s: float,
        slowdown_s: float,
        running_s: float,
        uncached_s: float,
        kv_blocks: int,
        fits: bool,
        block_tokens: int,
        kv_share: float,
        concurrency_max: int,
        waiting: int,
        unhealthy: float,
        slo_share: float,
        calibrated: bool,
        placed_order: int,
        restored_tokens: int = 0,
        shared_s: float = 0.0,
        score: float = 0.0,
    ) -> None:
        self.node: Final = node
        self.hit_tokens: Final = hit_tokens
        self.index_hit_tokens: Final = index_hit_tokens
        self.new_tokens: Final = new_tokens
        self.attention: Final = attention
        self.inflight: Final = inflight
        self.queue_tokens: Final = queue_tokens
        self.queue_s: Final = queue_s
        self.work_s: Final = work_s
        self.prefill_s: Final = prefill_s
        self.room_wait_s = room_wait_s
        self.decode_s: Final = decode_s
        self.interrupted_s: Final = interrupted_s
        self.stall_s: Final = stall_s
        self.slowdown_s: Final = slowdown_s
        self.running_s: Final = running_s
        self.uncached_s: Final = uncached_s
        self.kv_blocks: Final = kv_blocks
        self.fits = fits
        self.block_tokens: Final = block_tokens
        self.kv_share: Final = kv_share
        self.concurrency_max: Final = concurrency_max
        self.waiting: Final = waiting
        self.unhealthy: Final = unhealthy
        self.slo_share: Final = slo_share
        self.calibrated: Final = calibrated
        self.placed_order: Final = placed_order
        self.restored_tokens: Final = restored_tokens
        self.shared_s = shared_s
        self.score = score

    @property
    def service_s(self) -> float:
        """Its own prefill and decode with nothing cached and nothing queued."""
        return self.uncached_s + (self.prefill_s - self.work_s) + self.decode_s

    @property
    def first_token_s(self) -> float:
        """The request's own time to its first token."""
        return self.queue_s + self.room_wait_s + self.prefill_s
