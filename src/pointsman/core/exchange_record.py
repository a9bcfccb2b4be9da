"""What is counted and logged of a request when it is over."""

from enum import StrEnum
from typing import Final

from pointsman.core.errors import EndCause, Reason
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.core.value import Value


class ExchangeRecord(Value):
    """How one request went. None is "did not happen" or "was not said", never zero.

    `node`, `policy` and `why` are of the last placement. `reason` is set where the answer is
    the gateway's own, or where an answer broke off. `queue_s` runs from arrival to the first
    placement, `ttft_s` from arrival to the first byte for the client (the client's view;
    `Outcome.ttft_s` is the node's), `e2e_s` from arrival to the end. `streamed_tokens` are
    events that passed, about one a token. `cached_tokens_predicted` is the decision's hit.
    `bytes_out` is the body as the engine sent it. `key` is the name of the client's key, empty
    where there is none.
    """

    __match_args__ = (
        "request_id",
        "endpoint",
        "model",
        "key",
        "node",
        "policy",
        "why",
        "status",
        "end",
        "reason",
        "streamed",
        "attempts",
        "queue_s",
        "ttft_s",
        "e2e_s",
        "prompt_tokens",
        "output_tokens",
        "streamed_tokens",
        "cached_tokens_predicted",
        "cached_tokens",
        "bytes_in",
        "bytes_out",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        *,
        request_id: RequestId,
        endpoint: StrEnum,
        model: ModelName,
        key: str,
        node: NodeName | None,
        policy: str,
        why: str,
        status: int | None,
        end: EndCause,
        reason: Reason | None,
        streamed: bool,
        attempts: int,
        queue_s: float | None,
        ttft_s: float | None,
        e2e_s: float,
        prompt_tokens: int | None,
        output_tokens: int | None,
        streamed_tokens: int,
        cached_tokens_predicted: int | None,
        cached_tokens: int | None,
        bytes_in: int,
        bytes_out: int,
    ) -> None:
        self.request_id: Final = request_id
        self.endpoint: Final = endpoint
        self.model: Final = model
        self.key: Final = key
        self.node: Final = node
        self.policy: Final = policy
        self.why: Final = why
        self.status: Final = status
        self.end: Final = end
        self.reason: Final = reason
        self.streamed: Final = streamed
        self.attempts: Final = attempts
        self.queue_s: Final = queue_s
        self.ttft_s: Final = ttft_s
        self.e2e_s: Final = e2e_s
        self.prompt_tokens: Final = prompt_tokens
        self.output_tokens: Final = output_tokens
        self.streamed_tokens: Final = streamed_tokens
        self.cached_tokens_predicted: Final = cached_tokens_predicted
        self.cached_tokens: Final = cached_tokens
        self.bytes_in: Final = bytes_in
        self.bytes_out: Final = bytes_out
