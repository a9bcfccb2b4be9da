"""Finished requests for tests."""

import msgspec

from pointsman.core.errors import EndCause, Reason
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.wire.endpoints import Endpoint


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A good streamed answer, unless a field says otherwise."""

    request_id: RequestId = RequestId("r-1")
    endpoint: Endpoint | None = Endpoint.CHAT
    model: ModelName = ModelName("m")
    key: str = ""
    node: NodeName | None = NodeName("n1")
    policy: str = "marginal_cost"
    why: str = "least marginal cost"
    status: int | None = 200
    end: EndCause = EndCause.FINISHED
    reason: Reason | None = None
    streamed: bool = True
    attempts: int = 1
    queue_s: float | None = 0.001
    ttft_s: float | None = 0.2
    e2e_s: float = 1.2
    prompt_tokens: int | None = 100
    output_tokens: int | None = 11
    streamed_tokens: int = 11
    cached_tokens_predicted: int | None = 64
    cached_tokens: int | None = 48
    bytes_in: int = 400
    bytes_out: int = 900


def refused(reason: Reason, status: int, model: str = "m") -> Record:
    return Record(
        model=ModelName(model),
        node=None,
        policy="",
        why="",
        status=status,
        end=EndCause.REFUSED,
        reason=reason,
        streamed=False,
        attempts=0,
        queue_s=None,
        ttft_s=None,
        e2e_s=0.001,
        prompt_tokens=None,
        output_tokens=None,
        streamed_tokens=0,
        cached_tokens_predicted=None,
        cached_tokens=None,
    )
