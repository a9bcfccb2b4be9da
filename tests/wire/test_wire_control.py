"""The control protocol's frames: round trips, any cut, and what a hostile side may send."""

import re
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.block_set import BUCKETS
from pointsman.core.events import IndexTrust, ModelCard, NodeFacts, NodeSignals, NodeSpec
from pointsman.core.ids import HASH_MASK, ModelName, NodeName
from pointsman.wire import control
from pointsman.wire.control import (
    FRAME_BYTES_MAX,
    GREETING_BYTES_MAX,
    Ack,
    AgentFrame,
    Announce,
    Bucket,
    Challenge,
    Compare,
    ControlError,
    EngineBeat,
    Farewell,
    Heartbeat,
    Hello,
    MalformedFrame,
    OversizeFrame,
    Refusal,
    SchedulerFrame,
    Signals,
    UnknownVersion,
    Welcome,
    encode,
    frames_from_agent,
    frames_from_scheduler,
    from_wire,
    pack_hashes,
    to_wire,
    unpack_hashes,
)

HASHES = st.lists(st.integers(0, HASH_MASK), max_size=20)
NUMBERS = st.integers(0, (1 << 53) - 1)
ENGINES = st.integers(0, 63)
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,10}\Z")
RATIOS = st.none() | st.floats(0, 1)

SIGNALS = st.builds(
    Signals,
    running=st.none() | NUMBERS,
    waiting=st.none() | NUMBERS,
    kv_usage=RATIOS,
    gpu_busy=RATIOS,
    gpu_temperature_c=st.none() | st.floats(-50, 200),
)
BEATS = st.builds(
    EngineBeat,
    engine=ENGINES,
    incarnation=NUMBERS,
    trust=st.sampled_from(IndexTrust),
    blocks=NUMBERS,
    digest=st.integers(0, HASH_MASK),
    stored=HASHES.map(pack_hashes),
    removed=HASHES.map(pack_hashes),
    age_ms=NUMBERS,
    signals=st.none() | SIGNALS,
    healthy=st.none() | st.booleans(),
    detail=st.text(max_size=30),
    draining=st.booleans(),
)
SPECS = st.builds(
    NodeSpec, name=NAMES.map(NodeName), url=st.text(max_size=20), pool=st.text(max_size=9)
)
FACTS = st.builds(
    NodeFacts,
    kind=st.text(max_size=9),
    models=st.lists(st.builds(ModelCard, NAMES.map(ModelName)), max_size=3).map(tuple),
    kv_blocks=st.none() | NUMBERS,
    running_max=st.none() | NUMBERS,
)
FROM_AGENT: st.SearchStrategy[AgentFrame] = st.one_of(
    st.builds(
        Hello,
        agent=NAMES,
        nonce=st.binary(min_size=16, max_size=64),
        proof=st.binary(max_size=32),
        software=st.text(max_size=9),
    ),
    st.builds(Announce, engine=ENGINES, incarnation=NUMBERS, spec=SPECS, facts=st.none() | FACTS),
    st.builds(Heartbeat, seq=NUMBERS, engines=st.lists(BEATS, max_size=3).map(tuple)),
    st.builds(
        Bucket,
        engine=ENGINES,
        incarnation=NUMBERS,
        bucket=st.integers(0, BUCKETS - 1),
        hashes=HASHES.map(pack_hashes),
        more=st.booleans(),
    ),
    st.builds(Farewell, gone=st.booleans()),
)
FROM_SCHEDULER: st.SearchStrategy[SchedulerFrame] = st.one_of(
    st.builds(Challenge, nonce=st.binary(min_size=16, max_size=64), wants_proof=st.booleans()),
    st.builds(Welcome, proof=st.binary(max_size=32)),
    st.builds(Ack, seq=NUMBERS),
    st.builds(
        Compare,
        engine=ENGINES,
        incarnation=NUMBERS,
        digests=st.binary(min_size=8 * BUCKETS, max_size=8 * BUCKETS),
    ),
    st.builds(Refusal, detail=st.text(max_size=30), engine=st.none() | ENGINES),
)


