"""What a request would cost on a node: a row, every term in seconds.

With L prompt tokens of which n are not cached there and r only in slower tiers, O expected
output tokens, B requests in flight there holding K tokens, and the node's learned speeds:

    queue_s     = prefill work placed there that has not begun to stream
    work_s      = n·prefill + n·(L - n/2)·attention + r·share·prefill
    prefill_s   = dispatch + work_s
    decode_s    = O · (step + sequence·(B+1) + kv_token·(K + L + O/2))
    room_wait_s = 2 · running_s · (max(missing blocks / leased blocks, missing ends / running_max)
                  + held ahead / B)
                  (0 where there is room: those that are held wait for the nodes that have none;
                  decode_s for 2 · running_s where all that runs is others')
    running_s   = what is left of the requests in flight, half of their output on average
    uncached_s  = L·prefill + ½·L²·attention                    (work_s if nothing were cached)
    stall_s     = work_s · (B + 1 + 2·R·work_s)                 (imposed on the others)
    slowdown_s  = ½ · O · (sequence + kv_token·L) · B / (1 - p) (imposed on the others)
    interrupted_s = decode_s · p / (1 - p)

The model is that of chunked prefill beside continuous batching: a prefill delays every
sequence that decodes there, and a longer batch makes every step longer. p is the share of time
that the node spent on prefills of late: what decodes there stands still for as much of the time
to come. The one more that stall_s counts is the next to arrive: without it, work on an idle node
would be free, and a burst of siblings would compute their prefix once on every idle node.
R is how many come back in a second to what the node holds, and cannot go elsewhere: R·work_s of
them find the prefill before them, and each waits half of it, at about 4 for a second.
`dispatch` is latency and not work: requests that wait behind each other do not add it up.
An engine runs `running_max` at once, which most do not tell. Where there are as many or more, some
have to end before this one begins: those are missing ends, and B does not count them.
"""

from collections.abc import Sequence

from pointsman.core.calibration import Calibration
from pointsman.core.ledger import Account, Ledger
from pointsman.core.limits import PREFILL_SHARE_MAX
from pointsman.core.node import Node
from pointsman.core.placement import Footprint
from pointsman.core.row import Row


def costs(
    node: Node,
    ledger: Ledger,
    now_s: float,
    *,
    prompt: int,
    output: int,
    footprint: Footprint,
    indexed: int = 0,
    restorable: int = 0,
) -> Row:
    """What a request of so many tokens and this footprint would cost on `node`, whose index knows
    the first `indexed` of them there, and its slower tiers the next `restorable`. Changes nothing.
    """
    hit, restored = _hit(node, prompt, indexed, restorable)
    new, block, inflight = prompt - hit, node.block_tokens, node.inflight
    attention = new * (prompt - new / 2)
    pace = node.calibration
    known = pace.counted_on(now_s, idle=not inflight, tokens=new, attention=attention)
    dispatch_s, token_s, pair_s = known.prefill.coefficients
    step_s, sequence_s, kv_token_s = known.decode.coefficients
    present = inflight + node.foreign(now_s)
    ends = max(0, present + 1 - node.running_max)
    batch = present - ends
    work_s = new * token_s + attention * pair_s
    if restored:
        work_s += restored * node.restore_share * token_s
    per_sequence_s = sequence_s + kv_token_s * prompt
    resident_s = kv_token_s * (node.kv_tokens + output / 2)
    decode_s = output * (step_s + sequence_s * batch + resident_s + per_sequence_s)
    uncached_s = prompt * (token_s + pair_s * prompt / 2)
    interruptions = 1 / (1 - min(node.prefill_share(now_s), PREFILL_SHARE_MAX))
    account = ledger.account(node.id)
    blocks = account.needed(footprint) if hit else footprint.blocks
    room, left_s = not ends and account.fits(blocks), running_s(node, known)
    return Row(
        node.name,
        hit,
        indexed + restorable,
        new,
        attention,
        present,
        node.queue_tokens,
        node.queue_ahead_s(now_s),
        work_s,
        dispatch_s + work_s,
        0.0 if room else (2 * left_s or decode_s) * _missing(node, account, blocks, ends),
        decode_s,
        decode_s * (interruptions - 1),
        work_s * (batch + 1 + 2 * node.returns_per_s(now_s) * work_s),
        0.5 * output * per_sequence_s * batch * interruptions,
        left_s,
        uncached_s,
        blocks,
        room or not inflight,
        block,
        account.leased_share,
        min(node.concurrency_max, node.running_max),
        node.waiting,
        node.condition.unhealthy,
        node.slo_share,
        pace.calibrated,
        node.placed_order,
        restored,
    )


def _hit(node: Node, prompt: int, indexed: int, restorable: int) -> tuple[int, int]:
    """What need not be computed, and how much of that is copied from slower tiers.

    At least one token is always computed anew, and engines cache whole blocks: of a prompt that
    is cached in full they recompute the last one.
    """
    if not node.hits.cache_is_believed or indexed + restorable == 0:
        return 0, 0
    whole = (prompt - 1) // node.block_tokens * node.block_tokens
    hit = min(indexed + restorable, whole)
    return hit, max(0, hit - indexed)


def _missing(node: Node, account: Account, blocks: int, ends: int) -> float:
    """The part that has to pass of the time in which all that runs there ends: until `ends` of them
    have ended, and enough leased blocks are free. They are taken to end evenly."""
    missing, free = ends / node.running_max, account.free
    if free is not None and free < blocks and account.leased:
        missing = max(missing, (blocks - free) / account.leased)
    return missing


def add_held(rows: Sequence[Row], ahead: float) -> None:
    """Note that others are held who get room before it: `ahead` of them wait for one of these.

    Each needs as much as one that runs there. Without them in the price everybody would wait for
    the fastest node, and a slower one would idle beside the queue.
    """
    full = [row for row in rows if not row.fits]
    for row in full:
        row.room_wait_s += 2 * row.running_s * ahead / len(full) / row.inflight


def running_s(node: Node, known: Calibration) -> float:
    """Remaining decode time of what runs on `node`: requests are half done on average."""
    inflight = node.inflight
    if not inflight:
        return 0.0
    step_s, sequence_s, kv_token_s = known.decode.coefficients
    batch_s = sequence_s * min(inflight, node.running_max) + kv_token_s * node.kv_tokens
    return 0.5 * (node.output_tokens / inflight) * (step_s + batch_s)
