"""Events across any split, against a slow twin that has all bytes at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.loadgen import sse
from pointsman.loadgen.sse import EventReader, EventTooLargeError


def read_all(pieces: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [payload for piece in pieces for payload in reader.feed(piece)]


def slow_twin(stream: bytes) -> list[bytes]:
    """The standard's algorithm, line by line; what has no blank line after it is dropped."""
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    events, data = [], []
    for line in lines:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            events.append(b"\n".join(data))
            data = []
    return events


EVENTS = st.sampled_from(
    [
        b"data: one\n\n",
        b"data:two\n\n",
        b"data: a\ndata: b\n\n",
        b": keep-alive\n\n",
        b"event: error\ndata: {}\n\n",
        b"data: caf\xc3\xa9 \xf0\x9f\x9a\x82\r\n\r\n",
        b"data: cr\r\r",
        b"\n",
        b"id: 7\nretry: 5\n\n",
        b"data\n\n",
    ]
)


@given(st.lists(EVENTS, max_size=8), st.data())
def test_any_split_gives_the_same_events(events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    assert read_all(pieces) == slow_twin(stream)


def test_every_byte_alone() -> None:
    stream = b'data: {"x":"\xe6\xbc\xa2"}\r\n\r\n: ping\r\n\r\ndata: [DONE]\r\n\r\n'
    assert read_all([bytes([byte]) for byte in stream]) == [b'{"x":"\xe6\xbc\xa2"}', b"[DONE]"]


def test_an_event_of_megabytes_in_small_pieces() -> None:
    payload = b"x" * 1_500_000
    stream = b"data: " + payload + b"\n\n"
    pieces = [stream[start : start + 1000] for start in range(0, len(stream), 1000)]
    assert read_all(pieces) == [payload]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1000)
    with pytest.raises(EventTooLargeError):
        read_all([b"data: " + b"x" * 600, b"x" * 600])


def test_an_unfinished_event_is_not_an_event() -> None:
    assert read_all([b"data: one\n\ndata: tw"]) == [b"one"]
