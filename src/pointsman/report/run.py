"""One run, and the JSON file that holds runs. The schema is stable: see SCHEMA."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from pointsman.decoding import Undecodable, decoded
from pointsman.report.summary import Summary, summarize_records
from pointsman.traffic.outcome import RequestRecord
from pointsman.traffic.request import TrafficSummary
from pointsman.traffic.slo import Slo

SCHEMA = "pointsman.bench/2"
"""Fields may be added within a version; one that is renamed or dropped makes a new version."""


class LoadMode(StrEnum):
    """Open: requests come when they are due. Closed: a number of conversations at once."""

    OPEN = "open"
    CLOSED = "closed"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent. `ideal_hit_ratio` is None where no prefix is known."""

    name: str
    seed: int
    traffic: TrafficSummary
    ideal_hit_ratio: float | None
    notes: tuple[str, ...] = ()


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How it was sent. `rate_rps` is None where a trace's own arrivals were used."""

    mode: LoadMode
    concurrency: int | None = None
    rate_rps: float | None = None
    speed: float = 1.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of requests against one target, from the first request to the last answer."""

    label: str
    target: str
    model: str
    policy: str | None
    started_at: str
    duration_s: float
    slo: Slo
    workload: Workload
    load: Load
    records: tuple[RequestRecord, ...]
    interrupted: bool = False
    reconnects: int = 0

    def summary(self) -> Summary:
        """Compute the numbers anew from the records."""
        return summarize_records(
            self.records,
            duration_s=self.duration_s,
            slo=self.slo,
            ideal_hit_ratio=self.workload.ideal_hit_ratio,
        )


def differences(runs: Sequence[Run]) -> list[str]:
    """What makes the runs hard to compare with the first one; empty where all is alike."""
    base, notes = runs[0], []
    for run in runs[1:]:
        for name, value, expected in (
            ("requests", run.workload.traffic, base.workload.traffic),
            ("arrivals", run.load, base.load),
            ("model", run.model, base.model),
            ("SLO", run.slo, base.slo),
        ):
            if value != expected:
                notes.append(f"{run.label} and {base.label} differ in {name}: ratios mislead")
    return notes


class RunFileError(ValueError):
    """Bytes are not runs in a known schema; the message has the remedy, not the file's name."""


class _RunFile(msgspec.Struct, frozen=True):
    schema: str
    runs: tuple[Run, ...]


def encode_runs(runs: tuple[Run, ...]) -> bytes:
    """JSON of `{"schema", "runs": [{run, "summary", "records"}]}`, in that order."""
    document: dict[str, Any] = {"schema": SCHEMA, "runs": []}
    for run in runs:
        fields = msgspec.to_builtins(run)
        records = fields.pop("records")
        summary = msgspec.to_builtins(run.summary())
        document["runs"].append(fields | {"summary": summary, "records": records})
    return msgspec.json.encode(document) + b"\n"


def decode_runs(data: bytes) -> tuple[Run, ...]:
    """Read runs back; summaries are computed, not read. Raises RunFileError."""
    try:
        schema = decoded(msgspec.json.Decoder(_SchemaOnly).decode, data).schema
        if schema != SCHEMA:
            raise RunFileError(
                f"its schema is {schema!r}, not {SCHEMA!r}. Remedy: give a file of this version's "
                "`pointsman bench --json`; one `pointsman replay` compares policies itself."
            )
        runs = decoded(msgspec.json.Decoder(_RunFile).decode, data).runs
    except Undecodable as error:
        raise RunFileError(
            f"{error}. Remedy: give a file written by `pointsman bench --json`."
        ) from None
    if not runs:
        raise RunFileError("it holds no run. Remedy: give a file with at least one.")
    return runs


class _SchemaOnly(msgspec.Struct, frozen=True):
    schema: str
