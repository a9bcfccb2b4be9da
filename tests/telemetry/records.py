"""Finished requests, and decisions about them, for tests."""

from pointsman.core.decision import Decision, Ruling
from pointsman.core.errors import EndCause, Reason
from pointsman.core.exchange_record import ExchangeRecord
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.core.row import Row
from pointsman.wire.endpoints import Endpoint

STREAMED = ExchangeRecord(
    request_id=RequestId("r-1"),
    endpoint=Endpoint.CHAT,
    model=ModelName("m"),
    key="",
    node=NodeName("n1"),
    policy="marginal_cost",
    why="least marginal cost",
    status=200,
    end=EndCause.FINISHED,
    reason=None,
    streamed=True,
    attempts=1,
    queue_s=0.001,
    ttft_s=0.2,
    e2e_s=1.2,
    prompt_tokens=100,
    output_tokens=11,
    streamed_tokens=11,
    cached_tokens_predicted=64,
    cached_tokens=48,
    bytes_in=400,
    bytes_out=900,
)
"""A good answer."""


def refused(reason: Reason, status: int, model: str = "m") -> ExchangeRecord:
    return STREAMED.but(
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


def decision(
    name: str,
    *,
    node: str = "n",
    model: str = "m",
    attempt: int = 1,
    candidates: tuple[Row, ...] = (),
) -> Decision:
    """A placement."""
    return Decision(
        request_id=RequestId(name),
        model=ModelName(model),
        at_s=0.0,
        ruling=Ruling.PLACED,
        policy="round_robin",
        why="next in turn",
        node=NodeName(node),
        attempt=attempt,
        prompt_tokens=1,
        output_tokens_expected=1,
        hit_tokens=0,
        queued_s=0.0,
        candidate_count=1,
        tie_count=1,
        candidates=candidates,
        excluded=(),
    )
