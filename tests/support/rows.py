"""Candidates for tests of policies: a row is idle, empty and equal to the others but for what
the test says."""

from typing import Any

from pointsman.core.ids import NodeName
from pointsman.core.row import Row

PROMPT_TOKENS = 1_000


def row(name: str, *, hit: int = 0, prompt: int = PROMPT_TOKENS, **terms: Any) -> Row:
    """A candidate that holds `hit` of the prompt's tokens; `terms` are any of its fields."""
    idle: dict[str, Any] = dict.fromkeys(Row.__match_args__, 0.0)
    idle |= {
        "node": NodeName(name),
        "hit_tokens": hit,
        "index_hit_tokens": hit,
        "new_tokens": prompt - hit,
        "inflight": 0,
        "queue_tokens": 0,
        "kv_blocks": 1,
        "fits": True,
        "block_tokens": 16,
        "concurrency_max": 100,
        "waiting": 0,
        "unhealthy": 0.0,
        "slo_share": 1.0,
        "calibrated": True,
        "placed_order": 0,
        "restored_tokens": 0,
    }
    return Row(**{**idle, **terms})