@given(st.lists(FROM_AGENT, max_size=4), st.integers(1, 40))
def test_frames_of_agents_come_out_as_they_went_in(frames: list[AgentFrame], size: int) -> None:
    reader = frames_from_agent()
    data = b"".join(map(encode, frames))
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == frames


@given(st.lists(FROM_SCHEDULER, max_size=4))
def test_frames_of_schedulers_come_out_as_they_went_in(frames: list[SchedulerFrame]) -> None:
    assert frames_from_scheduler().feed(b"".join(map(encode, frames))) == frames


def test_a_cut_at_every_byte_changes_nothing() -> None:
    frames: list[AgentFrame] = [
        Farewell(),
        Heartbeat(1, (EngineBeat(0, 1, stored=pack_hashes([1, 2])),)),
    ]
    data = b"".join([encode(frame) for frame in frames])
    for cut in range(len(data) + 1):
        reader = frames_from_agent()
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == frames


@given(st.binary(max_size=60))
def test_noise_is_an_error_or_waits_for_more(noise: bytes) -> None:
    reader = frames_from_agent()
    try:
        frames = reader.feed(noise)
    except ControlError as error:
        with pytest.raises(type(error)):
            reader.feed(b"")
    else:
        assert frames == []


@given(FROM_AGENT, st.data())
def test_a_flipped_byte_breaks_nothing_but_the_frame(
    frame: AgentFrame, data: st.DataObject
) -> None:
    raw = bytearray(encode(frame))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with suppress(ControlError):
        frames_from_agent().feed(bytes(raw))


def raw_frame(body: object, version: int = control.VERSION) -> bytes:
    encoded = msgspec.msgpack.encode(body)
    return (len(encoded) + 1).to_bytes(4) + bytes((version,)) + encoded


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (raw_frame(["farewell"], version=2), UnknownVersion),
        ((FRAME_BYTES_MAX).to_bytes(4), OversizeFrame),
        ((0).to_bytes(4) + b"\1", OversizeFrame),
        (b"GET / HTTP/1.1\r\n\r\n", OversizeFrame),
        (raw_frame(["nonsense"]), MalformedFrame),
        (raw_frame({"kind": "farewell"}), MalformedFrame),
        (raw_frame(["ack", 1]), MalformedFrame),  # a scheduler's, from an agent
        (raw_frame(["beat", -1]), MalformedFrame),
        (raw_frame(["beat", 1, [[64, 1]]]), MalformedFrame),
        (raw_frame(["beat", 1, [[0, 1, "sure"]]]), MalformedFrame),
        (raw_frame(["beat", 1, [[0, 1, "exact", 0, HASH_MASK + 1]]]), MalformedFrame),
        (raw_frame(["hello", "a b", bytes(16)]), MalformedFrame),
        (raw_frame(["hello", "a\n", bytes(16)]), MalformedFrame),
        (raw_frame(["hello", "a", b"short"]), MalformedFrame),
        (raw_frame(["bucket", 0, 1, BUCKETS, b""]), MalformedFrame),
        (b"\0\0\0\3\1\x91\xc1", MalformedFrame),
        (b"\0\0\0\1\1", MalformedFrame),
    ],
)
def test_what_is_wrong_is_named(data: bytes, error: type[ControlError]) -> None:
    reader = frames_from_agent()
    with pytest.raises(error):
        reader.feed(data)
    with pytest.raises(error):
        reader.feed(encode(Farewell()))


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1.0])
def test_numbers_that_are_none_are_refused(nonsense: float) -> None:
    beat = ["beat", 1, [[0, 1, "exact", 0, 0, b"", b"", 0, [None, None, nonsense]]]]
    with pytest.raises(MalformedFrame):
        frames_from_agent().feed(raw_frame(beat))


def test_what_is_too_long_is_refused_before_it_is_there() -> None:
    reader = frames_from_agent()
    with pytest.raises(OversizeFrame):
        reader.feed((GREETING_BYTES_MAX + 1).to_bytes(4))
    reader = frames_from_agent()
    reader.bytes_max = FRAME_BYTES_MAX
    assert reader.feed((GREETING_BYTES_MAX + 1).to_bytes(4)) == []


