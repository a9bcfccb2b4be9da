"""What the gateway tells whoever counts and logs: one record for each exchange, at its end."""

from enum import StrEnum
from typing import Protocol

import msgspec

from pointsman.core.errors import EndCause, Reason
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.wire.openai import Endpoint


class ExchangeRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How one request went. None is "did not happen" or "was not said", never zero.

    `node`, `policy` and `why` are of the last placement. `reason` is set where the answer is
    the gateway's own, or where an answer broke off. `queue_s` runs from arrival to the first
    placement, `ttft_s` from arrival to the first byte for the client (the client's view;
    `Outcome.ttft_s` is the node's), `e2e_s` from arrival to the end. `streamed_tokens` are
    events that passed, about one a token. `cached_tokens_predicted` is the decision's hit.
    `bytes_out` is the body as the engine sent it. `key` is the name of the client's key, empty
    where there is none.
    """

    request_id: RequestId
    endpoint: Endpoint
    model: ModelName
    key: str
    node: NodeName | None
    policy: str
    why: str
    status: int | None
    end: EndCause
    reason: Reason | None
    streamed: bool
    attempts: int
    queue_s: float | None
    ttft_s: float | None
    e2e_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    streamed_tokens: int
    cached_tokens_predicted: int | None
    cached_tokens: int | None
    bytes_in: int
    bytes_out: int


class ReplayResult(StrEnum):
    """What came of a request that was replayed to warm a node up."""

    COMPUTED = "computed"
    REFUSED = "refused"
    """The engine has answered, and not with 200."""
    LOST = "lost"
    """It is not reached, or its answer broke off."""
    LATE = "late"
    """The warm-up's time has passed."""


class GatewayObserver(Protocol):
    """Called on the loop's thread, between two events: quick, bounded, and never raising."""

    def exchange_ended(self, record: ExchangeRecord) -> None:
        """A request on an engine's route is over, served or refused."""
        ...

    def client_refused(self, reason: Reason) -> None:
        """A client was turned away before its request became an exchange."""
        ...

    def replayed(self, result: ReplayResult) -> None:
        """A replay is over."""
        ...
