"""Readers of public request traces, and of what Pointsman itself wrote down.

Four formats are known by their first line:

- `slice`: JSONL `{t_ms, input_tokens, output_tokens, hash_ids?, block_tokens?, session_id?, turn?,
  think_ms?}`, the common form that the project's own trace slices have;
- `mooncake`: JSONL `{timestamp, input_length, output_length, hash_ids}` (ms, blocks of 512 tokens),
  as published with Qin et al., "Mooncake", FAST'25;
- `azure`: CSV `TIMESTAMP,ContextTokens,GeneratedTokens`, as published with Patel et al.,
  "Splitwise", ISCA 2024. It knows no prefixes, so no hit ratio can be given for it;
- `pointsman`: the JSON lines of Pointsman's own access log (`telemetry/access_log.py`). A request
  arrived `e2e_ms` before the `time` of its line. It has lengths and arrivals, no prefixes.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Annotated, assert_never

import msgspec

from pointsman.decoding import Undecodable, decoded
from pointsman.traffic.arrivals import spread_ticks
from pointsman.traffic.request import BLOCK_TOKENS_MAX, TrafficRequest

MOONCAKE_BLOCK_TOKENS = 512
ROWS_MAX = 5_000_000
"""A trace is held in memory: 5 M rows of 27 blocks are about 2 GiB, more is a wrong file."""

TOKENS_MAX = 1 << 24
"""Of a prompt or an answer: above the longest contexts. More would be hashed for minutes."""

Count = Annotated[int, msgspec.Meta(ge=0)]
_FINISHED = "finished"  # how the access log says that an answer is whole


class TraceFormat(StrEnum):
    SLICE = "slice"
    MOONCAKE = "mooncake"
    AZURE = "azure"
    POINTSMAN = "pointsman"


_FIELDS = MappingProxyType(
    {
        TraceFormat.SLICE: "`t_ms`, `input_tokens`, `output_tokens`",
        TraceFormat.MOONCAKE: "`timestamp`, `input_length`, `output_length`",
    }
)
"""What each line has to have, for messages."""


class TraceError(ValueError):
    """The file is not a trace this reader knows. The message names file, line and remedy."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in arrival order; `notes` say what the reader changed or took for granted.
    `tick_s` is the tick of the clock that stamped it, where arrivals were spread inside of it."""

    name: str
    format: TraceFormat
    requests: tuple[TrafficRequest, ...]
    notes: tuple[str, ...]
    tick_s: float | None = None


def read_trace(lines: Iterable[bytes | str], *, name: str) -> Trace:
    """Read a whole trace from its lines. `name` is used in messages only.

    Arrivals stamped by a coarse clock are spread inside the tick, and a note says so.
    Raises TraceError on an unknown format, a bad row, arrivals that go back, or no row at all.
    """
    numbered = _numbered(lines)
    first = next(numbered, None)
    if first is None:
        raise TraceError(f"{name} is empty. Remedy: give a file with at least one request.")
    trace_format = _detect(first[1], name)
    rows = chain([first], numbered)
    notes: list[str] = []
    match trace_format:
        case TraceFormat.AZURE:
            requests = list(_azure_requests(numbered, name))
        case TraceFormat.POINTSMAN:
            requests, notes = _logged_requests(rows, name)
        case TraceFormat.SLICE | TraceFormat.MOONCAKE:
            requests = list(_json_requests(rows, name, trace_format))
        case _:
            assert_never(trace_format)
    if not requests:
        raise TraceError(f"{name} holds no request. Remedy: give a complete file.")
    return _stamped(requests, name, trace_format, notes)


class _SliceRow(msgspec.Struct, frozen=True):
    t_ms: float
    input_tokens: Count
    output_tokens: Count
    hash_ids: tuple[int, ...] = ()
    block_tokens: Annotated[int, msgspec.Meta(ge=0, le=BLOCK_TOKENS_MAX)] = 0
    session_id: str = ""
    turn: Count = 0
    think_ms: float | None = 0.0


class _MooncakeRow(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...] = ()


class _LoggedRow(msgspec.Struct, frozen=True):
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    end: str
    e2e_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None


def _numbered(lines: Iterable[bytes | str]) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) of the lines that are not blank."""
    for number, line in enumerate(lines, start=1):
        raw = line.encode() if isinstance(line, str) else line
        raw = raw.strip()
        if raw:
            yield number, raw.removeprefix(b"\xef\xbb\xbf")


