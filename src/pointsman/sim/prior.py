"""What a scheduler has learned of its nodes before a simulation begins, true or not.

It is taught by samples, as answers teach it: so nodes share what they make it believe or part, and
what is wrong is as firmly believed as what was learned from so many answers.
"""

from collections.abc import Sequence
from typing import Final

from pointsman.core.calibration import Pace
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.node import SimulatedNode
from pointsman.sim.scenario import Network, Prior, Times

_SAMPLES: Final = ((256, 1), (1_024, 24), (4_096, 4), (16_384, 12))
"""Prompts' tokens, and how many sequences decode at once, of no more than these tokens each."""

_ROUNDS: Final = 16
_TRUE: Final = Times()


def teach(
    gateway: SimulatedGateway, nodes: Sequence[SimulatedNode], network: Network, prior: Prior
) -> None:
    """Let the gateway's scheduler learn the speeds of those `nodes` that it knows."""
    known = [node for node in nodes if node.name in gateway.node_ids]
    delay_s = 2 * network.engine_s + network.dispatch_s
    for sample in _SAMPLES * _ROUNDS:
        for node in known:
            pace = gateway.scheduler.pace(gateway.node_ids[node.name])
            assert pace is not None, node.name
            taken = prior if not prior.nodes or node.name in prior.nodes else _TRUE
            _observe(pace, node, sample, delay_s, taken)


def _observe(
    pace: Pace, node: SimulatedNode, sample: tuple[int, int], delay_s: float, taken: Times
) -> None:
    """A prompt of so many tokens on an idle node, and a step of so many sequences."""
    tokens, batch = sample
    profile, slowdown = node.profile, node.group.slowdown
    first_token_s = profile.base_s + profile.prefill_s(tokens, tokens**2)
    pace.observe_prefill(
        tokens_ahead=0,
        tokens_own=tokens,
        attention_ahead=0,
        attention_own=tokens**2 / 2,  # pairs of tokens, where an engine counts squares
        ttft_s=taken.prefill * (delay_s + slowdown * first_token_s),
    )
    kv_tokens = batch * tokens
    step_s = profile.decode_step_s(batch, kv_tokens)
    pace.observe_decode(
        batch_mean=batch, kv_tokens_mean=kv_tokens, step_s=taken.decode * slowdown * step_s
    )