def test_a_frame_that_would_be_refused_is_not_made() -> None:
    with pytest.raises(OversizeFrame):
        encode(Hello("a", bytes(16), software="x" * FRAME_BYTES_MAX))


def test_a_later_version_s_further_fields_are_ignored() -> None:
    """How the protocol grows without a new version; and a missing one has its default."""
    reader = frames_from_agent()
    assert reader.feed(raw_frame(["farewell", True, "and more"])) == [Farewell(gone=True)]
    assert reader.feed(raw_frame(["farewell"])) == [Farewell()]
    assert reader.feed(raw_frame(["beat", 7, [[0, 1]]])) == [Heartbeat(7, (EngineBeat(0, 1),))]
    spec = NodeSpec(name=NodeName("e"), url="u")
    facts = {"kind": "k", "running_max": 4, "and_more": 1}
    announce = ["announce", 0, 1, {"name": "e", "url": "u"}, facts]
    told = Announce(0, 1, spec, NodeFacts(kind="k", running_max=4))
    assert reader.feed(raw_frame(announce)) == [told]


@given(HASHES)
def test_hashes_come_out_as_they_went_in(hashes: list[int]) -> None:
    assert unpack_hashes(pack_hashes(hashes)) == hashes


@pytest.mark.parametrize("data", [b"1234567", b"\xff" * 8])
def test_what_are_no_hashes_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        unpack_hashes(data)


def test_signals_travel_field_by_field() -> None:
    names = NodeSignals.__struct_fields__
    assert names == Signals.__struct_fields__, "a new signal goes to the end of both"
    signals = NodeSignals(**dict.fromkeys(names, 1))
    assert from_wire(to_wire(signals)) == signals
    assert from_wire(to_wire(NodeSignals())) == NodeSignals()
    with pytest.raises(MalformedFrame):
        to_wire(NodeSignals(running=-1))


PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


@pytest.mark.parametrize("frame", [*get_args(AgentFrame), *get_args(SchedulerFrame)])
def test_every_frame_is_documented_field_by_field(frame: type[msgspec.Struct]) -> None:
    """`| kind | fields | when |`, in the order that they have on the wire."""
    [row] = re.findall(rf"^\| `{frame.__struct_config__.tag}` \| (.*?) \|", PROTOCOL, re.MULTILINE)
    fields = [part.strip().partition(":")[0] for part in re.split("[,;]", row)]
    assert [field.removesuffix(" or nil") for field in fields] == list(frame.__struct_fields__)


@pytest.mark.parametrize("struct", [EngineBeat, Signals])
def test_every_array_is_documented_field_by_field(struct: type[msgspec.Struct]) -> None:
    assert ", ".join(struct.__struct_fields__) in PROTOCOL


def test_all_that_an_engine_says_of_itself_is_documented() -> None:
    assert ", ".join(f"`{name}`" for name in NodeFacts.__struct_fields__) in PROTOCOL


def test_the_bytes_that_the_documentation_shows() -> None:
    """docs/protocol.md has these; they may never change within a version."""
    beat = EngineBeat(
        engine=0,
        incarnation=1,
        trust=IndexTrust.EXACT,
        blocks=2,
        digest=3,
        stored=pack_hashes([1, 2]),
        age_ms=40,
        signals=Signals(running=4, waiting=0, kv_usage=0.5),
    )
    shown = [
        "00000040 0193a462 65617407 919c0001 a5657861 63740203 c4100100 00000000 00000200",
        "00000000 0000c400 289b0400 cb3fe000 00000000 00c0c0c0 c0c0c0c0 c0c0a0c2",
    ]
    assert encode(Heartbeat(7, (beat,))).hex(" ", -4) == " ".join(shown)
    assert encode(Ack(7)).hex(" ", -4) == "00000007 0192a361 636b07"
    assert "\n".join([*shown, "", "00000007 0192a361 636b07"]) in PROTOCOL
