"""What a placement is made of: the question, the answer, and what is booked for it."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from pointsman.core.errors import Reason
from pointsman.core.ids import BlockHash, NodeId, RequestId, Slot
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.scheme import Unit


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try to place a request: since when it is here, the nodes it failed on and how many of
    these were busy, those that are left out this time, and how often it was taken back from one."""

    request: Request
    arrived_s: float
    tried: tuple[NodeId, ...] = ()
    avoided: tuple[NodeId, ...] = ()
    recalls: int = 0
    busy: int = 0

    @property
    def number(self) -> int:
        """Which try it is, from 1."""
        return len(self.tried) + self.recalls + 1


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What a request asks of any node, in tokens: its prompt, and the output expected.
    `context_tokens` is what a context must hold, as far as that is certain."""

    prompt_tokens: int
    output_tokens: int
    context_tokens: int = 0


class Choice(msgspec.Struct, frozen=True, gc=False):
    """Place it there. `ties` counts the rows that were as good, the chosen one included."""

    row: Row
    ties: int
    why: str


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Keep it in the central queue; ask again when something changes."""

    why: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """No node can take it, and waiting does not help."""

    reason: Reason
    detail: str


class Route(msgspec.Struct, frozen=True, gc=False):
    """The answer, and all that led to it. `candidate_count` is before the shortlist;
    `boundary` ends what is held anywhere of the prompt, at `boundary_tokens`."""

    demand: Demand
    rows: Sequence[Row]
    candidate_count: int
    answer: Choice | Hold | Refusal
    boundary: BlockHash | None = None
    boundary_tokens: int = 0
    looked: bool = True  # whether any node was

    def but(self, answer: Hold | Refusal) -> "Route":
        """The same rows with another answer than the policy's."""
        return Route(self.demand, self.rows, self.candidate_count, answer, looked=self.looked)


class Work(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one request adds to its node until it settles. Booked once, unbooked once.

    `prefill_s` is work, without the engine's fixed latency: it adds up in a queue. `hit_share` is
    what the node holds of the prompt.
    """

    new_tokens: int
    attention: float
    prefill_s: float
    hit_share: float
    kv_tokens: int
    output_tokens: int


class LeaseState(StrEnum):
    """How firm a lease is."""

    RESERVED = "reserved"  # placed, no token yet
    COMMITTED = "committed"  # its prefill is over: the blocks are taken


class Segments(msgspec.Struct, frozen=True, gc=False):
    """A prompt cut where others may part from it: the hash of each segment's end in the chain, and
    the node's blocks up to there."""

    marks: Sequence[BlockHash]
    ends: Sequence[int]

    @property
    def blocks(self) -> int:
        return self.ends[-1] if self.ends else 0


NO_SEGMENTS = Segments((), ())


class Footprint(msgspec.Struct, frozen=True, gc=False):
    """KV blocks that a request holds while it runs, and those of them that it may share."""

    blocks: int
    segments: Segments


class Lease(msgspec.Struct, frozen=True, gc=False):
    """KV blocks of one node, promised to one request: its own, and its part in `segments`, which
    others may hold as well."""

    request_id: RequestId
    node_id: NodeId
    own_blocks: int
    segments: Segments
    state: LeaseState


class Credit(msgspec.Struct, frozen=True, gc=False):
    """Blocks that a placement added to a node's account, for taking them back."""

    slot: Slot
    unit: Unit
    hashes: Sequence[BlockHash]


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A held request: since when it waits, and until when it may. `tokens` is what it asks for,
    prompt and output; `lane` its class by that; `is_very_long` whether its prompt is of those that
    have a quota. `load` is the share of its nodes that was taken when it came."""

    attempt: Attempt
    since_s: float
    deadline_s: float
    tokens: int
    lane: int
    is_very_long: bool
    load: float

    @property
    def request(self) -> Request:
        return self.attempt.request

    @property
    def arrived_s(self) -> float:
        return self.attempt.arrived_s
