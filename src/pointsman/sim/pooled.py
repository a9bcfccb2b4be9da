"""The oracle: the same work on one ideal engine with the speed and the memory of all.

Whatever N engines do in a second, one that is N times as fast does in the same second, with every
cache in one, no node idle while another one queues, and weights read once for all decodes. It
takes every request at once and begins with the shortest. So its means of TTFT and end-to-end
time are what a placement has to be compared with: on all traffic of the project no policy comes
below them, and it is far below what a cluster can reach where little is going on, for no cluster
splits one request.

It is no theorem. A request that takes minutes slows everything on a pooled engine, while it
blocks one of N: with two nodes and a prompt of 120,000 tokens every 20 s among tiny ones, the
pooled engine is beaten. And it is about means: who serves the shortest first lets the longest
wait, so a p99 may be worse than a policy's. Where a policy refuses what the oracle serves, the
means are of different requests.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from pointsman.engines.compute_model import Profile
from pointsman.sim.node import profile_of
from pointsman.sim.scenario import NodeGroup, Scenario

POLICY = "round_robin"
"""With one node there is nothing to choose."""

STEP_TOKENS_MIN = 1_024
"""A step of fewer tokens would be a decode step: nobody waits less for it."""


def pooled(scenario: Scenario) -> Scenario:
    """The scenario with one node in place of all, one gateway, and no faults."""
    sizes = [group.block_tokens for group in scenario.fleet if group.block_tokens is not None]
    group = NodeGroup(
        profile=_pooled(scenario.fleet), block_tokens=min(sizes, default=None), ideal=True
    )
    return replace(scenario, fleet=(group,), gateways=1, faults=())


_BLOCK_TOKENS = 16  # of the sums only: the node takes the traffic's, or the fleet's
_Parts = Sequence[tuple[NodeGroup, Profile]]


def _pooled(fleet: tuple[NodeGroup, ...]) -> Profile:
    """As fast as all together, with the sum of their limits."""
    parts = [(group, profile_of(group, block_tokens=_BLOCK_TOKENS)) for group in fleet]
    gain = _specialised(parts)
    base_s, prefill_s, attention_s, sequence_s, kv_token_s = (
        _together_s(parts, field) / gain for field in _COSTS
    )
    sequences_max = sum(group.count * profile.max_num_seqs for group, profile in parts)
    batch_tokens = max(profile.max_num_batched_tokens for _, profile in parts)
    step_tokens = max(sequences_max, min(batch_tokens, STEP_TOKENS_MIN))
    return Profile(
        name="pooled",
        base_s=base_s,
        prefill_s_per_token=_in_short_steps(prefill_s, base_s, batch_tokens, step_tokens),
        attention_s_per_token2=attention_s,
        sequence_s=sequence_s,
        kv_token_s=kv_token_s,
        kv_blocks=sum(g.count * p.kv_tokens for g, p in parts) // _BLOCK_TOKENS,
        block_size=_BLOCK_TOKENS,
        max_num_seqs=sequences_max,
        max_num_batched_tokens=step_tokens,
        max_model_len=max(profile.context_tokens for _, profile in parts),
    )


_COSTS = ("base_s", "prefill_s_per_token", "attention_s_per_token2", "sequence_s", "kv_token_s")


def _cost_s(group: NodeGroup, profile: Profile, field: str) -> float:
    return float(getattr(profile, field)) * group.slowdown


def _together_s(parts: _Parts, field: str) -> float:
    """Rates add up: the reciprocal of the sum of reciprocals; 0 where one engine has it for
    nothing."""
    costs_s = [(group.count, _cost_s(group, profile, field)) for group, profile in parts]
    if any(cost_s == 0 for _, cost_s in costs_s):
        return 0.0
    return 1 / sum(count / cost_s for count, cost_s in costs_s)


def _specialised(parts: _Parts) -> float:
    """By how much all of them may be faster than the sum of their rates at everything, where
    each does only what it is best at. 1 where they differ in nothing, or in speed alone."""
    together_s = {field: _together_s(parts, field) for field in _COSTS}
    gain = 0.0
    for group, profile in parts:
        shares = [s / _cost_s(group, profile, field) for field, s in together_s.items() if s]
        gain += group.count * max(shares, default=0.0)
    return max(gain, 1.0)


def _in_short_steps(prefill_s: float, base_s: float, batch_tokens: int, step_tokens: int) -> float:
    """Short steps keep decodes from waiting for prefills, but pay `base_s` more often: a full one
    costs as much a token as a full one of the engines' own."""
    dearer_s = base_s / step_tokens - base_s / batch_tokens
    return max(prefill_s / 2, prefill_s - max(0.0, dearer_s))
