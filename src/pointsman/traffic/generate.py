"""Workloads made up from a seed, each isolating one thing a scheduler can be good or bad at.

`shared_prefix`: tenants with long system prompts; whoever keeps a tenant together saves prefill.
`long_tail`: lengths from a heavy tail and nothing shared; whoever counts requests balances badly.
`chat`: conversations that grow; whoever keeps a conversation on its node saves almost everything.
`agentic`: few long sessions of many short answers, tools run in between; a session that leaves its
node pays its whole context again, and one node can be full of contexts.
`bursts`: plain requests that come in bursts; whoever looks at old loads sends a burst to one node.
`priority_mix`: plain requests of three priorities, too many for some time; who is to wait?
`tenant_mix`: a few tenants send most of the traffic; the others should hardly notice.

Each takes the number of requests, the arrival rate (Poisson), a seeded generator and sizes in
tokens, and returns requests in arrival order. Same seed, same requests.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterator
from itertools import count as counter
from random import Random

from msgspec.structs import replace

from pointsman.traffic.arrivals import on_off, poisson
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
    return _from_zero(made)


def agentic(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    turns_mean: float = 24.0,
    system_tokens: int = 8_192,
    task_tokens_p50: int = 8_192,
    result_tokens_p50: int = 384,
    output_tokens_p50: int = 160,
    tool_s_mean: float = 8.0,
    user_share: float = 0.1,
    user_s_mean: float = 60.0,
    input_tokens_max: int = 131_072,
    decode_rate_tps: float = 50.0,
) -> tuple[TrafficRequest, ...]:
    """Agents at work: `chat` with long contexts, tool results for questions, and tools for thought.

    All share tools and system prompt. A turn's answer is a tool call, and the next turn comes
    when the tool has run; a `user_share` of the turns waits for a person instead. A session ends
    at random, or when its prompt would exceed `input_tokens_max`. The defaults are near the
    medians of recorded coding sessions (24 turns, 22k tokens at the start, results of 280 tokens
    with a heavy tail, answers of 210, a median wait of 9 s).

    Sessions start at an even rate, of which the first `requests` turns to come are taken, so
    `rate_rps` is reached when the first sessions end.
    """
    _positive(
        requests=requests,
        turns_mean=turns_mean - 1 + 1e-9,
        rate_rps=rate_rps,
        input_tokens_max=input_tokens_max - system_tokens,
    )
    ids = counter(system_tokens // _AGENT_BLOCK_TOKENS)
    system_ids = tuple(range(system_tokens // _AGENT_BLOCK_TOKENS))

    def pause_s() -> float:
        mean_s = user_s_mean if rng.random() < user_share else tool_s_mean
        return rng.expovariate(1 / mean_s) if mean_s > 0 else 0.0

    def turns(session: int, at_s: float) -> Iterator[TrafficRequest]:
        tokens = system_tokens + _log_normal(
            rng, task_tokens_p50, 0.8, input_tokens_max - system_tokens
        )
        turn, think_s, block_ids = 0, 0.0, system_ids
        while tokens <= input_tokens_max:
            fresh = tokens // _AGENT_BLOCK_TOKENS - len(block_ids)
            block_ids += tuple(next(ids) for _ in range(fresh))
            output_tokens = _log_normal(rng, output_tokens_p50, 0.9, 4_096)
            yield TrafficRequest(
                at_s=at_s,
                input_tokens=tokens,
                output_tokens=output_tokens,
                block_ids=block_ids,
                block_tokens=_AGENT_BLOCK_TOKENS,
                session=f"agent-{session}",
                turn=turn,
                think_s=think_s,
            )
            if rng.random() < 1 / turns_mean:
                return
            tokens += output_tokens + _log_normal(rng, result_tokens_p50, 1.5, 16_384)
            think_s = pause_s()
            at_s += output_tokens / decode_rate_tps + think_s
            turn += 1

    return _first_of_sessions(turns, requests, session_rate_rps=rate_rps / turns_mean, rng=rng)


_AGENT_BLOCK_TOKENS = 64
"""Contexts of 100k tokens in blocks of 16 would be 6,000 ids a turn."""


def _first_of_sessions(
    turns: Callable[[int, float], Iterator[TrafficRequest]],
    requests: int,
    *,
    session_rate_rps: float,
    rng: Random,
) -> tuple[TrafficRequest, ...]:
    """Start sessions until no later one can have any of the first `requests` turns."""
    made: list[TrafficRequest] = []
    due_s: list[float] = []  # of all that are made, in order
    start_s, last_s = 0.0, math.inf
    for session in counter():
        if start_s > last_s:
            break
        for request in turns(session, start_s):
            if request.at_s > last_s:
                break
            made.append(request)
            insort(due_s, request.at_s)
            if len(due_s) >= requests:
                last_s = due_s[requests - 1]
        start_s += rng.expovariate(session_rate_rps)
    return _from_zero(made)[:requests]


def bursts(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    on_s_mean: float = 5.0,
    off_s_mean: float = 15.0,
    input_tokens_p50: int = 1_024,
    output_tokens_p50: int = 128,
) -> tuple[TrafficRequest, ...]:
    """Distinct prompts of similar lengths, in bursts: `arrivals.on_off` says how.

    With the defaults a burst is four times the mean rate.
    """
    _positive(requests=requests, input_tokens_p50=input_tokens_p50)
    made = [_plain(rng, input_tokens_p50, output_tokens_p50) for _ in range(requests)]
    return on_off(made, rate_rps=rate_rps, on_s_mean=on_s_mean, off_s_mean=off_s_mean, rng=rng)


def priority_mix(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    high_share: float = 0.2,
    low_share: float = 0.3,
    input_tokens_p50: int = 1_024,
    output_tokens_p50: int = 128,
) -> tuple[TrafficRequest, ...]:
    """Distinct prompts of similar lengths; the rest of the shares is of normal priority.

    Priorities are the gateway's 10, 0 and -10; each is a tenant too, so that a report can tell
    them apart.
    """
    _positive(requests=requests, normal_share=1 - high_share - low_share + 1e-9)
    shares = (high_share, 1 - high_share - low_share, low_share)
    made = []
    for _ in range(requests):
        tenant, priority = rng.choices(_PRIORITIES, shares)[0]
        plain = _plain(rng, input_tokens_p50, output_tokens_p50)
        made.append(replace(plain, tenant=tenant, priority=priority))
    return poisson(made, rate_rps=rate_rps, rng=rng)


_PRIORITIES = (("high", 10), ("normal", 0), ("low", -10))


def tenant_mix(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    heavy: int = 2,
    light: int = 18,
    heavy_share: float = 0.8,
    system_tokens: int = 1_024,
    heavy_tokens_p50: int = 4_096,
    light_tokens_p50: int = 512,
    output_tokens_p50: int = 128,
) -> tuple[TrafficRequest, ...]:
    """Few `heavy` tenants send `heavy_share` of the requests, and longer ones; many `light` ones
    the rest. Each has a system prompt of its own, rounded up to whole blocks."""
    _positive(requests=requests, heavy=heavy, light=light)
    system_blocks = _blocks(system_tokens)
    made = []
    for _ in range(requests):
        is_heavy = rng.random() < heavy_share
        number = rng.randrange(heavy) if is_heavy else heavy + rng.randrange(light)
        plain = _plain(rng, heavy_tokens_p50 if is_heavy else light_tokens_p50, output_tokens_p50)
        first = number * system_blocks
        made.append(
            replace(
                plain,
                input_tokens=system_blocks * BLOCK_TOKENS + plain.input_tokens,
                block_ids=tuple(range(first, first + system_blocks)),
                block_tokens=BLOCK_TOKENS,
                tenant=f"{'heavy' if is_heavy else 'light'}-{number}",
            )
        )
    return poisson(made, rate_rps=rate_rps, rng=rng)


def _plain(rng: Random, input_tokens_p50: int, output_tokens_p50: int) -> TrafficRequest:
    """A prompt that nothing else has, of a length that varies by less than a magnitude."""
    return TrafficRequest(
        at_s=0.0,
        input_tokens=_log_normal(rng, input_tokens_p50, 0.5, 32_768),
        output_tokens=_log_normal(rng, output_tokens_p50, 0.5, 2_048),
    )


def _from_zero(made: list[TrafficRequest]) -> tuple[TrafficRequest, ...]:
    """In order of arrival, the first one at 0."""
    ordered = sorted(made, key=lambda request: (request.at_s, request.session, request.turn))
    first_s = ordered[0].at_s
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
