"""The record of one decision: what was known, what it would have cost, what was chosen."""

from enum import StrEnum

import msgspec

from pointsman.core.ids import ModelName, NodeName, RequestId


class Ruling(StrEnum):
    """What the decision came to."""

    PLACED = "placed"
    HELD = "held"
    REFUSED = "refused"


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One node's costs for one request, each term in seconds.

    queue_s      work ahead of it: prefill seconds placed there and not yet begun to stream
    prefill_s    its own uncached prompt, and the engine's fixed latency
    kv_wait_s    until enough KV blocks are free
    decode_s     its own output
    stall_s      what its prefill takes from the requests that decode there and from the next
    slowdown_s   what its decoding takes from them
    score        the policy's, lower is better; in seconds for the cost policies
    """

    node: NodeName
    hit_tokens: int
    new_tokens: int
    inflight: int
    queue_s: float
    prefill_s: float
    kv_wait_s: float
    decode_s: float
    stall_s: float
    slowdown_s: float
    kv_blocks: int
    calibrated: bool
    score: float


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
    CONTEXT = "context"  # the prompt cannot fit the model's context there
    JOINING = "joining"
    DOWN = "down"
    DRAINING = "draining"
    TRIED = "tried"  # this request already failed there
    CONCURRENCY = "concurrency"
    KV_BLOCKS = "kv_blocks"


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Why a request went where it went. `candidates` is best first and may be cut short;
    `candidate_count` and `tie_count` are of the full field."""

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
