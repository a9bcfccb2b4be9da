"""The record of one decision: what was known, what it would have cost, what was chosen."""

from enum import StrEnum

import msgspec

from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.core.row import Row
from pointsman.core.scheme import Unit


class Ruling(StrEnum):
    """What the decision came to."""

    PLACED = "placed"
    HELD = "held"
    REFUSED = "refused"
    COMPENSATED = "compensated"  # what was booked for it is given back, since it seems lost


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
    TRIED = "tried"  # this request already failed there, or on another rank of its server
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
    candidates: tuple[Row, ...]
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
