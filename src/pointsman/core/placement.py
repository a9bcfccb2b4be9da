"""What a placement is made of: the question, the answer, and what is booked for it."""

from collections.abc import Sequence
from typing import Final

from pointsman.core.errors import Reason
from pointsman.core.ids import BlockHash, NodeId, Slot
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.scheme import Unit
from pointsman.core.value import Value


class Attempt(Value):
    """One try to place a request, which came at `arrived_s`.

    tried    nodes that it failed on; so many of them were `busy`
    avoided  nodes that are left out this time
    recalls  how often it was taken back from a node
    """

    __match_args__ = ("request", "arrived_s", "tried", "avoided", "recalls", "busy")
    __slots__ = __match_args__

    def __init__(
        self,
        request: Request,
        arrived_s: float,
        *,
        tried: tuple[NodeId, ...] = (),
        avoided: tuple[NodeId, ...] = (),
        recalls: int = 0,
        busy: int = 0,
    ) -> None:
        self.request: Final = request
        self.arrived_s: Final = arrived_s
        self.tried: Final = tried
        self.avoided: Final = avoided
        self.recalls: Final = recalls
        self.busy: Final = busy

    @property
    def number(self) -> int:
        """Which try it is, from 1."""
        return len(self.tried) + self.recalls + 1


class Demand(Value):
    """What a request asks of any node, in tokens: its prompt, and the output expected.
    `context_tokens` is what a context must hold, as far as that is certain."""

    __match_args__ = ("prompt_tokens", "output_tokens", "context_tokens")
    __slots__ = __match_args__

    def __init__(self, prompt_tokens: int, output_tokens: int, context_tokens: int = 0) -> None:
        self.prompt_tokens: Final = prompt_tokens
        self.output_tokens: Final = output_tokens
        self.context_tokens: Final = context_tokens


class Choice(Value):
    """Place it there. `ties` counts the rows that were as good, the chosen one included."""

    __match_args__ = ("row", "ties", "why")
    __slots__ = __match_args__

    def __init__(self, row: Row, ties: int, why: str) -> None:
        self.row: Final = row
        self.ties: Final = ties
        self.why: Final = why


class Hold(Value):
    """Keep it in the central queue; ask again when something changes."""

    __match_args__ = ("why",)
    __slots__ = __match_args__

    def __init__(self, why: str) -> None:
        self.why: Final = why


class Refusal(Value):
    """No node can take it, and waiting does not help."""

    __match_args__ = ("reason", "detail")
    __slots__ = __match_args__

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason: Final = reason
        self.detail: Final = detail


class Route(Value):
    """The answer, and all that led to it. `candidate_count` is before the shortlist. `boundary` is
    the last of the prompt's blocks that any node holds; it ends at `boundary_tokens`."""

    __match_args__ = (
        "demand",
        "rows",
        "candidate_count",
        "answer",
        "boundary",
        "boundary_tokens",
        "looked",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        demand: Demand,
        rows: Sequence[Row],
        candidate_count: int,
        answer: Choice | Hold | Refusal,
        *,
        boundary: BlockHash | None = None,
        boundary_tokens: int = 0,
        looked: bool = True,
    ) -> None:
        self.demand: Final = demand
        self.rows: Final = rows
        self.candidate_count: Final = candidate_count
        self.answer: Final = answer
        self.boundary: Final = boundary
        self.boundary_tokens: Final = boundary_tokens
        self.looked: Final = looked

    def with_answer(self, answer: Hold | Refusal) -> "Route":
        """The same rows with another answer than the policy's."""
        return Route(self.demand, self.rows, self.candidate_count, answer, looked=self.looked)


class Work(Value):
    """What one request adds to its node until it settles. Booked once, unbooked once.

    `prefill_s` is work, without the engine's fixed latency: it adds up in a queue. `hit_share` is
    what the node holds of the prompt.
    """

    __match_args__ = (
        "new_tokens",
        "attention",
        "prefill_s",
        "hit_share",
        "kv_tokens",
        "output_tokens",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        *,
        new_tokens: int,
        attention: float,
        prefill_s: float,
        hit_share: float,
        kv_tokens: int,
        output_tokens: int,
    ) -> None:
        self.new_tokens: Final = new_tokens
        self.attention: Final = attention
        self.prefill_s: Final = prefill_s
        self.hit_share: Final = hit_share
        self.kv_tokens: Final = kv_tokens
        self.output_tokens: Final = output_tokens


class Segments(Value):
    """A prompt cut where others may part from it. `marks` are the hashes of the blocks that end its
    segments, `ends` how many of the node's blocks there are up to each."""

    __match_args__ = ("marks", "ends")
    __slots__ = __match_args__

    def __init__(self, marks: Sequence[BlockHash], ends: Sequence[int]) -> None:
        self.marks: Final = marks
        self.ends: Final = ends

    @property
    def blocks(self) -> int:
        return self.ends[-1] if self.ends else 0


NO_SEGMENTS = Segments((), ())


class Footprint(Value):
    """KV blocks that a request holds while it runs, and those of them that it may share."""

    __match_args__ = ("blocks", "segments")
    __slots__ = __match_args__

    def __init__(self, blocks: int, segments: Segments) -> None:
        self.blocks: Final = blocks
        self.segments: Final = segments


class Credit(Value):
    """Blocks that a placement added to a node's account, for taking them back."""

    __match_args__ = ("slot", "unit", "hashes")
    __slots__ = __match_args__

    def __init__(self, slot: Slot, unit: Unit, hashes: Sequence[BlockHash]) -> None:
        self.slot: Final = slot
        self.unit: Final = unit
        self.hashes: Final = hashes


class Waiting(Value):
    """A held request: since when it waits, and until when it may. `tokens` is what it asks for,
    prompt and output; `lane` its class by that; `is_very_long` whether its prompt is of those that
    have a quota. `load` is the share of its nodes that was taken when it came."""

    __match_args__ = ("attempt", "since_s", "deadline_s", "tokens", "lane", "is_very_long", "load")
    __slots__ = __match_args__

    def __init__(
        self,
        attempt: Attempt,
        *,
        since_s: float,
        deadline_s: float,
        tokens: int,
        lane: int,
        is_very_long: bool,
        load: float,
    ) -> None:
        self.attempt: Final = attempt
        self.since_s: Final = since_s
        self.deadline_s: Final = deadline_s
        self.tokens: Final = tokens
        self.lane: Final = lane
        self.is_very_long: Final = is_very_long
        self.load: Final = load

    @property
    def request(self) -> Request:
        return self.attempt.request

    @property
    def arrived_s(self) -> float:
        return self.attempt.arrived_s
