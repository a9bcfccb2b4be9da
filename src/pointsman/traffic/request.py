"""One request to be sent: its lengths, its prefix, its place in a conversation."""

from collections.abc import Iterable, Sequence

import msgspec

from pointsman.traffic.quantile import quantile

BLOCK_TOKENS_MAX = 4096
"""Engines use blocks of 8 to 1,024 tokens and traces up to 512; prompts are written in pieces of
at most this size."""


class TrafficRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a client asks for, without the text.

    `block_ids` name the prompt's leading blocks of `block_tokens` tokens. They are chained: an id
    always has the same predecessor, so two prompts share exactly their common leading ids. They
    may be empty (nothing known) or cover less than the prompt; the rest is the request's own.
    `at_s` counts from the start of the run. `think_s` is the pause after the previous turn's end.
    `part` names the part of mixed traffic that it belongs to.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    session: str = ""
    turn: int = 0
    think_s: float = 0.0
    tenant: str = ""
    priority: int = 0
    part: str = ""


class TrafficSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in numbers: lengths in tokens, `rate_rps` over the span of the arrivals."""

    requests: int
    sessions: int
    span_s: float
    rate_rps: float
    input_tokens_mean: float
    input_tokens_p50: int
    input_tokens_p99: int
    output_tokens_mean: float
    output_tokens_p50: int
    output_tokens_p99: int


def summarize(requests: Sequence[TrafficRequest]) -> TrafficSummary:
    """Describe a stream in arrival order; quantiles of none are 0."""
    inputs = sorted(request.input_tokens for request in requests)
    outputs = sorted(request.output_tokens for request in requests)
    span_s = requests[-1].at_s - requests[0].at_s if requests else 0.0
    return TrafficSummary(
        requests=len(requests),
        sessions=len({request.session for request in requests if request.session}),
        span_s=span_s,
        rate_rps=len(requests) / span_s if span_s > 0 else 0.0,
        input_tokens_mean=_mean(inputs),
        input_tokens_p50=quantile(inputs or [0], 0.50),
        input_tokens_p99=quantile(inputs or [0], 0.99),
        output_tokens_mean=_mean(outputs),
        output_tokens_p50=quantile(outputs or [0], 0.50),
        output_tokens_p99=quantile(outputs or [0], 0.99),
    )


def conversations(requests: Iterable[TrafficRequest]) -> list[list[TrafficRequest]]:
    """Group turns by session, keeping arrival order; a request without a session stands alone."""
    grouped: dict[str, list[TrafficRequest]] = {}
    ordered: list[list[TrafficRequest]] = []
    for request in requests:
        known = grouped.get(request.session) if request.session else None
        if known is not None:
            known.append(request)
            continue
        fresh = [request]
        ordered.append(fresh)
        if request.session:
            grouped[request.session] = fresh
    return ordered


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
