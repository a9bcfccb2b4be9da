"""Answers whether an engine is still the same process: engines restart behind their address without
saying so."""

from pointsman.core.events import NodeFacts
from pointsman.wire.engine_metrics import EngineKind, EngineSignals

START_SLACK_S = 1.0
"""How far two start times may differ: some versions round differently, and no engine restarts
within a second."""

_COUNTERS = (
    "prefix_queries",
    "prefix_hits",
    "prompt_tokens_total",
    "generation_tokens_total",
    "preemptions_total",
)

_SIZES = {"block_size": "tokens in a block", "kv_blocks_total": "KV blocks"}
"""What no process changes while it runs, and in words."""


def restart_evidence(before: EngineSignals, after: EngineSignals) -> str:
    """Why the second metrics page is of another process than the first; else empty.

    A counter only falls when its process is new (Prometheus' own rule for resets).
    """
    if EngineKind.UNKNOWN in (before.kind, after.kind):
        return ""  # some proxy's page of errors is no proof
    if before.kind is not after.kind:
        return f"it was {before.kind}, it is {after.kind}"
    old_s, new_s = before.process_start_time_s, after.process_start_time_s
    if old_s is not None and new_s is not None and new_s > old_s + START_SLACK_S:
        return f"its process started {new_s - old_s:.0f} s later"
    for name in _COUNTERS:
        old, new = getattr(before, name), getattr(after, name)
        if old is not None and new is not None and new < old:
            return f"its counter {name} fell from {old} to {new}"
    for name, words in _SIZES.items():
        old, new = getattr(before, name), getattr(after, name)
        if _differ(old, new):
            return f"it had {old} {words}, it has {new}"
    return ""


def other_engine(before: NodeFacts, after: NodeFacts) -> str:
    """Why the second facts are of another process than the first; else empty."""
    old_models, new_models = _base_models(before), _base_models(after)
    if old_models.keys() != new_models.keys():
        return "it serves other models"
    for name, old in old_models.items():
        if _differ(old, new_models[name]):
            return f"the context of {name} was {old} tokens, it is {new_models[name]}"
    if _differ(before.running_max, after.running_max):
        return f"it ran {before.running_max} requests at once, it runs {after.running_max}"
    return ""


def _base_models(facts: NodeFacts) -> dict[str, int | None]:
    """The contexts of those that are no adapters."""
    return {card.name: card.context_tokens_max for card in facts.models if card.parent is None}


def _differ(old: int | None, new: int | None) -> bool:
    """Whether both are known, and are not the same."""
    return old is not None and new is not None and old != new