def _detect(line: bytes, name: str) -> TraceFormat:
    if line.startswith(b"{"):
        if b'"t_ms"' in line:
            return TraceFormat.SLICE
        if b'"timestamp"' in line:
            return TraceFormat.MOONCAKE
        if b'"time"' in line and b'"end"' in line:
            return TraceFormat.POINTSMAN
    if line.startswith(b"TIMESTAMP,"):
        return TraceFormat.AZURE
    raise TraceError(
        f"{name} line 1 is in no known trace format. Remedy: give JSON lines with "
        f"{_FIELDS[TraceFormat.SLICE]} (or Mooncake's {_FIELDS[TraceFormat.MOONCAKE]}), "
        "Pointsman's access log, or a CSV that begins with "
        "`TIMESTAMP,ContextTokens,GeneratedTokens`."
    )


def _json_requests(
    rows: Iterable[tuple[int, bytes]], name: str, trace_format: TraceFormat
) -> Iterator[TrafficRequest]:
    slices = msgspec.json.Decoder(_SliceRow).decode
    mooncake = msgspec.json.Decoder(_MooncakeRow).decode
    for number, raw in rows:
        try:
            if trace_format is TraceFormat.SLICE:
                row = decoded(slices, raw)
            else:
                row = _from_mooncake(decoded(mooncake, raw))
        except Undecodable as error:
            raise TraceError(
                f"{name} line {number}: {error}. Remedy: each line must be one JSON object with "
                f"{_FIELDS[trace_format]}, as line 1 promises; mend or delete the line."
            ) from None
        _check_blocks(row, name, number)
        yield TrafficRequest(
            at_s=row.t_ms / 1000,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            block_ids=row.hash_ids,
            block_tokens=row.block_tokens if row.hash_ids else 0,
            session=row.session_id,
            turn=row.turn,
            think_s=-1.0 if row.think_ms is None else row.think_ms / 1000,
        )


def _from_mooncake(row: _MooncakeRow) -> _SliceRow:
    return _SliceRow(
        t_ms=row.timestamp,
        input_tokens=row.input_length,
        output_tokens=row.output_length,
        hash_ids=row.hash_ids,
        block_tokens=MOONCAKE_BLOCK_TOKENS,
    )


