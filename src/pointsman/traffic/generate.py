"""Workloads made up from a seed, each isolating one thing a scheduler can be good or bad at.

`shared_prefix`: tenants with long system prompts; whoever keeps a tenant together saves prefill.
`long_tail`: lengths from a heavy tail and nothing shared; whoever counts requests balances badly.
`bursts`: plain requests that come in bursts; whoever looks at old loads sends a burst to one node.
`priority_mix`: plain requests of three priorities, too many for some time; who is to wait?
`tenant_mix`: a few tenants send most of the traffic; the others should hardly notice.

Each takes the number of requests, the arrival rate (Poisson), a seeded generator and sizes in
tokens, and returns requests in arrival order. Same seed, same requests. Those in which one request
follows from another are in `sessions` and `crowd`.
"""

from random import Random

from msgspec.structs import replace

from pointsman.traffic.arrivals import on_off, poisson
from pointsman.traffic.lengths import BLOCK_TOKENS, log_normal, positive, whole_blocks
from pointsman.traffic.request import TrafficRequest


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
    positive(requests=requests, tenants=tenants, question_tokens=question_tokens)
    system_blocks = whole_blocks(system_tokens)
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
    positive(requests=requests, input_tokens_p50=input_tokens_p50, sigma=sigma)
    made = [
        TrafficRequest(
            at_s=0.0,
            input_tokens=log_normal(rng, input_tokens_p50, sigma, input_tokens_max),
            output_tokens=log_normal(rng, output_tokens_p50, sigma, output_tokens_max),
        )
        for _ in range(requests)
    ]
    return poisson(made, rate_rps=rate_rps, rng=rng)


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
    positive(requests=requests, input_tokens_p50=input_tokens_p50)
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
    positive(requests=requests, normal_share=1 - high_share - low_share + 1e-9)
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
    positive(requests=requests, heavy=heavy, light=light)
    system_blocks = whole_blocks(system_tokens)
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
        input_tokens=log_normal(rng, input_tokens_p50, 0.5, 32_768),
        output_tokens=log_normal(rng, output_tokens_p50, 0.5, 2_048),
    )
