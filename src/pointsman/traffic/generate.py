"""Workloads made up from a seed, each isolating one thing a scheduler can be good or bad at.

`shared_prefix`: tenants with long system prompts; whoever keeps a tenant together saves prefill.
`long_tail`: lengths from a heavy tail and nothing shared; whoever counts requests balances badly.
`chat`: conversations that grow; whoever keeps a conversation on its node saves almost everything.

Each takes the number of requests, the arrival rate (Poisson), a seeded generator and sizes in
tokens, and returns requests in arrival order. Same seed, same requests.
"""

import math
from itertools import count as counter
from random import Random

from msgspec.structs import replace

from pointsman.traffic.arrivals import poisson
from pointsman.traffic.request import TrafficRequest

BLOCK_TOKENS = 16
"""vLLM's default block size: finer sharing than this no engine can use."""


def shared_prefix(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    tenants: int = 8,
    system_tokens: int = 4096,
    question_tokens: int = 128,
    output_tokens: int = 64,
) -> tuple[TrafficRequest, ...]:
    """Every request is one tenant's system prompt and a question of its own.

    Tenants take turns in an order shuffled anew each round, so each gets its even share.
    `system_tokens` is rounded up to whole blocks.
    """
    _positive(requests=requests, tenants=tenants, question_tokens=question_tokens)
    system_blocks = _blocks(system_tokens)
    made = []
    order: list[int] = []
    for _ in range(requests):
        if not order:
            order = rng.sample(range(tenants), tenants)
        tenant = order.pop()
        first = tenant * system_blocks
        made.append(
            TrafficRequest(
                at_s=0.0,
                input_tokens=system_blocks * BLOCK_TOKENS + question_tokens,
                output_tokens=output_tokens,
                block_ids=tuple(range(first, first + system_blocks)),
                block_tokens=BLOCK_TOKENS,
                tenant=f"tenant-{tenant}",
            )
        )
    return poisson(made, rate_rps=rate_rps, rng=rng)


def long_tail(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    input_tokens_p50: int = 512,
    output_tokens_p50: int = 96,
    sigma: float = 1.2,
    input_tokens_max: int = 32_768,
    output_tokens_max: int = 2_048,
) -> tuple[TrafficRequest, ...]:
    """Distinct prompts with log-normal lengths (median, `sigma` of the logarithm), cut at a limit.

    With sigma 1.2 the longest 1 % are over 16 times the median, near Azure's code trace.
    """
    _positive(requests=requests, input_tokens_p50=input_tokens_p50, sigma=sigma)
    made = [
        TrafficRequest(
            at_s=0.0,
            input_tokens=_log_normal(rng, input_tokens_p50, sigma, input_tokens_max),
            output_tokens=_log_normal(rng, output_tokens_p50, sigma, output_tokens_max),
        )
        for _ in range(requests)
    ]
    return poisson(made, rate_rps=rate_rps, rng=rng)


def chat(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    turns_mean: float = 5.0,
    system_tokens: int = 512,
    question_tokens_p50: int = 96,
    output_tokens_p50: int = 160,
    think_s_mean: float = 5.0,
    decode_rate_tps: float = 50.0,
) -> tuple[TrafficRequest, ...]:
    """Conversations: the prompt of turn n + 1 is the prompt and the answer of turn n, and more.

    All share one system prompt. The number of turns is geometric, think times are exponential.
    Conversations start so that requests arrive at `rate_rps` on average; in an open loop a turn
    comes after the previous one's answer (at `decode_rate_tps`) and the think time. All lengths
    are whole blocks, so that each turn's blocks are a strict prefix of the next one's.
    """
    _positive(requests=requests, turns_mean=turns_mean - 1 + 1e-9, rate_rps=rate_rps)
    ids = counter(_blocks(system_tokens))
    system_ids = tuple(range(_blocks(system_tokens)))
    made: list[TrafficRequest] = []
    start_s = 0.0
    session = 0
    while len(made) < requests:
        at_s, blocks, turn, think_s = start_s, system_ids, 0, 0.0
        while len(made) < requests:
            blocks += _take(ids, _log_normal(rng, question_tokens_p50, 0.8, 2_048))
            output_blocks = _blocks(_log_normal(rng, output_tokens_p50, 0.6, 1_024))
            made.append(
                TrafficRequest(
                    at_s=at_s,
                    input_tokens=len(blocks) * BLOCK_TOKENS,
                    output_tokens=output_blocks * BLOCK_TOKENS,
                    block_ids=blocks,
                    block_tokens=BLOCK_TOKENS,
                    session=f"chat-{session}",
                    turn=turn,
                    think_s=think_s,
                )
            )
            if rng.random() < 1 / turns_mean:
                break
            blocks += _take(ids, output_blocks * BLOCK_TOKENS)
            think_s = rng.expovariate(1 / think_s_mean) if think_s_mean > 0 else 0.0
            at_s += output_blocks * BLOCK_TOKENS / decode_rate_tps + think_s
            turn += 1
        start_s += rng.expovariate(rate_rps / turns_mean)
        session += 1
    first_s = min(request.at_s for request in made)
    ordered = sorted(made, key=lambda request: (request.at_s, request.session, request.turn))
    return tuple(replace(request, at_s=request.at_s - first_s) for request in ordered)


def _take(ids: "counter[int]", tokens: int) -> tuple[int, ...]:
    return tuple(next(ids) for _ in range(_blocks(tokens)))


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _log_normal(rng: Random, median: int, sigma: float, maximum: int) -> int:
    return max(1, min(round(rng.lognormvariate(math.log(median), sigma)), maximum))


def _positive(**sizes: float) -> None:
    for name, value in sizes.items():
        if value <= 0:
            raise ValueError(f"{name} must be above 0, not {value}")
