"""The oracle: the same work on one engine with the speed and the memory of all.

Whatever N engines do in a second, one that is N times as fast can do in the same second, in any
order, with every cache in one. So no placement beats it, and the ratio to it says how much
better any policy could be at most.
"""

from msgspec.structs import replace

from pointsman.engines.compute_model import Profile
from pointsman.sim.node import profile_of
from pointsman.sim.scenario import NodeGroup, Scenario

POLICY = "round_robin"
"""With one node there is nothing to choose."""


def pooled(scenario: Scenario) -> Scenario:
    """The scenario with one node in place of all, one gateway, and no faults."""
    sizes = [group.block_tokens for group in scenario.fleet if group.block_tokens is not None]
    group = NodeGroup(profile=_pooled(scenario.fleet), block_tokens=min(sizes, default=None))
    return replace(scenario, fleet=(group,), gateways=1, faults=())


def _pooled(fleet: tuple[NodeGroup, ...]) -> Profile:
    """As fast as all together, with the sum of their limits. A step takes no more tokens than on
    one engine, so it is over the sooner."""
    groups = [(group, profile_of(group, block_tokens=_BLOCK_TOKENS)) for group in fleet]

    def together_s(field: str) -> float:
        """Rates add up: the reciprocal of the sum of reciprocals."""
        rates = (g.count / (float(getattr(p, field)) * g.slowdown) for g, p in groups)
        return 1 / sum(rates)

    sequences_max = sum(group.count * profile.max_num_seqs for group, profile in groups)
    batched_tokens_max = max(profile.max_num_batched_tokens for _, profile in groups)
    return Profile(
        name="pooled",
        base_s=together_s("base_s"),
        prefill_s_per_token=together_s("prefill_s_per_token"),
        attention_s_per_token2=together_s("attention_s_per_token2"),
        sequence_s=together_s("sequence_s"),
        kv_token_s=together_s("kv_token_s"),
        kv_blocks=sum(g.count * p.kv_tokens for g, p in groups) // _BLOCK_TOKENS,
        block_size=_BLOCK_TOKENS,
        max_num_seqs=sequences_max,
        max_num_batched_tokens=max(batched_tokens_max, sequences_max),
        max_model_len=max(profile.max_model_len for _, profile in groups),
    )


_BLOCK_TOKENS = 16  # of the sums only: the node takes the traffic's, or the fleet's
