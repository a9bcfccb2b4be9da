"""Readers: formats, ticks, and errors that name file, line and remedy."""

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from pointsman.traffic.arrivals import accelerate, poisson, spread_ticks, window
from pointsman.traffic.request import TrafficRequest, conversations, summarize
from pointsman.traffic.trace import TraceError, TraceFormat, read_trace

SLICE = '{"t_ms":%s,"input_tokens":1000,"output_tokens":5,"hash_ids":[1,2],"block_tokens":512}'


def test_slice_rows_become_requests() -> None:
    row = {
        "t_ms": 1500,
        "input_tokens": 700,
        "output_tokens": 9,
        "hash_ids": [4, 7],
        "block_tokens": 512,
        "session_id": "s",
        "turn": 3,
        "think_ms": 250,
        "model": "ignored",
    }
    later = {"t_ms": 2500, "input_tokens": 3, "output_tokens": 1}
    trace = read_trace([json.dumps(row), "", json.dumps(later).encode()], name="t")
    assert trace.format is TraceFormat.SLICE
    assert trace.requests == (
        TrafficRequest(
            at_s=0.0,
            input_tokens=700,
            output_tokens=9,
            block_ids=(4, 7),
            block_tokens=512,
            session="s",
            turn=3,
            think_s=0.25,
        ),
        TrafficRequest(at_s=1.0, input_tokens=3, output_tokens=1),
    )
    assert trace.notes == ()


def test_unrecorded_think_time_is_zero_and_noted() -> None:
    line = '{"t_ms":0,"input_tokens":1,"output_tokens":1,"hash_ids":[1],"block_tokens":8,'
    trace = read_trace([line + '"think_ms":null}'], name="t")
    assert trace.requests[0].think_s == 0.0
    assert trace.notes == ("1 think times are not recorded: taken as 0",)


def test_original_mooncake_jsonl() -> None:
    line = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}'
    trace = read_trace([line], name="m.jsonl")
    assert trace.format is TraceFormat.MOONCAKE
    assert trace.requests[0].block_ids == (46, 47)
    assert trace.requests[0].block_tokens == 512


def test_azure_csv_of_2023_and_2024() -> None:
    lines = [
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
        b"2023-11-16 18:15:46.6805900,374,44\r\n",
        b"2023-11-16 18:15:50.9951690,396,109\r\n",
    ]
    trace = read_trace(lines, name="a.csv")
    assert trace.format is TraceFormat.AZURE
    assert [request.input_tokens for request in trace.requests] == [374, 396]
    assert trace.requests[1].at_s == pytest.approx(4.314579)
    zoned = read_trace([lines[0], b"2024-05-10 00:00:00.009930+00:00,2162,5"], name="a.csv")
    assert zoned.requests[0].output_tokens == 5
    assert "no prefix information" in zoned.notes[0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "x is empty"),
        (["hello"], "x line 1 is in no known trace format"),
        ([SLICE % 0, "{"], "x line 2: "),
        ([SLICE % 0, '{"a":' * 9_999], "x line 2: "),
        ([SLICE % 0, '{"t_ms":1,"input_tokens":1}'], "x line 2: Object missing required field"),
        ([SLICE % 0, '{"t_ms":1,"input_tokens":-1,"output_tokens":1}'], "with `t_ms`, `input_t"),
        (
            ['{"t_ms":1,"input_tokens":9,"output_tokens":1,"hash_ids":[1]}'],
            "without `block_tokens`",
        ),
        ([SLICE % 0, SLICE.replace("1000", "500") % 0], "x line 2: 2 blocks of 512 tokens"),
        ([SLICE % 5, SLICE % 4], "request 2 arrives before its predecessor"),
        (
            ['{"t_ms":1,"input_tokens":1000000000000,"output_tokens":1}'],
            "request 1 has 1000000000000 input",
        ),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "no request"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16,5"], "x line 2: "),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16,5,-5"], "x line 2: negative"),
    ],
)
def test_errors_name_file_line_and_remedy(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(lines, name="x")
    assert said in str(caught.value)
    assert "Remedy: " in str(caught.value)


def test_ticks_are_spread_evenly_and_noted() -> None:
    stamps = [0, 0, 0, 3000, 3000, 9000, 9000, 9000]
    trace = read_trace([SLICE % stamp for stamp in stamps], name="t")
    assert [request.at_s for request in trace.requests] == [0, 1, 2, 3, 4.5, 9, 10, 11]
    assert "ticks of 3 s (3 stamps for 8 requests): spread evenly" in trace.notes[0]


def test_fine_stamps_stay() -> None:
    assert spread_ticks([0.0, 0.0, 1.0, 2.0]) == ([0.0, 0.0, 1.0, 2.0], None)
    assert spread_ticks([5.0, 5.0]) == ([5.0, 5.0], None)


def request(at_s: float, session: str = "", **fields: float) -> TrafficRequest:
    return TrafficRequest(
        at_s=at_s, input_tokens=10, output_tokens=2, session=session, think_s=fields.get("think", 0)
    )


def test_accelerate_and_window() -> None:
    made = [request(0), request(4, think=2), request(8)]
    assert [r.at_s for r in accelerate(made, speed=4)] == [0, 1, 2]
    assert accelerate(made, speed=4)[1].think_s == 0.5
    assert [r.at_s for r in window(made, start_s=4, end_s=8)] == [0]
    with pytest.raises(ValueError, match="speed must be above 0"):
        accelerate(made, speed=0)


def test_poisson_is_seeded_and_near_its_rate() -> None:
    made = [request(0)] * 2000
    first = poisson(made, rate_rps=5, rng=Random(1))
    assert first == poisson(made, rate_rps=5, rng=Random(1))
    assert first[-1].at_s == pytest.approx(400, rel=0.1)
    with pytest.raises(ValueError, match="rate_rps must be above 0"):
        poisson(made, rate_rps=0, rng=Random(1))


def test_conversations_keep_turn_order() -> None:
    made = [request(0, "a"), request(1), request(2, "b"), request(3, "a"), request(4)]
    assert [[r.at_s for r in turns] for turns in conversations(made)] == [[0, 3], [1], [2], [4]]


def test_summary_of_nothing_and_of_something() -> None:
    assert summarize([]).requests == 0
    summary = summarize([request(0, "a"), request(2, "a")])
    assert (summary.sessions, summary.span_s, summary.rate_rps) == (1, 2, 1)


def test_gzip_file_reads_like_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress((SLICE % 0).encode()))
    with gzip.open(path) as lines:
        assert len(read_trace(lines, name="t").requests) == 1
