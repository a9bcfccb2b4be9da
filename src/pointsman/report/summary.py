"""Numbers from records.

throughput    requests that ended well / duration
goodput       requests that ended well and met the objective (`Slo.met`) / duration
hit ratio     sum of cached prompt tokens / sum of prompt tokens, over the requests for which
              the engine reported both; None where it reported none (unknown is not zero)
"""

from collections.abc import Iterable, Sequence

import msgspec

from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.quantile import quantile
from pointsman.traffic.slo import Slo

CAUSES_MAX = 20
"""Causes listed; what is left is summed up as `other`."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of one duration, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class NodeShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one node served; shares are of the run's requests that ended well."""

    node: str
    requests: int
    request_share: float
    input_tokens: int
    token_share: float
    hit_ratio: float | None
    ttft_s: Quantiles | None


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one cause, with the message of the first."""

    outcome: str
    cause: str
    requests: int
    example: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers. Latencies are of requests that ended well."""

    requests: int
    ok: int
    errors: int
    interrupted: int
    duration_s: float
    throughput_rps: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    slo: Slo
    goodput_rps: float
    slo_attainment: float
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    e2e_s: Quantiles | None
    lag_s: Quantiles | None
    hit_ratio: float | None
    hit_ratio_requests: int
    ideal_hit_ratio: float | None
    nodes: tuple[NodeShare, ...]
    error_groups: tuple[ErrorGroup, ...]


def summarize_records(
    records: Sequence[RequestRecord],
    *,
    duration_s: float,
    slo: Slo,
    ideal_hit_ratio: float | None = None,
) -> Summary:
    """Everything a report shows in numbers."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    errors = sum(record.failed for record in records)
    good = sum(map(slo.met, ok))
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    answered = len(ok) + errors
    return Summary(
        requests=len(records),
        ok=len(ok),
        errors=errors,
        interrupted=len(records) - answered,
        duration_s=duration_s,
        throughput_rps=len(ok) * per_s,
        prompt_tokens_per_s=sum(map(_prompt_tokens, ok)) * per_s,
        completion_tokens_per_s=sum(record.completion_tokens or record.chunks for record in ok)
        * per_s,
        slo=slo,
        goodput_rps=good * per_s,
        slo_attainment=good / answered if answered else 0.0,
        ttft_s=quantiles(record.ttft_s for record in ok),
        tpot_s=quantiles(record.tpot_s for record in ok),
        e2e_s=quantiles(record.e2e_s for record in ok),
        lag_s=quantiles(record.lag_s for record in records),
        hit_ratio=hit_ratio(ok),
        hit_ratio_requests=sum(map(_reports_hits, ok)),
        ideal_hit_ratio=ideal_hit_ratio,
        nodes=_node_shares(ok),
        error_groups=error_groups(records),
    )


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    """None values are left out; None if nothing is left."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    p50, p95, p99 = (quantile(ordered, share) for share in (0.50, 0.95, 0.99))
    mean = sum(ordered) / len(ordered)
    return Quantiles(mean=mean, p50=p50, p95=p95, p99=p99, max=ordered[-1])


def hit_ratio(records: Iterable[RequestRecord]) -> float | None:
    """Token-weighted, over the records that report it."""
    reporting = [record for record in records if _reports_hits(record)]
    prompt_tokens = sum(record.prompt_tokens or 0 for record in reporting)
    cached_tokens = sum(record.cached_tokens or 0 for record in reporting)
    return cached_tokens / prompt_tokens if prompt_tokens else None


def error_groups(records: Iterable[RequestRecord]) -> tuple[ErrorGroup, ...]:
    """Errors by outcome and cause, the most frequent first; at most CAUSES_MAX and the rest."""
    groups: dict[tuple[str, str], list[RequestRecord]] = {}
    for record in records:
        if record.failed:
            groups.setdefault((record.outcome.value, record.cause), []).append(record)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    listed = [
        ErrorGroup(outcome=outcome, cause=cause, requests=len(group), example=group[0].detail)
        for (outcome, cause), group in ordered[:CAUSES_MAX]
    ]
    rest = sum(len(group) for _, group in ordered[CAUSES_MAX:])
    if rest:
        listed.append(ErrorGroup(outcome="other", cause="other", requests=rest, example=""))
    return tuple(listed)


def _reports_hits(record: RequestRecord) -> bool:
    return record.prompt_tokens is not None and record.cached_tokens is not None


def _prompt_tokens(record: RequestRecord) -> int:
    return record.input_tokens if record.prompt_tokens is None else record.prompt_tokens


def _node_shares(ok: Sequence[RequestRecord]) -> tuple[NodeShare, ...]:
    """By name; empty where the target names no nodes."""
    by_node: dict[str, list[RequestRecord]] = {}
    for record in ok:
        if record.node:
            by_node.setdefault(record.node, []).append(record)
    tokens_all = sum(map(_prompt_tokens, ok))
    shares = []
    for node in sorted(by_node):
        records = by_node[node]
        tokens = sum(map(_prompt_tokens, records))
        shares.append(
            NodeShare(
                node=node,
                requests=len(records),
                request_share=len(records) / len(ok),
                input_tokens=tokens,
                token_share=tokens / tokens_all if tokens_all else 0.0,
                hit_ratio=hit_ratio(records),
                ttft_s=quantiles(record.ttft_s for record in records),
            )
        )
    return tuple(shares)
