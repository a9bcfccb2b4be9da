"""What came of an exchange that has ended, from all that took part in it."""

from pointsman.core.errors import EndCause, Reason
from pointsman.core.exchange import Exchange
from pointsman.core.exchange_record import ExchangeRecord
from pointsman.core.request import Outcome
from pointsman.core.request_events import Placed
from pointsman.gateway.arrival import Arrival
from pointsman.gateway.relay import Relay
from pointsman.wire.usage import Said


def ended(
    exchange: Exchange, cause: EndCause, now_s: float, *, status: int | None, relay: Relay | None
) -> Outcome:
    """End the exchange, with what its relay has seen pass by."""
    said = Said() if relay is None else relay.said()
    usage = said.usage
    scanner = None if relay is None else relay.scanner
    return exchange.ended(
        cause,
        now_s,
        status=status,
        streamed=scanner is not None,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        output_tokens=None if usage is None else usage.completion_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        streamed_tokens=0 if scanner is None else scanner.events,
        first_tokens=0 if relay is None else relay.first_events,
        response_id=said.response_id,
    )


def exchange_record(
    exchange: Exchange,
    outcome: Outcome,
    reason: Reason | None,
    arrival: Arrival,
    placed: Placed | None,
    *,
    bytes_out: int,
) -> ExchangeRecord:
    """The record of an exchange that has ended."""
    ended_s = exchange.arrived_s if exchange.ended_s is None else exchange.ended_s
    first_byte_s = exchange.first_byte_s
    decision = None if placed is None else placed.decision
    return ExchangeRecord(
        request_id=exchange.request_id,
        endpoint=arrival.endpoint,
        model=arrival.model,
        key=arrival.key,
        node=None if placed is None else placed.node,
        policy="" if decision is None else decision.policy,
        why="" if decision is None else decision.why,
        status=outcome.status,
        end=outcome.end,
        reason=reason,
        streamed=outcome.streamed,
        attempts=exchange.attempts,
        queue_s=exchange.queue_s,
        ttft_s=None if first_byte_s is None else first_byte_s - exchange.arrived_s,
        e2e_s=ended_s - exchange.arrived_s,
        prompt_tokens=outcome.prompt_tokens,
        output_tokens=outcome.output_tokens,
        streamed_tokens=outcome.streamed_tokens,
        cached_tokens_predicted=None if decision is None else decision.hit_tokens,
        cached_tokens=outcome.cached_tokens,
        bytes_in=arrival.bytes_in,
        bytes_out=bytes_out,
    )
