"""Chunks that pass without a parser: only those that it would read alike, however bytes are cut."""

import asyncio
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ids import NodeId
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway.chunks import CHUNK_BYTES_MAX, LAST_CHUNK, framed, payload
from pointsman.gateway.pools import Pools
from pointsman.gateway.relay import Framing, Relay
from pointsman.gateway.upstream import REPLY_HEAD_BYTES_MAX, UpstreamConnection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

# What a chunk may hold that looks like framing, and how else than ours it may be framed.
BODIES = st.lists(
    st.sampled_from([b"a", b"5\r\nhello\r\n", b"\r\n", b"0\r\n\r\n", b"data: x\n\n", b"1" * 16]),
    min_size=1,
    max_size=4,
).map(b"".join)
SIZE_LINES = st.sampled_from([b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;name=value\r\n"])


@given(st.binary(min_size=1, max_size=300))
def test_what_is_framed_is_known(body: bytes) -> None:
    assert payload(framed(body)) == body


def test_every_length_is_known_up_to_the_bound() -> None:
    for size in range(1, CHUNK_BYTES_MAX + 10):
        chunk = framed(b"x" * size)
        assert payload(chunk) == (b"x" * size if len(chunk) <= CHUNK_BYTES_MAX else b"")


@given(st.one_of(st.binary(max_size=40), BODIES))
def test_what_is_known_is_framed(data: bytes) -> None:
    found = payload(data)
    assert not found or framed(found) == data


class Sink:
    """An attempt that relays into memory, and its client's transport."""

    def __init__(self) -> None:
        self.written = b""
        self.relay = Relay(cast("asyncio.Transport", self), Framing.CHUNKED)
        self.is_over = False
        self.parsed = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        raise AssertionError("nothing is wrong")

    def reply_progressed(self, upstream: UpstreamConnection) -> None:
        self.parsed += 1
        upstream.passes_chunks_to(self.relay)
        self.is_over = upstream.complete
        if upstream.complete:
            self.relay.finish(upstream.take())
        elif upstream.pieces:
            self.relay.pass_on(upstream.take())

    def dialled(self, upstream: UpstreamConnection) -> None:
        raise AssertionError

    def unreachable(self, *, is_ours: bool) -> None:
        raise AssertionError

    def reply_lost(self, upstream: UpstreamConnection, *, is_http: bool) -> None:
        raise AssertionError(is_http)

    def crashed(self) -> None:
        raise AssertionError


def relayed(arrivals: list[bytes]) -> Sink:
    """What comes of bytes that arrive so."""
    sink = Sink()
    pools = Pools(idle_s=1.0, idle_max=1, engine_keys=EngineKeys(), alias="a")
    upstream = UpstreamConnection(pools.node(NodeId(1), "http://127.0.0.1:1"))
    upstream.connection_made(cast("asyncio.Transport", sink))
    upstream.send(sink, b"", b"")
    for data in arrivals:
        upstream.data_received(data)
    return sink


def unframed(data: bytes) -> bytes:
    """The body of chunks that are framed as here."""
    body = b""
    while data != LAST_CHUNK:
        line, _, rest = data.partition(b"\r\n")
        size = int(line, 16)
        assert rest[size : size + 2] == b"\r\n"
        body, data = body + rest[:size], rest[size + 2 :]
    return body


@given(st.lists(st.tuples(SIZE_LINES, BODIES), max_size=8), st.data())
def test_chunks_cut_anywhere_come_out_alike(
    chunks: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    stream = HEAD + b"".join(line % len(body) + body + b"\r\n" for line, body in chunks)
    stream += LAST_CHUNK
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    arrivals = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    sink = relayed(arrivals)
    assert sink.is_over
    assert unframed(sink.written) == b"".join(body for _, body in chunks)
    assert sink.relay.bytes_out == sum(len(body) for _, body in chunks)


def test_chunks_that_come_alone_pass_the_parser_by() -> None:
    bodies = [b"data: %d\n\n" % number for number in range(10)]
    sink = relayed([HEAD + framed(bodies[0]), *map(framed, bodies[1:]), LAST_CHUNK])
    assert sink.parsed == 2  # the first and the last
    assert unframed(sink.written) == b"".join(bodies)


def test_sizes_that_come_alone_are_no_head_without_an_end() -> None:
    count = REPLY_HEAD_BYTES_MAX // len(b"1\r\n") + 1
    sink = relayed([HEAD + framed(b"a"), *([b"1\r\n", b"a\r\n"] * count), LAST_CHUNK])
    assert (sink.is_over, sink.relay.bytes_out) == (True, count + 1)


def test_half_a_size_is_not_forgotten() -> None:
    """The rest of it may look like a whole chunk."""
    first, body = framed(b"a"), b"hello\r\n" + b"x" * 14
    assert len(body) == 0x15
    arrivals = [HEAD + first, first + b"1", b"5\r\nhello\r\n", b"x" * 14 + b"\r\n", LAST_CHUNK]
    assert unframed(relayed(arrivals).written) == b"aa" + body