def _check_blocks(row: _SliceRow, name: str, number: int) -> None:
    """Blocks must have a size and must not say more than the prompt holds."""
    if not row.hash_ids:
        return
    if row.block_tokens == 0:
        raise TraceError(
            f"{name} line {number}: `hash_ids` without `block_tokens`. Remedy: add the number of "
            "tokens in a block to each line."
        )
    if len(row.hash_ids) > -(-row.input_tokens // row.block_tokens):
        raise TraceError(
            f"{name} line {number}: {len(row.hash_ids)} blocks of {row.block_tokens} tokens do not "
            f"fit into {row.input_tokens} input tokens. Remedy: mend `block_tokens` or `hash_ids`."
        )


def _azure_requests(rows: Iterable[tuple[int, bytes]], name: str) -> Iterator[TrafficRequest]:
    origin: datetime | None = None
    for number, raw in rows:
        try:
            stamp, context, generated = raw.decode().split(",")
            at = datetime.fromisoformat(stamp)
            origin = origin or at
            at_s = (at - origin).total_seconds()
            input_tokens, output_tokens = int(context), int(generated)
        except (ValueError, TypeError) as error:
            raise TraceError(
                f"{name} line {number}: {error}. Remedy: each line must read "
                "`2023-11-16 18:15:46.6805900,374,44` (time, input tokens, output tokens)."
            ) from None
        if input_tokens < 0 or output_tokens < 0:
            raise TraceError(f"{name} line {number}: negative tokens. Remedy: delete the line.")
        yield TrafficRequest(at_s=at_s, input_tokens=input_tokens, output_tokens=output_tokens)


def _logged_requests(
    rows: Iterable[tuple[int, bytes]], name: str
) -> tuple[list[TrafficRequest], list[str]]:
    """Requests in order of arrival (the log has them in order of their end), and notes."""
    decode = msgspec.json.Decoder(_LoggedRow).decode
    arrived: list[tuple[datetime, _LoggedRow]] = []
    unknown = cut = 0
    for number, raw in rows:
        try:
            row = decoded(decode, raw)
            at = row.time - timedelta(milliseconds=row.e2e_ms)
        except (Undecodable, OverflowError) as error:
            raise TraceError(
                f"{name} line {number}: {error}. Remedy: each line must be one of Pointsman's "
                "access log; mend or delete the line."
            ) from None
        if not (row.prompt_tokens and row.output_tokens):
            unknown += 1
            continue
        cut += row.end != _FINISHED
        arrived.append((at, row))
    if not arrived:
        raise TraceError(
            f"{name}: no line tells `prompt_tokens` and `output_tokens`. Remedy: give a log in "
            "which requests were served by engines that report their usage."
        )
    arrived.sort(key=lambda item: item[0])
    requests = [
        TrafficRequest(
            at_s=(at - arrived[0][0]).total_seconds(),
            input_tokens=row.prompt_tokens or 0,
            output_tokens=row.output_tokens or 0,
        )
        for at, row in arrived
    ]
    notes = []
    if unknown:
        notes.append(f"{unknown} lines tell no prompt length (refused), or no answer's: left out")
    if cut:
        notes.append(f"{cut} answers were cut short: taken as long as they had become")
    return requests, notes


def _stamped(
    requests: list[TrafficRequest], name: str, trace_format: TraceFormat, notes: list[str]
) -> Trace:
    """Check the order, count time from the first arrival, spread ticks, fill in think times."""
    if len(requests) > ROWS_MAX:
        raise TraceError(f"{name} has over {ROWS_MAX} requests. Remedy: cut it into parts.")
    _check_lengths(requests, name)
    origin_s = requests[0].at_s
    stamps_s = [request.at_s - origin_s for request in requests]
    for row, (before, after) in enumerate(pairwise(stamps_s), start=2):
        if after < before:
            raise TraceError(
                f"{name}: request {row} arrives before its predecessor. "
                "Remedy: sort the file by time."
            )
    spread_s, tick_s = spread_ticks(stamps_s)
    notes = list(notes)
    if tick_s is not None:
        notes.append(
            f"arrivals are stamped in ticks of {tick_s:g} s ({len(set(stamps_s))} stamps for "
            f"{len(requests)} requests): spread evenly inside the tick"
        )
    unknown = sum(request.think_s < 0 for request in requests)
    if unknown:
        notes.append(f"{unknown} think times are not recorded: taken as 0")
    if not any(request.block_ids for request in requests):
        notes.append("no prefix information: every prompt is distinct, no hit ratio can be ideal")
    stamped = tuple(
        msgspec.structs.replace(request, at_s=at_s, think_s=max(request.think_s, 0.0))
        for request, at_s in zip(requests, spread_s, strict=True)
    )
    return Trace(
        name=name, format=trace_format, requests=stamped, notes=tuple(notes), tick_s=tick_s
    )


def _check_lengths(requests: list[TrafficRequest], name: str) -> None:
    for row, request in enumerate(requests, start=1):
        if max(request.input_tokens, request.output_tokens) > TOKENS_MAX:
            raise TraceError(
                f"{name}: request {row} has {request.input_tokens} input and "
                f"{request.output_tokens} output tokens; {TOKENS_MAX} are the most. "
                "Remedy: mend or delete it."
            )
