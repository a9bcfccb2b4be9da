"""Pointsman's own access log as a trace: what it can tell, what it cannot, and what is wrong."""

import io

import pytest

from pointsman.core.errors import EndCause, Reason
from pointsman.telemetry.access_log import AccessLog
from pointsman.traffic.trace import TraceError, TraceFormat, read_trace
from tests.telemetry.records import STREAMED, refused

LINE = '{"time":"2025-01-01T00:00:%sZ","end":"%s","e2e_ms":%s,"prompt_tokens":7,"output_tokens":3}'


async def test_the_log_that_is_written_can_be_read() -> None:
    stream = io.BytesIO()
    clock_s = iter([1_700_000_002.5, 1_700_000_003.0, 1_700_000_003.25])
    log = AccessLog(stream, wall_s=lambda: next(clock_s))
    log.exchange_ended(STREAMED.but(e2e_s=1.0, prompt_tokens=100, output_tokens=11))
    log.exchange_ended(refused(Reason.QUEUE_FULL, 429))
    log.exchange_ended(STREAMED.but(e2e_s=3.0, prompt_tokens=50, output_tokens=9))
    log.close()
    trace = read_trace(stream.getvalue().splitlines(), name="access.jsonl")
    assert trace.format is TraceFormat.POINTSMAN
    arrivals = [(r.at_s, r.input_tokens, r.output_tokens) for r in trace.requests]
    assert arrivals == [(0.0, 50, 9), (1.25, 100, 11)]  # by arrival, not by end
    assert trace.notes[0].startswith("1 lines tell no prompt length")
    assert "no prefix information" in trace.notes[-1]


def test_what_generated_nothing_is_left_out() -> None:
    """Embeddings have a prompt and no answer, which no engine is asked for."""
    embedding = LINE.replace('"output_tokens":3', '"output_tokens":0')
    lines = [LINE % ("10.0", "finished", 0), embedding % ("11.0", "finished", 0)]
    trace = read_trace(lines, name="log")
    assert [r.output_tokens for r in trace.requests] == [3]
    assert trace.notes[0].startswith("1 lines tell")


def test_cut_answers_are_noted() -> None:
    lines = [LINE % ("10.0", EndCause.FINISHED, 0), LINE % ("11.0", EndCause.CLIENT_GONE, 500)]
    trace = read_trace(lines, name="log")
    assert [r.at_s for r in trace.requests] == [0.0, 0.5]
    assert trace.notes[0] == "1 answers were cut short: taken as long as they had become"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("{", "line 2"),
        (LINE % ("99", "finished", 0), "line 2"),
        (LINE % ("10", "finished", -1), "line 2"),
        (LINE.replace("Z", "") % ("10", "finished", 0), "line 2"),
        ('{"time":"0001-01-01T00:00:00Z","end":"x","e2e_ms":9e9,"prompt_tokens":1}', "line 2"),
    ],
)
def test_a_bad_line_is_named(second: str, words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        read_trace([LINE % ("10", "finished", 0), second], name="log")
    assert "Remedy" in str(caught.value)


def test_a_log_without_lengths_says_what_is_needed() -> None:
    with pytest.raises(TraceError, match=r"prompt_tokens.*Remedy"):
        read_trace(['{"time":"2025-01-01T00:00:00Z","end":"refused"}'], name="log")
