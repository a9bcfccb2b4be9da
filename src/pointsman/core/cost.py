"""What a request would cost on a node: one row a candidate, every term in seconds.

With L prompt tokens of which n are not cached there, O expected output tokens, B requests in
flight there holding K tokens, and the node's learned speeds:

    queue_s     = prefill work placed there that has not begun to stream
    work_s      = n·prefill + n·(L - n/2)·attention
    prefill_s   = dispatch + work_s
    decode_s    = O · (step + sequence·(B+1) + kv_token·(K + L + O/2))
    kv_wait_s   = decode_s · missing blocks / leased blocks     (0 where the lease fits)
    running_s   = what is left of the requests in flight, half of their output on average
    stall_s     = work_s · (B + 1)                              (imposed on the others)
    slowdown_s  = ½ · O · (sequence + kv_token·L) · B           (imposed on the others)

The model is that of chunked prefill beside continuous batching: a prefill delays every
sequence that decodes there, and a longer batch makes every step longer. The one more that
stall_s counts is the next to arrive: without it, work on an idle node would be free, and a
burst of siblings would compute their prefix once on every idle node. `dispatch` is latency
and not work: requests that wait behind each other do not add it up.
"""

from math import ceil

import msgspec

from pointsman.core.cluster import Node
from pointsman.core.ledger import Ledger
from pointsman.core.limits import FOOTPRINT_SAFETY


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What a request asks of any node, in tokens: its prompt, and the output expected."""

    prompt_tokens: int
    output_tokens: int


class CostRow(msgspec.Struct, gc=False):
    """One candidate. A policy writes `score`; nothing else changes.

    `index_hit_tokens` is what the index believes, `hit_tokens` what counts after doubt.
    """

    node: Node
    hit_tokens: int
    index_hit_tokens: int
    new_tokens: int
    attention: float
    inflight: int
    queue_tokens: int
    queue_s: float
    work_s: float
    prefill_s: float
    kv_wait_s: float
    running_s: float
    decode_s: float
    stall_s: float
    slowdown_s: float
    kv_blocks: int
    fits: bool
    score: float = 0.0

    @property
    def first_token_s(self) -> float:
        """The request's own time to its first token."""
        return self.queue_s + self.kv_wait_s + self.prefill_s


def footprint_blocks(new_tokens: int, output_tokens: int, block_tokens: int) -> int:
    """KV blocks to reserve (MISSION D1): shared prefix blocks are held by somebody else."""
    return ceil((new_tokens + output_tokens) * FOOTPRINT_SAFETY / block_tokens)


def cost_row(
    node: Node, ledger: Ledger, demand: Demand, *, index_hit_tokens: int, now_s: float
) -> CostRow:
    """The node's row for a request of this demand. Reads; changes nothing.

    At least one token is always computed anew: engines recompute the last block of a prompt
    that is cached in full.
    """
    prompt, output = demand.prompt_tokens, demand.output_tokens
    hit = min(index_hit_tokens, prompt - 1) if node.cache_believed else 0
    new = prompt - hit
    attention = new * (prompt - new / 2)
    speeds = node.speeds
    batch = node.inflight + node.foreign(now_s)
    work_s = new * speeds.prefill_s_per_token + attention * speeds.attention_s_per_token2
    resident = node.kv_tokens + prompt + output / 2
    step_s = speeds.step_s + speeds.sequence_s * (batch + 1) + speeds.kv_token_s * resident
    decode_s = output * step_s
    blocks = footprint_blocks(new, output, node.block_tokens)
    fits = ledger.fits(node.id, blocks)
    return CostRow(
        node,
        hit,
        index_hit_tokens,
        new,
        attention,
        batch,
        node.queue_tokens,
        node.queue_ahead_s(now_s),
        work_s,
        speeds.dispatch_s + work_s,
        0.0 if fits else _kv_wait_s(node, ledger, blocks, decode_s),
        running_s(node),
        decode_s,
        work_s * (batch + 1),
        0.5 * output * (speeds.sequence_s + speeds.kv_token_s * prompt) * batch,
        blocks,
        fits,
    )


def _kv_wait_s(node: Node, ledger: Ledger, blocks: int, decode_s: float) -> float:
    """Time until enough leases end, if they end evenly over one request's decode time."""
    free, leased = ledger.free(node.id), ledger.leased(node.id)
    assert free is not None, "a node of unknown capacity always fits"
    assert leased > 0, "an idle node always fits"
    return decode_s * (blocks - free) / leased


def running_s(node: Node) -> float:
    """Remaining decode time of what runs on `node`: requests are half done on average."""
    if not node.inflight:
        return 0.0
    speeds = node.speeds
    mean_output = node.output_tokens / node.inflight
    batch_s = speeds.sequence_s * node.inflight + speeds.kv_token_s * node.kv_tokens
    return 0.5 * mean_output * (speeds.step_s + batch_s)
