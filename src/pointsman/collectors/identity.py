"""Answers whether an engine is still the same process: engines restart behind their address without
saying so."""

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
    return ""
