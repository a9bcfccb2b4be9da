"""The record of one decision: what was known, what it would have cost, what was chosen."""

from enum import StrEnum

import msgspec

from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.core.scheme import Unit


class Ruling(StrEnum):
    """What the decision came to."""

    PLACED = "placed"
    HELD = "held"
    REFUSED = "refused"
    COMPENSATED = "compensated"  # what was booked for it is given back, since it seems lost


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One node's costs for one request, each term in seconds, as a `Row` had them when it was
    chosen from. Formulas are in `core/cost.py`; `score` is a policy's.

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

    node: NodeName
    hit_tokens: int
    index_hit_tokens: int
    new_tokens: int
    attention: float
    inflight: int
    queue_tokens: int
    queue_s: float
    work_s: float
    prefill_s: float
    room_wait_s: float
    decode_s: float
    interrupted_s: float
    stall_s: float
    slowdown_s: float
    running_s: float
    uncached_s: float
    kv_blocks: int
    fits: bool
    block_tokens: int
    kv_share: float
    concurrency_max: int
    waiting: int
    unhealthy: float
    slo_share: float
    calibrated: bool
    placed_order: int
    restored_tokens: int = 0
    shared_s: float = 0.0
    score: float = 0.0


class Exclusion(msgspec.Struct, frozen=True, gc=False):
    """A node that could not be chosen, and why."""

    node: NodeName
    why: "Ineligible"


class Ineligible(StrEnum):
    """Why a node is no candidate."""

    MODEL = "model"
    POOL = "pool"
    ZONE = "zone"
    LABELS = "labels"
    RESPONSE = "response"  # the response that it goes on from is on another node
    CONTEXT = "context"  # the prompt cannot fit the model's context there
    JOINING = "joining"
    OPEN = "open"  # it failed, and is left alone for a while
    SHARE = "share"  # it is suspected, on trial or warming up, and has its share for now
    DRAINING = "draining"
    WITHHELD = "withheld"  # it computes hot prefixes before it gets work
    TRIED = "tried"  # this request already failed there
    CONCURRENCY = "concurrency"


class Prospect(msgspec.Struct, frozen=True, gc=False):
    """What a request that has to wait may expect: its place among those that wait for the same
    nodes, in the order of their turns, from 1; and how long until its turn: infinite if that
    never comes, None where nothing has shown it yet."""

    position: int
    wait_s: float | None


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Why a request went where it went. `candidates` is best first and may be cut short;
    `candidate_count` and `tie_count` are of the full field. `prompt_unit` says what the hits
    were looked up by: the prompt's token ids, or its text. `load` is the share that was taken of
    the nodes that could serve it, None where admission was no question; `prospect` is of those
    that were held, or could not be."""

    request_id: RequestId
    model: ModelName
    at_s: float
    ruling: Ruling
    policy: str
    why: str
    node: NodeName | None
    attempt: int
    prompt_tokens: int
    output_tokens_expected: int
    hit_tokens: int
    queued_s: float
    candidate_count: int
    tie_count: int
    candidates: tuple[Candidate, ...]
    excluded: tuple[Exclusion, ...]
    prompt_unit: Unit = Unit.BYTES
    load: float | None = None
    prospect: Prospect | None = None


def without_routing(
    request_id: RequestId,
    model: ModelName,
    *,
    at_s: float,
    ruling: Ruling,
    policy: str,
    why: str,
    node: NodeName | None = None,
) -> Decision:
    """What was decided without a look at any candidate."""
    return Decision(
        request_id=request_id,
        model=model,
        at_s=at_s,
        ruling=ruling,
        policy=policy,
        why=why,
        node=node,
        attempt=0,
        prompt_tokens=0,
        output_tokens_expected=0,
        hit_tokens=0,
        queued_s=0.0,
        candidate_count=0,
        tie_count=0,
        candidates=(),
        excluded=(),
    )
