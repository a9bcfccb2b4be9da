"""One candidate while it is chosen: its costs, each term in seconds.

Made by `core/cost.py`, where the formulas are; a policy writes `score`, and nothing changes once
it has chosen. Compiled, its numbers are a machine's own: a decision makes and compares sixteen of
them. What is kept of a decision is a frozen `Candidate`, where all that stands here is explained.
"""

from pointsman.core.decision import Candidate
from pointsman.core.ids import NodeName


class Row:
    """The fields of a `Candidate`, in its order."""

    __slots__ = Candidate.__struct_fields__

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
        self.node = node
        self.hit_tokens = hit_tokens
        self.index_hit_tokens = index_hit_tokens
        self.new_tokens = new_tokens
        self.attention = attention
        self.inflight = inflight
        self.queue_tokens = queue_tokens
        self.queue_s = queue_s
        self.work_s = work_s
        self.prefill_s = prefill_s
        self.room_wait_s = room_wait_s
        self.decode_s = decode_s
        self.interrupted_s = interrupted_s
        self.stall_s = stall_s
        self.slowdown_s = slowdown_s
        self.running_s = running_s
        self.uncached_s = uncached_s
        self.kv_blocks = kv_blocks
        self.fits = fits
        self.block_tokens = block_tokens
        self.kv_share = kv_share
        self.concurrency_max = concurrency_max
        self.waiting = waiting
        self.unhealthy = unhealthy
        self.slo_share = slo_share
        self.calibrated = calibrated
        self.placed_order = placed_order
        self.restored_tokens = restored_tokens
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

    def seen(self) -> Candidate:
        """What is kept of it."""
        return Candidate(
            self.node,
            self.hit_tokens,
            self.index_hit_tokens,
            self.new_tokens,
            self.attention,
            self.inflight,
            self.queue_tokens,
            self.queue_s,
            self.work_s,
            self.prefill_s,
            self.room_wait_s,
            self.decode_s,
            self.interrupted_s,
            self.stall_s,
            self.slowdown_s,
            self.running_s,
            self.uncached_s,
            self.kv_blocks,
            self.fits,
            self.block_tokens,
            self.kv_share,
            self.concurrency_max,
            self.waiting,
            self.unhealthy,
            self.slo_share,
            self.calibrated,
            self.placed_order,
            self.restored_tokens,
            self.shared_s,
            self.score,
        )

    def __repr__(self) -> str:
        return repr(self.seen())
