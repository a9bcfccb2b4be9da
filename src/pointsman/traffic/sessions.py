"""Workloads of sessions, whose every turn follows from the answer to the one before it.

`chat`: conversations that grow; whoever keeps a conversation on its node saves almost everything.
`agentic`: few long sessions of many short answers, tools run in between; a session that leaves its
node pays its whole context again, and one node can be full of contexts.

In an open loop, a turn comes after the answer to the one before it (at `decode_rate_tps`) and the
think time. Same seed, same requests.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from itertools import count as counter
from itertools import islice
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from pointsman.traffic.lengths import BLOCK_TOKENS, log_normal, positive, whole_blocks
from pointsman.traffic.request import TrafficRequest

AGENT_BLOCK_TOKENS = 64
"""Contexts of 100k tokens in blocks of 16 would be 6,000 ids a turn."""


class _Turn(NamedTuple):
    """A prompt and its answer, `think_s` after the answer before it."""

    think_s: float
    block_ids: tuple[int, ...]
    input_tokens: int
    output_tokens: int


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
    Conversations start so that requests arrive at `rate_rps` on average. All lengths are whole
    blocks, so that each turn's blocks are a strict prefix of the next one's.
    """
    positive(requests=requests, turns_mean=turns_mean - 1 + 1e-9, rate_rps=rate_rps)
    system_ids, ids = _system_ids(whole_blocks(system_tokens))

    def turns() -> Iterator[_Turn]:
        blocks, think_s = system_ids, 0.0
        while True:
            blocks += _take(ids, whole_blocks(log_normal(rng, question_tokens_p50, 0.8, 2_048)))
            answer_blocks = whole_blocks(log_normal(rng, output_tokens_p50, 0.6, 1_024))
            answer_tokens = answer_blocks * BLOCK_TOKENS
            yield _Turn(think_s, blocks, len(blocks) * BLOCK_TOKENS, answer_tokens)
            if rng.random() < 1 / turns_mean:
                return
            blocks += _take(ids, answer_blocks)
            think_s = _exponential(rng, think_s_mean)

    def conversations() -> Iterator[TrafficRequest]:
        start_s = 0.0
        for number in counter():
            name = f"chat-{number}"
            yield from _session(name, start_s, turns(), BLOCK_TOKENS, decode_rate_tps)
            start_s += rng.expovariate(rate_rps / turns_mean)

    return _from_zero(list(islice(conversations(), requests)))


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
    task_tokens_max = input_tokens_max - system_tokens
    positive(
        requests=requests,
        turns_mean=turns_mean - 1 + 1e-9,
        rate_rps=rate_rps,
        input_tokens_max=task_tokens_max,
    )
    system_ids, ids = _system_ids(system_tokens // AGENT_BLOCK_TOKENS)

    def turns() -> Iterator[_Turn]:
        tokens = system_tokens + log_normal(rng, task_tokens_p50, 0.8, task_tokens_max)
        blocks, think_s = system_ids, 0.0
        while tokens <= input_tokens_max:
            blocks += _take(ids, tokens // AGENT_BLOCK_TOKENS - len(blocks))
            output_tokens = log_normal(rng, output_tokens_p50, 0.9, 4_096)
            yield _Turn(think_s, blocks, tokens, output_tokens)
            if rng.random() < 1 / turns_mean:
                return
            tokens += output_tokens + log_normal(rng, result_tokens_p50, 1.5, 16_384)
            think_s = _exponential(rng, user_s_mean if rng.random() < user_share else tool_s_mean)

    def session(number: int, start_s: float) -> Iterator[TrafficRequest]:
        name = f"agent-{number}"
        return _session(name, start_s, turns(), AGENT_BLOCK_TOKENS, decode_rate_tps)

    return _first_of_sessions(session, requests, session_rate_rps=rate_rps / turns_mean, rng=rng)


def _session(
    name: str,
    start_s: float,
    turns: Iterable[_Turn],
    block_tokens: int,
    decode_rate_tps: float,
) -> Iterator[TrafficRequest]:
    at_s, answer_s = start_s, 0.0
    for number, turn in enumerate(turns):
        at_s += answer_s + turn.think_s
        yield TrafficRequest(
            at_s=at_s,
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            block_ids=turn.block_ids,
            block_tokens=block_tokens,
            session=name,
            turn=number,
            think_s=turn.think_s,
        )
        answer_s = turn.output_tokens / decode_rate_tps


def _first_of_sessions(
    session: Callable[[int, float], Iterator[TrafficRequest]],
    requests: int,
    *,
    session_rate_rps: float,
    rng: Random,
) -> tuple[TrafficRequest, ...]:
    """Start sessions until no later one can have any of the first `requests` turns."""
    made: list[TrafficRequest] = []
    due_s: list[float] = []  # of all that are made, in order
    start_s, last_s = 0.0, math.inf
    for number in counter():
        if start_s > last_s:
            break
        for request in session(number, start_s):
            if request.at_s > last_s:
                break
            made.append(request)
            insort(due_s, request.at_s)
            if len(due_s) >= requests:
                last_s = due_s[requests - 1]
        start_s += rng.expovariate(session_rate_rps)
    return _from_zero(made)[:requests]


def _from_zero(made: list[TrafficRequest]) -> tuple[TrafficRequest, ...]:
    """In order of arrival, the first one at 0."""
    ordered = sorted(made, key=lambda request: (request.at_s, request.session, request.turn))
    first_s = ordered[0].at_s
    return tuple(replace(request, at_s=request.at_s - first_s) for request in ordered)


def _system_ids(blocks: int) -> tuple[tuple[int, ...], "counter[int]"]:
    """The ids of what all sessions share, and those that are still free."""
    return tuple(range(blocks)), counter(blocks)


def _take(ids: "counter[int]", blocks: int) -> tuple[int, ...]:
    return tuple(next(ids) for _ in range(blocks))


def _exponential(rng: Random, mean_s: float) -> float:
    return rng.expovariate(1 / mean_s) if mean_s > 0 else 0.0
