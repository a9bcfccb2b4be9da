"""What the scheduler is told of requests, and what it answers to that."""

from enum import StrEnum
from typing import Final

from pointsman.core.decision import Decision
from pointsman.core.errors import FailureKind, Reason
from pointsman.core.ids import NodeId, NodeName, RequestId
from pointsman.core.request import Outcome, Request
from pointsman.core.value import Value

# --- events -----------------------------------------------------------------------------


class Arrived(Value):
    """A client's request. Answered by exactly one of Placed, Held or Refused."""

    __match_args__ = ("request",)
    __slots__ = __match_args__

    def __init__(self, request: Request) -> None:
        self.request: Final = request


class Started(Value):
    """The first byte of the node's answer is there: its prefill is over."""

    __match_args__ = ("request_id",)
    __slots__ = __match_args__

    def __init__(self, request_id: RequestId) -> None:
        self.request_id: Final = request_id


class Failed(Value):
    """The attempt on the placed node ended before its first byte. Answered by Placed, inside the
    retry budget, Held (it was recalled) or Refused."""

    __match_args__ = ("request_id", "kind")
    __slots__ = __match_args__

    def __init__(self, request_id: RequestId, kind: FailureKind) -> None:
        self.request_id: Final = request_id
        self.kind: Final = kind


class Settled(Value):
    """The request is over, whichever way. From any state; a second one changes nothing."""

    __match_args__ = ("request_id", "outcome")
    __slots__ = __match_args__

    def __init__(self, request_id: RequestId, outcome: Outcome) -> None:
        self.request_id: Final = request_id
        self.outcome: Final = outcome


# --- effects ----------------------------------------------------------------------------


class Placed(Value):
    """Send the request to this node. The lease stands until `Failed` or `Settled`."""

    __match_args__ = ("request_id", "node_id", "node", "url", "decision")
    __slots__ = __match_args__

    def __init__(
        self, request_id: RequestId, node_id: NodeId, node: NodeName, url: str, decision: Decision
    ) -> None:
        self.request_id: Final = request_id
        self.node_id: Final = node_id
        self.node: Final = node
        self.url: Final = url
        self.decision: Final = decision


class Held(Value):
    """Wait: Placed or Refused follows. `position` counts from 1."""

    __match_args__ = ("request_id", "position", "decision")
    __slots__ = __match_args__

    def __init__(self, request_id: RequestId, position: int, decision: Decision) -> None:
        self.request_id: Final = request_id
        self.position: Final = position
        self.decision: Final = decision


class RecallCause(StrEnum):
    """Why a placement is taken back."""

    NODE_DOWN = "node_down"
    PREEMPTED = "preempted"


class Recalled(Value):
    """Abort the attempt there, and say `Failed(RECALLED)`; after a byte only if it `breaks`."""

    __match_args__ = ("request_id", "node_id", "cause", "breaks")
    __slots__ = __match_args__

    def __init__(
        self, request_id: RequestId, node_id: NodeId, cause: RecallCause, breaks: bool = False
    ) -> None:
        self.request_id: Final = request_id
        self.node_id: Final = node_id
        self.cause: Final = cause
        self.breaks: Final = breaks


class CompensationCause(StrEnum):
    """Why what was booked for a request is given back before anybody told of its end."""

    MISSING = "missing"  # its engine has not counted it for a while
    SILENT = "silent"  # no request may last as long


class Compensated(Value):
    """So many KV blocks and a place on the node were given back. The request is not over: what is
    told of it still counts, once."""

    __match_args__ = ("request_id", "node_id", "cause", "blocks", "decision")
    __slots__ = __match_args__

    def __init__(
        self,
        request_id: RequestId,
        node_id: NodeId,
        cause: CompensationCause,
        blocks: int,
        decision: Decision,
    ) -> None:
        self.request_id: Final = request_id
        self.node_id: Final = node_id
        self.cause: Final = cause
        self.blocks: Final = blocks
        self.decision: Final = decision


class Refused(Value):
    """Tell the client no. `detail` names what was asked for and the remedy."""

    __match_args__ = ("request_id", "reason", "retry_after_s", "detail", "decision")
    __slots__ = __match_args__

    def __init__(
        self,
        request_id: RequestId,
        reason: Reason,
        retry_after_s: float | None,
        detail: str,
        decision: Decision,
    ) -> None:
        self.request_id: Final = request_id
        self.reason: Final = reason
        self.retry_after_s: Final = retry_after_s
        self.detail: Final = detail
        self.decision: Final = decision


Verdict = Placed | Held | Refused | Recalled
