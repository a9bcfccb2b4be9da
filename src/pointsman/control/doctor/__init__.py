"""What is wrong with a live cluster, and what to do about it: `pointsman doctor`.

Reading order: finding (what is told), seen (what was looked at), then the judgements, which
are pure: engine_findings (one engine), event_findings (its KV events), fleet_findings
(engines beside each other), gateway_findings (a running gateway). Then the looking, which is
I/O: examination (a whole cluster), engine_look (one engine, all checks), probes (small prompts),
tokens (the same prompts as token ids), listening (KV events), connection (one TCP
connection, watched), gateway_look.

Nothing is changed anywhere: engines get a handful of tiny prompts of the doctor's own, never a
user's data. Every look has a bound on its time, and so has the whole. `examine` owns the
session, the ZMQ context and all tasks. Must not import gateway, cli or another shell.
"""

from pointsman.control.doctor.examination import Scope, examine
from pointsman.control.doctor.finding import (
    Check,
    Diagnosis,
    EngineSummary,
    Finding,
    Severity,
    worst_first,
)
from pointsman.control.doctor.seen import Target

__all__ = [
    "Check",
    "Diagnosis",
    "EngineSummary",
    "Finding",
    "Scope",
    "Severity",
    "Target",
    "examine",
    "worst_first",
]
