"""A crowd that never lets go: users who ask again and again, and of few things most of all."""

from itertools import accumulate
from random import Random

from pointsman.traffic.arrivals import poisson
from pointsman.traffic.lengths import BLOCK_TOKENS, positive, whole_blocks
from pointsman.traffic.request import TrafficRequest


def crowd(
    *,
    requests: int,
    rate_rps: float,
    rng: Random,
    users: int = 100,
    prefixes: int = 20,
    skew: float = 1.0,
    prefix_tokens: int = 2_048,
    question_tokens: int = 128,
    output_tokens: int = 128,
) -> tuple[TrafficRequest, ...]:
    """`users` sessions of one request after the other, in a closed loop so many at once.

    A user stays with one prefix of `prefixes`, the r-th most popular with a weight of 1 / r^skew
    (Zipf): whoever keeps prefixes together fills a few nodes, and leaves the others idle.
    `prefix_tokens` is rounded up to whole blocks. In an open loop `rate_rps` is everybody's; in a
    closed one it is how fast the users come.
    """
    positive(requests=requests, users=users, prefixes=prefixes, question_tokens=question_tokens)
    blocks = whole_blocks(prefix_tokens)
    weights = list(accumulate(1 / rank**skew for rank in range(1, prefixes + 1)))
    prefix_of = rng.choices(range(prefixes), cum_weights=weights, k=users)
    made = []
    for number in range(requests):
        user, turn = number % users, number // users
        first = prefix_of[user] * blocks
        made.append(
            TrafficRequest(
                at_s=0.0,
                input_tokens=blocks * BLOCK_TOKENS + question_tokens,
                output_tokens=output_tokens,
                block_ids=tuple(range(first, first + blocks)),
                block_tokens=BLOCK_TOKENS,
                session=f"user-{user}",
                turn=turn,
                tenant=f"prefix-{prefix_of[user]}",
            )
        )
    return poisson(made, rate_rps=rate_rps, rng=rng)
