"""Interfaces between shells that must not import each other; each has two implementations.

A port's docstring is its contract: both sides are tested against it.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from pointsman.core.decision import Decision
from pointsman.core.errors import FailureKind
from pointsman.core.events import Event, ModelCard
from pointsman.core.homes import Keeper
from pointsman.core.ids import ModelName, RequestId
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Verdict
from pointsman.wire.endpoints import Endpoint

VerdictSink = Callable[[Verdict], None]
"""Told each verdict about one request, on the thread that owns the placer. May be called
before the call that caused it returns. After Held, Placed or Refused follows; after Placed,
Recalled may, and is answered by `failed` unless it is void."""


class Placer(Protocol):
    """The gateway's view of the scheduler: in this process, or behind the control protocol.

    For each request: `arrive` once; then, after each Placed, `failed` (answered by a new
    verdict) or `started` and later `settle`. `settle` is due exactly once after `arrive`
    unless the last verdict was Refused, also while the request is held; a second one
    changes nothing. No call blocks or raises for a request's sake.
    """

    def arrive(self, request: Request, on_verdict: VerdictSink) -> None: ...

    def started(self, request_id: RequestId) -> None: ...

    def failed(self, request_id: RequestId, kind: FailureKind) -> None: ...

    def settle(self, request_id: RequestId, outcome: Outcome) -> None: ...

    def models(self) -> Sequence[ModelCard]:
        """What the cluster serves, each name once, from the registry: no node is asked."""
        ...

    def ready(self) -> bool:
        """Whether at least one node can take a request."""
        ...

    def keeper(self, response_id: str) -> Keeper | None:
        """Who keeps a response of the Responses API; None where that is not known."""
        ...


TokensSink = Callable[["array[int] | None"], None]
"""Told a prompt's token ids, on the loop's thread; None where they are not known."""


class PromptTokenizer(Protocol):
    """Turns prompts into the token ids that engines see.

    `tokenize` tells `deliver` exactly once, with None where the ids cannot be told exactly, or
    not in time. It returns None if that was before it returned, and else what withdraws the
    prompt: `deliver` is not told after that. Never raises, and never holds up the loop for
    more than about a millisecond.
    """

    def tokenize(
        self, model: ModelName, endpoint: Endpoint, body: bytes, deliver: TokensSink
    ) -> Callable[[], None] | None: ...


class DecisionSink(Protocol):
    """Keeps or forwards decision records; bounded, and never slows the decision down."""

    def record(self, decision: Decision) -> None: ...


class NodeSink(Protocol):
    """Takes what is learned of nodes, as events: the scheduler in this process, or an agent
    that passes it on.

    A `NodeJoined` is answered before `submit` returns: the collector's link is told the
    incarnation that its further events name.
    """

    @property
    def now_s(self) -> Callable[[], float]:
        """The clock that events are dated by."""
        ...

    def submit(self, event: Event) -> None: ...
