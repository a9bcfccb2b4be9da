"""The stream scanner: any cut of a stream says what the whole says."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.wire import sse
from pointsman.wire.answers import read_answer
from pointsman.wire.sse import SseScanner
from pointsman.wire.sse_events import ERROR_TEXT_MAX, StreamError, StreamSummary
from pointsman.wire.usage import Usage

DATA = Path(__file__).parent / "data"


def scan(*chunks: bytes) -> StreamSummary:
    scanner = SseScanner()
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.close()


def event(payload: Any, name: str | None = None, end: str = "\n") -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    head = f"event: {name}{end}" if name else ""
    return f"{head}data: {text}{end}{end}".encode()


def token(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "choices": [choice], **more}


USAGE = {
    "prompt_tokens": 91,
    "total_tokens": 95,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 64},
}
CHAT = [
    event(token("")),
    event(token(" hello")),
    event(token(' "usage" \n data: [DONE] {"error":1}')),
    event(token("usage")),
    event(token("error")),
    event(token(" 😀 end", "stop")),
    event({"choices": [], "usage": USAGE}),
    event("[DONE]"),
]


def test_a_chat_stream() -> None:
    assert scan(*CHAT) == StreamSummary(
        events=7, usage=Usage(91, 4, 64), error=None, finished=True, done=True
    )


lines_of_all_kinds = st.one_of(
    st.sampled_from(CHAT),
    st.sampled_from(
        [b": keep-alive\n\n", b"\n", b"\r\n", b"data:\n", b"data: {\n", b"x", b"data:"]
    ),
    st.text(max_size=30).map(lambda text: event(token(text))),
    st.text(max_size=30).map(lambda text: event(token(text), end="\r\n")),
    st.text(max_size=9).map(lambda text: event({"delta": {"text": text}}, "content_block_delta")),
    st.sampled_from(
        [
            event(token("a", usage=USAGE | {"completion_tokens": 1})),
            event({"error": {"message": "boom", "type": "E", "code": 500}}),
            event({"type": "message_start", "message": {"usage": {"input_tokens": 9}}}),
            event({"type": "message_delta", "usage": {"output_tokens": 3}}),
            event({"type": "message_stop"}),
            event({"type": "response.completed", "response": {"usage": {"input_tokens": 1}}}),
            b'data: {"usage":"' + b"x" * 300 + b'"}\n\n',
        ]
    ),
)
streams = st.lists(lines_of_all_kinds, max_size=12).map(b"".join)


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(edges)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=30))
def test_any_cut_says_what_the_whole_says(stream: bytes, places: list[int]) -> None:
    assert scan(*cut(stream, places)) == scan(stream) == slow_scan(stream)


@given(st.lists(lines_of_all_kinds, max_size=12))
def test_event_by_event_says_what_the_whole_says(events: list[bytes]) -> None:
    assert scan(*events) == slow_scan(b"".join(events))


@given(streams, st.lists(st.integers(0, 10_000), max_size=9), st.integers(20, 200))
def test_lines_over_the_limit_are_counted_only(stream: bytes, places: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "LINE_BYTES_MAX", most)
        assert scan(*cut(stream, places)) == scan(stream) == slow_scan(stream, most)


def slow_scan(stream: bytes, line_bytes_max: int = sse.LINE_BYTES_MAX) -> StreamSummary:
    """Every data line decoded, by the json module."""
    lines = [line for line in stream.split(b"\n") if line.startswith(b"data:")]
    short = [line[5:].strip() for line in lines if len(line) <= line_bytes_max]
    frames = [frame for frame in map(slow_frame, short) if frame is not None]
    ends = [frame.get("type") for frame in frames]
    usage: dict[str, Any] = {}
    for frame in frames:
        for holder in (frame.get("message"), frame.get("response"), frame):
            found = holder.get("usage") if isinstance(holder, dict) else None
            if isinstance(found, dict):
                usage = found if "prompt_tokens" in found else usage | found
    errors = [frame["error"] for frame in frames if frame.get("error") is not None]
    return StreamSummary(
        events=len(lines) - short.count(b"[DONE]"),
        usage=read_answer(json.dumps({"usage": usage}).encode()).usage,
        error=StreamError(errors[0]["message"], errors[0]["type"], "500") if errors else None,
        finished=any(slow_finish(frame) for frame in frames),
        done=b"[DONE]" in short or "message_stop" in ends or "response.completed" in ends,
    )


def slow_frame(data: bytes) -> dict[str, Any] | None:
    try:
        frame = json.loads(data)
    except ValueError:
        return None
    return frame if isinstance(frame, dict) else None


def slow_finish(frame: dict[str, Any]) -> bool:
    ended = frame.get("type") in ("message_stop", "response.completed")
    return ended or any(choice.get("finish_reason") for choice in frame.get("choices", []))


def test_every_cut_of_the_usage_event_finds_it() -> None:
    stream = b"".join(CHAT)
    for place in range(len(stream)):
        assert scan(stream[:place], stream[place:]) == scan(stream)


def test_the_recorded_death_of_an_engine_is_an_error_though_done() -> None:
    summary = scan((DATA / "vllm_stream_on_engine_death.txt").read_bytes())
    assert summary.error is not None
    assert summary.error.message.startswith("EngineCore encountered an issue")
    assert (summary.error.type, summary.error.code) == ("InternalServerError", "500")
    assert (summary.done, summary.finished) == (True, False)


def test_the_recorded_abort_of_an_engine_that_is_shut_down_is_an_error() -> None:
    summary = scan((DATA / "vllm_stream_on_sigterm.txt").read_bytes())
    assert summary.error is not None
    assert (summary.error.type, summary.done, summary.finished) == ("abort", True, True)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"error": "plain text"}, "plain text"),
        ({"error": {"message": "m", "code": "c"}}, "m"),
        ({"error": ["odd"]}, '["odd"]'),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "busy"),
        ({"type": "error", "code": "server_error", "message": "responses"}, "responses"),
        ({"type": "response.failed", "response": {"error": {"message": "failed"}}}, "failed"),
        ({"object": "error", "message": "old vLLM", "code": 400}, "old vLLM"),
        ({"error": {"message": "x" * 10_000}}, "x" * ERROR_TEXT_MAX),
    ],
)
def test_every_engines_error_frame(frame: Any, message: str) -> None:
    summary = scan(event(token("a")), event(frame), event("[DONE]"))
    assert summary.error is not None
    assert summary.error.message == message
    assert not summary.finished


def test_a_null_error_or_a_tool_named_error_is_none() -> None:
    tools = [{"parameters": {"properties": {"error": {"type": "string"}, "usage": {}}}}]
    response = {"error": None, "tools": tools, "usage": None}
    assert scan(event({"type": "response.created", "response": response})) == StreamSummary(1)


def test_responses_and_anthropic_usage() -> None:
    details = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 8}}
    completed = {"type": "response.completed", "response": {"error": None, "usage": details}}
    assert scan(event(completed)) == StreamSummary(1, Usage(10, 2, 8), finished=True, done=True)

    start = {"input_tokens": 5, "cache_read_input_tokens": 30, "output_tokens": 1}
    assert scan(
        event({"type": "message_start", "message": {"usage": start}}, "message_start"),
        event({"type": "content_block_delta", "delta": {"text": "hi"}}, "content_block_delta"),
        event({"type": "message_delta", "usage": {"output_tokens": 7}}, "message_delta"),
        event({"type": "message_stop"}, "message_stop"),
    ) == StreamSummary(4, Usage(35, 7, 30), finished=True, done=True)


def test_the_last_usage_counts_and_may_be_read_on_the_way() -> None:
    scanner = SseScanner()
    assert scanner.usage is None
    for count in (1, 2, 3):
        scanner.feed(event(token("a", usage=USAGE | {"completion_tokens": count})))
        assert scanner.usage == Usage(91, count, 64)
    assert scanner.events == 3


def test_a_later_usage_replaces_the_earlier_one_whole() -> None:
    bare = {"prompt_tokens": 91, "completion_tokens": 5}
    assert scan(event(token("a", usage=USAGE)), event(token("b", usage=bare))).usage == Usage(91, 5)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_json_may_be_spaced(separators: tuple[str, str]) -> None:
    frames = [token("a"), token("b", "stop"), {"choices": [], "usage": USAGE}]
    texts = [json.dumps(frame, separators=separators) for frame in frames]
    said = StreamSummary(3, Usage(91, 4, 64), finished=True)
    assert scan(*map(event, texts)) == said
    assert scan(*map(event, texts[:2])) == StreamSummary(2, finished=True)


def test_a_huge_event_is_relayed_in_pieces_without_being_kept() -> None:
    huge = event(token("x" * 3_000_000, usage=USAGE))
    pieces = cut(huge, range(0, len(huge), 65_536))
    scanner = SseScanner()
    for piece in pieces:
        scanner.feed(piece)
        assert len(scanner._pending) <= sse.LINE_BYTES_MAX
    scanner.feed(b"".join(CHAT))
    assert scanner.close() == StreamSummary(8, Usage(91, 4, 64), finished=True, done=True)
    assert scan(huge) == StreamSummary(1), "what an overlong line says stays unknown"


def test_a_stream_cut_off_mid_event_is_neither_finished_nor_done() -> None:
    assert scan(CHAT[0], CHAT[5][:40]) == StreamSummary(2)
    assert scan(b"".join(CHAT)[:-2]).done, "the last line counts without its line feed"


def test_close_twice_is_harmless() -> None:
    scanner = SseScanner()
    scanner.feed(b"data: {}")
    assert scanner.close() == scanner.close() == StreamSummary(1)


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"usage": USAGE}, Usage(91, 4, 64)),
        ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, Usage(3, 0, None)),
        ({"usage": {"prompt_tokens": 3, "prompt_tokens_details": None}}, Usage(3, 0, None)),
        ({"usage": {"input_tokens": 3, "output_tokens": 1}}, Usage(3, 1, None)),
        ({"usage": {"input_tokens": 3, "cache_read_input_tokens": 4}}, Usage(7, 0, 4)),
        ({"usage": {"prompt_tokens": -3}}, None),
        ({"usage": {"prompt_tokens": "three"}}, None),
        ({"usage": {"total_tokens": 3}}, None),
        ({"usage": None}, None),
        ({}, None),
        ([], None),
    ],
)
def test_usage_of_a_whole_answer(body: Any, usage: Usage | None) -> None:
    assert read_answer(json.dumps(body).encode()).usage == usage


@given(st.binary(max_size=60))
def test_no_bytes_raise(body: bytes) -> None:
    read_answer(body)
    scan(b'data: {"usage":' + body, body)


def test_deep_nesting_is_no_usage() -> None:
    deep = b'{"usage":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert read_answer(deep).usage is None
    assert scan(b"data: " + deep + b"\n\n") == StreamSummary(1)


def compact(text: str) -> bytes:
    return event(token("T")).replace(b"T", text.encode())


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (compact('a","usage":{"prompt_tokens":1},"x":"'), StreamSummary(3)),
        (
            event(token("a"))[:-3]
            + b',"usage":{"prompt_tokens":1},"x":{"content":"","y":null}}\n\n',
            StreamSummary(3, Usage(1, 0)),
        ),
        (
            compact('a"},"finish_reason":"stop"},{"delta":{"content":"b'),
            StreamSummary(3, finished=True),
        ),
        (event(token("a")) + event(token("b")), StreamSummary(4)),
        (compact("a\n\ndata: b"), StreamSummary(4)),
        (compact("a\n\ndata: [DONE]\n\ndata: b"), StreamSummary(4, done=True)),
        (event(token('quoted "a"')), StreamSummary(3)),
        (event(token("")), StreamSummary(3)),
        (event(token("a"), end="\r\n"), StreamSummary(3)),
        (event(token("a"))[:-1], StreamSummary(3)),
        (b"", StreamSummary(2)),
    ],
)
def test_nothing_hides_behind_a_plain_chunks_frame(chunk: bytes, said: StreamSummary) -> None:
    assert scan(event(token("one")), event(token("two")), chunk) == said


def test_a_stream_that_numbers_its_events_is_counted_too() -> None:
    events = [event({"delta": "a", "sequence_number": number}) for number in range(500)]
    assert scan(*events) == StreamSummary(500)


@pytest.mark.parametrize(
    "lie",
    [
        {"prompt_tokens": 10**400},
        {"completion_tokens": 10**400},
        {"completion_tokens": 10**9},
        {"prompt_tokens_details": {"cached_tokens": 6}},
    ],
)
def test_counts_that_cannot_be_true_are_no_usage(lie: dict[str, object]) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, **lie}
    body = json.dumps({"choices": [], "usage": usage}).encode()
    assert read_answer(body).usage is None
    scanner = SseScanner()
    scanner.feed(b"data: " + body + b"\n\ndata: [DONE]\n\n")
    assert scanner.usage is None


def test_only_a_response_is_named() -> None:
    body = {"id": "resp_1", "object": "response", "usage": {"input_tokens": 3}}
    assert read_answer(json.dumps(body).encode()).response_id == "resp_1"
    chat = {"id": "chatcmpl-1", "object": "chat.completion"}
    assert read_answer(json.dumps(chat).encode()).response_id == ""
    assert read_answer(json.dumps(body | {"id": "x" * 1_000}).encode()).response_id == ""
    numbered = read_answer(json.dumps(body | {"id": 7}).encode())
    assert numbered.response_id == ""
    assert numbered.usage is not None
    uncounted = read_answer(json.dumps(body | {"usage": "much"}).encode())
    assert (uncounted.response_id, uncounted.usage) == ("resp_1", None)


def test_a_streamed_response_is_named_at_its_end() -> None:
    scanner = SseScanner()
    response = {"id": "resp_1", "usage": {"input_tokens": 3, "output_tokens": 1}}
    event = {"type": "response.completed", "response": response}
    scanner.feed(f"data: {json.dumps(event)}\n\n".encode())
    assert scanner.response_id == "resp_1"
