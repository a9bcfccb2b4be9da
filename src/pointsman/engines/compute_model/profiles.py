"""What a model on a GPU costs, in seconds: the constants of the step-time formula.

    step_s = base_s
           + prefill_s_per_token   * prefill tokens
           + attention_s_per_token2 * sum over prefill chunks [a, b) of (b^2 - a^2)
           + sequence_s            * decoding sequences
           + kv_token_s            * resident KV tokens of decoding sequences

The attention term telescopes: a prompt of L tokens costs attention_s_per_token2 * L^2 however it
is cut into chunks, and a cached prefix of a tokens takes a^2 off.
"""

import msgspec


class Profile(msgspec.Struct, frozen=True, gc=False):
    """Speeds, KV capacity and batching limits of one engine. Times in seconds.

    With `urgent_first` a waiting job of a lower priority starts before running ones go on with
    their prompts; vLLM lets those finish first.
    """

    name: str
    base_s: float
    prefill_s_per_token: float
    attention_s_per_token2: float
    sequence_s: float
    kv_token_s: float
    kv_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131_072
    urgent_first: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for limits under which a step could starve."""
        if min(self.kv_blocks, self.block_size, self.max_num_seqs, self.max_model_len) < 1:
            raise ValueError(f"profile {self.name}: every size must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"profile {self.name}: max_num_batched_tokens ({self.max_num_batched_tokens}) "
                f"must be at least max_num_seqs ({self.max_num_seqs}): each decode takes one"
            )

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_size

    @property
    def context_tokens(self) -> int:
        """The longest prompt plus output that can ever run: the model's limit, or the cache's."""
        return min(self.max_model_len, self.kv_tokens)

    def prefill_s(self, tokens: int, squares: float) -> float:
        """What so many prompt tokens add to steps; `squares` is the sum over their chunks [a, b) of
        b^2 - a^2."""
        return self.prefill_s_per_token * tokens + self.attention_s_per_token2 * squares

    def decode_step_s(self, sequences: int, kv_tokens: int) -> float:
        """A step in which so many sequences decode, of so many tokens in all, and nothing else."""
        return self.base_s + self.sequence_s * sequences + self.kv_token_s * kv_tokens


# Sources of the numbers.
#
# 70b-tp8-h100: the published fit of vLLM's program-scheduling work, prefill
#   0.066 + 0.0570 k + 0.00441 k^2 s (k thousand tokens), decode step
#   0.01064 + 0.000419 B + 1.42e-7 sum(L) s. The 66 ms constant of a prefill is request set-up
#   outside the step and is left out. 10.6 ms is 140 GB of weights over 8 x 3.35 TB/s at half of
#   peak bandwidth; 57 us per token is 140 GFLOP over 8 x 989 TFLOP/s at 31 %. KV: 320 KiB a token
#   in (8 x 80 GB x 0.9 - 140 GB).
#
# The other two are derived with the same efficiencies.
# 8b-h100: 16 GB of weights over 3.35 TB/s at 75 %: 6.4 ms; 16 GFLOP a token over 989 TFLOP/s at
#   33 % is 48.8 us, the 20,480 tokens/s measured as R_peak for a 32B on two H100; attention
#   2 * layers * hidden = 2.6e5 FLOP per token^2 at 33 %; KV 128 KiB a token over 2.5 TB/s;
#   54 GB left for KV.
# 27b-4bit-a100: 15 GB of weights over 2.04 TB/s at 60 % (dequantisation): 12.3 ms; 54 GFLOP a token
#   over 312 TFLOP/s at 33 %; attention 2 * 64 * 5120 FLOP per token^2; KV 256 KiB a token over
#   1.5 TB/s; 55 GB left for KV.
# sequence_s of the derived ones: a decoding sequence is one more row of the same matrix products,
#   hidden in part behind the weights' transfer: about prefill_s_per_token (8b), and 40 % of it
#   where the base is longer (27b).
PROFILE_DEFAULT = "8b-h100"

_ALL = (
    Profile(
        name=PROFILE_DEFAULT,
        base_s=0.0064,
        prefill_s_per_token=4.88e-5,
        attention_s_per_token2=8.0e-10,
        sequence_s=6.0e-5,
        kv_token_s=5.2e-8,
        kv_blocks=25_000,
    ),
    Profile(
        name="70b-tp8-h100",
        base_s=0.01064,
        prefill_s_per_token=5.70e-5,
        attention_s_per_token2=4.41e-9,
        sequence_s=4.19e-4,
        kv_token_s=1.42e-7,
        kv_blocks=80_000,
    ),
    Profile(
        name="27b-4bit-a100",
        base_s=0.0123,
        prefill_s_per_token=5.2e-4,
        attention_s_per_token2=6.4e-9,
        sequence_s=2.0e-4,
        kv_token_s=1.7e-7,
        kv_blocks=13_000,
        max_model_len=32_768,
    ),
)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in _ALL}
