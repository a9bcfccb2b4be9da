"""What a request would cost on a node: a candidate, every term in seconds.

With L prompt tokens of which n are not cached there and r only in slower tiers, O expected
output tokens, B requests in flight there holding K tokens, and the node's learned speeds:

    queue_s     = prefill work placed there that has not begun to stream
    work_s      = n·prefill + n·(L - n/2)·attention + r·share·prefill
    prefill_s   = dispatch + work_s
    decode_s    = O · (step + sequence·(B+1) + kv_token·(K + L + O/2))
    kv_wait_s   = decode_s · (missing blocks / leased blocks + held ahead / B)
                  (0 where the lease fits; of those that are held a node gets its share)
    running_s   = what is left of the requests in flight, half of their output on average
    uncached_s  = L·prefill + ½·L²·attention                    (work_s if nothing were cached)
    stall_s     = work_s · (B + 1)                              (imposed on the others)
    slowdown_s  = ½ · O · (sequence + kv_token·L) · B / (1 - p) (imposed on the others)
    interrupted_s = decode_s · p / (1 - p)

The model is that of chunked prefill beside continuous batching: a prefill delays every
sequence that decodes there, and a longer batch makes every step longer. p is the share of time
that the node spent on prefills of late: what decodes there stands still for as much of the time
to come. The one more that stall_s counts is the next to arrive: without it, work on an idle node
would be free, and a burst of siblings would compute their prefix once on every idle node.
`dispatch` is latency and not work: requests that wait behind each other do not add it up.
"""

from pointsman.core.calibration import Speeds
from pointsman.core.decision import Candidate
from pointsman.core.ledger import Ledger
from pointsman.core.limits import FOOTPRINT_SAFETY, PREFILL_SHARE_MAX
from pointsman.core.node import Node
from pointsman.core.placement import Demand


def footprint_blocks(new_tokens: int, output_tokens: int, block_tokens: int) -> int:
    """KV blocks to reserve: shared prefix blocks are held by somebody else."""
    return int((new_tokens + output_tokens) * FOOTPRINT_SAFETY) // block_tokens + 1


def candidate(
    node: Node,
    ledger: Ledger,
    demand: Demand,
    index_hit_tokens: int,
    now_s: float,
    *,
    held_ahead: float = 0.0,
    restorable_tokens: int = 0,
) -> Candidate:
    """What a request of this demand would cost on `node`. Reads; changes nothing.

    `held_ahead` requests get room there before it: without them in the price,
    everybody would wait for the fastest node, and a slower one would idle beside the queue.

    At least one token is always computed anew, and engines cache whole blocks: of a prompt that
    is cached in full they recompute the last one.
    """
    prompt, output = demand.prompt_tokens, demand.output_tokens
    block = node.block_tokens
    hit = restored = 0
    found = index_hit_tokens + restorable_tokens
    if found and node.cache_believed:
        hit = min(found, (prompt - 1) // block * block)
        restored = max(0, hit - index_hit_tokens)
    new = prompt - hit
    attention = new * (prompt - new / 2)
    calibration = node.calibration
    speeds = calibration.speeds_at(now_s, idle=not node.inflight, tokens=new, attention=attention)
    batch = node.inflight + node.foreign(now_s)
    work_s = new * speeds.prefill_s_per_token + attention * speeds.attention_s_per_token2
    if restored:
        work_s += restored * node.restore_share * speeds.prefill_s_per_token
    per_sequence_s = speeds.sequence_s + speeds.kv_token_s * prompt
    resident_s = speeds.kv_token_s * (node.kv_tokens + output / 2)
    decode_s = output * (speeds.step_s + speeds.sequence_s * batch + resident_s + per_sequence_s)
    uncached_s = prompt * (speeds.prefill_s_per_token + speeds.attention_s_per_token2 * prompt / 2)
    interruptions = 1 / (1 - min(node.prefill_share(now_s), PREFILL_SHARE_MAX))
    blocks = footprint_blocks(new + restored, output, block)
    fits = ledger.fits(node.id, blocks)
    return Candidate(
        node.name,
        hit,
        found,
        new,
        attention,
        batch,
        node.queue_tokens,
        node.queue_ahead_s(now_s),
        work_s,
        speeds.dispatch_s + work_s,
        0.0 if fits else _kv_wait_s(node, ledger, blocks, held_ahead, decode_s),
        decode_s,
        decode_s * (interruptions - 1),
        work_s * (batch + 1),
        0.5 * output * per_sequence_s * batch * interruptions,
        running_s(node, speeds),
        uncached_s,
        blocks,
        fits,
        block,
        ledger.leased_share(node.id),
        node.concurrency_max,
        node.waiting,
        node.condition.failures,
        node.slo_share,
        calibration.calibrated,
        node.placed_order,
        restored,
    )


def _kv_wait_s(
    node: Node, ledger: Ledger, blocks: int, held_ahead: float, decode_s: float
) -> float:
    """Time until enough leases end, if they end evenly over one request's decode time; who is
    held ahead needs as much as those that run there."""
    free, leased = ledger.free(node.id), ledger.leased(node.id)
    assert free is not None, "a node of unknown capacity always fits"
    assert leased > 0, "an idle node always fits"
    return decode_s * ((blocks - free) / leased + held_ahead / max(1, node.inflight))


def running_s(node: Node, speeds: Speeds) -> float:
    """Remaining decode time of what runs on `node`: requests are half done on average."""
    if not node.inflight:
        return 0.0
    mean_output = node.output_tokens / node.inflight
    batch_s = speeds.sequence_s * node.inflight + speeds.kv_token_s * node.kv_tokens
    return 0.5 * mean_output * (speeds.step_s + batch_s)
