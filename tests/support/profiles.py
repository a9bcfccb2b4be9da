"""Engines of a size at which tests fill them."""

from pointsman.engines.compute_model import Profile

SMALL = Profile(
    name="small",
    base_s=0.01,
    prefill_s_per_token=1e-4,
    attention_s_per_token2=1e-8,
    sequence_s=1e-3,
    kv_token_s=1e-6,
    kv_blocks=64,
    block_size=16,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    max_model_len=1_024,
)
"""Filled by a handful of requests, which then evict and preempt."""

CRAMPED = Profile(
    name="cramped",
    base_s=0.01,
    prefill_s_per_token=1e-4,
    attention_s_per_token2=1e-7,
    sequence_s=1e-3,
    kv_token_s=1e-5,
    kv_blocks=24,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=16,
)
"""Filled by four sequences of 24 tokens."""
