"""The speeds of an engine, in seconds of each kind of work.

    time to first token = dispatch + prefill·tokens + attention·pairs
    time of a step      = step + sequence·batch + kv_token·resident tokens

`tokens` are those computed anew, the request's own and those queued before it; `pairs` are
n·(L - n/2) for n new tokens of a prompt of L: what each of them attends to, summed.
"""

import msgspec


class Speeds(msgspec.Struct, frozen=True, gc=False):
    """Seconds of each kind of work; none is negative."""

    dispatch_s: float
    prefill_s_per_token: float
    attention_s_per_token2: float
    step_s: float
    sequence_s: float
    kv_token_s: float


PRIOR = Speeds(
    dispatch_s=0.066,
    prefill_s_per_token=5.70e-5,
    attention_s_per_token2=8.82e-9,
    step_s=0.01064,
    sequence_s=4.19e-4,
    kv_token_s=1.42e-7,
)
"""vLLM's published fit for its program scheduling, an 8B model on one H100: prefill 0.066 +
0.0570·k + 0.00441·k² s for k thousand tokens (whose pairs are k²/2), step 0.01064 +
0.000419·B + 1.42e-7·ΣL s."""
