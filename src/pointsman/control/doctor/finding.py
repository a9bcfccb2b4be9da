"""What the doctor tells."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """A problem costs requests or cache hits, a warning may, a note is worth knowing."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


class Check(StrEnum):
    """What was looked at."""

    REACHABLE = "reachable"
    IDENTITY = "identity"
    MODELS = "models"
    METRICS = "metrics"
    KV_CACHE = "kv_cache"
    PREFIX_HITS = "prefix_hits"
    KV_EVENTS = "kv_events"
    TOKENIZER = "tokenizer"
    STREAMING = "streaming"
    KEEP_ALIVE = "keep_alive"
    CLOCK = "clock"
    GATEWAY = "gateway"
    INDEX = "index"


class Finding(msgspec.Struct, frozen=True):
    """One thing found. `subject` is an engine's or model's name, "gateway" or "admin"."""

    severity: Severity
    check: Check
    subject: str
    seen: str
    remedy: str


class EngineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An engine in a line; null is unknown. `cached_share` is reported over predicted hits."""

    name: str
    url: str
    kind: str
    version: str
    models: tuple[str, ...]
    block_tokens: int | None
    kv_blocks: int | None
    latency_s: float | None
    cached_share: float | None
    events: str


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything found, the worst first."""

    engines: tuple[EngineSummary, ...]
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def healthy(self) -> bool:
        return self.count(Severity.PROBLEM) == 0


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """By severity; within one as they were found."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))
