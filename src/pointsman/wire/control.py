"""The control protocol between an agent and the scheduler: docs/protocol.md describes it.

A frame is a length of 4 bytes (big-endian, of what follows), a byte of the protocol's version
and a msgpack array: the frame's kind, then its fields in the order that they have here.
Fields are only ever added at the end, with a default: a reader takes what it knows and
ignores the rest. What cannot be added like that makes a new version, which others refuse.

No sockets: `encode` makes bytes, `FrameReader.feed` takes them in any pieces. What the other
side sends is bounded before it is decoded, and checked as a whole before it is believed.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Final, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

from pointsman.core.block_set import BUCKETS
from pointsman.core.events import IndexTrust, NodeFacts, NodeSignals, NodeSpec
from pointsman.core.ids import HASH_BITS, HASH_CODE, NAME_PATTERN, BlockHash
from pointsman.decoding import Undecodable, decoded

VERSION: Final = 1

FRAME_BYTES_MAX: Final = 1 << 20
"""Of a frame without its length. Two chunks of hashes and some."""

GREETING_BYTES_MAX: Final = 4_096
"""Of a frame from someone who has not proved to know the secret."""

HASHES_MAX: Final = 1 << 16
"""Block hashes in a frame, over all its engines: 512 KiB."""

ENGINES_MAX: Final = 64
"""Engines of one agent: more than a machine has GPUs."""

_LENGTH_BYTES: Final = 4
_HASH_BYTES: Final = 8
_TOP_BYTE_BITS: Final = HASH_BITS - 8 * (_HASH_BYTES - 1)  # of a hash's last byte, the highest

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Text = Annotated[str, Meta(max_length=500)]
Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
EngineNumber = Annotated[int, Meta(ge=0, lt=ENGINES_MAX)]
Nonce = Annotated[bytes, Meta(min_length=16, max_length=64)]
Proof = Annotated[bytes, Meta(max_length=32)]
Hashes = Annotated[bytes, Meta(max_length=HASHES_MAX * _HASH_BYTES)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]


class ControlAddress(msgspec.Struct, frozen=True):
    """Where agents and scheduler meet: a Unix socket's path, else host and port."""

    host: str = "127.0.0.1"
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class ControlError(Exception):
    """What the other side sent is not to be used; the connection ends."""


class UnknownVersion(ControlError):  # noqa: N818 - named by what it is
    """It speaks another version of the protocol."""


class OversizeFrame(ControlError):  # noqa: N818
    """A frame is longer than may be."""


class MalformedFrame(ControlError):  # noqa: N818
    """A frame is of no known kind, or its fields make no sense."""


# --- frames: scheduler to agent ---------------------------------------------------------


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Kind and fields in an array. A field's place is part of the protocol."""


class Refusal(_Frame, frozen=True, tag="refusal"):
    """No, and why, for people. About one of the agent's engines, or with None about the
    connection, which ends then."""

    detail: Text
    engine: EngineNumber | None = None


class Challenge(_Frame, frozen=True, tag="challenge"):
    """The first frame on a connection: prove that you know the secret, if there is one."""

    nonce: Nonce
    wants_proof: bool


class Welcome(_Frame, frozen=True, tag="welcome"):
    """The agent is let in. `proof` shows that the scheduler knows the secret, too."""

    proof: Proof = b""


class Ack(_Frame, frozen=True, tag="ack"):
    """The heartbeat of that number was taken."""

    seq: Number


class Compare(_Frame, frozen=True, tag="compare"):
    """The digests of an engine's blocks differ. `digests` are the scheduler's, of every bucket,
    8 bytes each: the agent answers with a `Bucket` for each of which its own is another."""

    engine: EngineNumber
    incarnation: Number
    digests: Annotated[bytes, Meta(min_length=BUCKETS * _HASH_BYTES, max_length=BUCKETS * 8)]


# --- frames: agent to scheduler ---------------------------------------------------------


class Hello(_Frame, frozen=True, tag="hello"):
    """The answer to `Challenge`. A later connection of the same name replaces the earlier.

    `boot` is drawn when the agent starts: incarnations are told apart within one boot.
    """

    agent: Name
    nonce: Nonce
    proof: Proof = b""
    boot: Number = 0
    software: Text = ""


class Announce(_Frame, frozen=True, tag="announce"):
    """An engine, under the number that further frames name it by. Sent again when its facts
    change, and with a higher incarnation when it restarts. Without facts it has not described
    itself yet."""

    engine: EngineNumber
    incarnation: Number
    spec: NodeSpec
    facts: NodeFacts | None = None


class Signals(_Frame, frozen=True):
    """`core.events.NodeSignals` on the wire: None is missing, never zero."""

    running: Number | None = None
    waiting: Number | None = None
    kv_usage: Amount | None = None
    prefix_queries: Amount | None = None
    prefix_hits: Amount | None = None
    preemptions: Amount | None = None
    gpu_busy: Ratio | None = None
    gpu_memory_busy: Ratio | None = None
    gpu_temperature_c: Annotated[float, Meta(ge=-300, le=10_000)] | None = None
    gpu_power_w: Amount | None = None
    retransmit_ratio: Ratio | None = None


class EngineBeat(_Frame, frozen=True):
    """One engine in a heartbeat.

    `healthy` is the outcome of a probe since the last beat, None if there was none. `signals`
    were true `age_ms` before the frame was sent. `stored` and `removed` are the block hashes
    that came and left since the last beat (`pack_hashes`); `blocks` and `digest` are of all
    that it holds with these applied.
    """

    engine: EngineNumber
    incarnation: Number
    trust: IndexTrust = IndexTrust.HISTORY
    blocks: Number = 0
    digest: Annotated[int, Meta(ge=0, lt=1 << HASH_BITS)] = 0
    stored: Hashes = b""
    removed: Hashes = b""
    age_ms: Number = 0
    signals: Signals | None = None
    healthy: bool | None = None
    detail: Text = ""
    draining: bool = False


class Heartbeat(_Frame, frozen=True, tag="beat"):
    """Numbered from 1 on each connection. Answered by `Ack`."""

    seq: Number
    engines: Annotated[tuple[EngineBeat, ...], Meta(max_length=ENGINES_MAX)] = ()


class Bucket(_Frame, frozen=True, tag="bucket"):
    """All blocks of one bucket as of the last heartbeat; with `more`, in further frames too."""

    engine: EngineNumber
    incarnation: Number
    bucket: Annotated[int, Meta(ge=0, lt=BUCKETS)]
    hashes: Hashes = b""
    more: bool = False


class Farewell(_Frame, frozen=True, tag="farewell"):
    """The agent ends. Its engines have ended, too, if they are `gone`; else they serve on, and
    the scheduler looks at them itself."""

    gone: bool = False


AgentFrame = Hello | Announce | Heartbeat | Bucket | Farewell
SchedulerFrame = Challenge | Welcome | Ack | Compare | Refusal

F = TypeVar("F")

_encoder = msgspec.msgpack.Encoder()


def encode(frame: AgentFrame | SchedulerFrame) -> bytes:
    """The frame's bytes. Raises OversizeFrame."""
    body = _encoder.encode(frame)
    length = len(body) + 1
    if length > FRAME_BYTES_MAX:
        raise OversizeFrame(f"a frame of {length} bytes; {FRAME_BYTES_MAX} are the most")
    return length.to_bytes(_LENGTH_BYTES) + bytes((VERSION,)) + body


class FrameReader(Generic[F]):
    """Bytes to frames of one direction. `bytes_max` may be raised once the sender is known.

    After an error nothing further is read: `feed` raises it again.
    """

    def __init__(self, decoder: "msgspec.msgpack.Decoder[F]", bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._decode = decoder.decode
        self._buffer = bytearray()
        self._error: ControlError | None = None

    def feed(self, data: bytes) -> list[F]:
        """The frames that `data` completes, in order. Raises ControlError: frames before the
        one that is wrong are then lost, as is the connection."""
        if self._error is not None:
            raise self._error
        self._buffer += data
        try:
            return self._frames()
        except ControlError as error:
            self._error = error
            self._buffer.clear()
            raise

    def _frames(self) -> list[F]:
        frames: list[F] = []
        buffer, start = self._buffer, 0
        while len(buffer) - start >= _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            length = int.from_bytes(buffer[start:begin])
            if not 0 < length <= self.bytes_max:
                raise OversizeFrame(f"a frame of {length} bytes; 1 to {self.bytes_max} may be")
            if len(buffer) > begin and buffer[begin] != VERSION:
                raise UnknownVersion(f"version {buffer[begin]}; this side speaks {VERSION}")
            if len(buffer) - begin < length:
                break
            start = begin + length
            frames.append(self._frame(bytes(buffer[begin + 1 : start])))
        del buffer[:start]
        return frames

    def _frame(self, body: bytes) -> F:
        try:
            return decoded(self._decode, body)
        except Undecodable as error:
            raise MalformedFrame(str(error)) from None


def frames_from_agent() -> FrameReader[AgentFrame]:
    """What the scheduler reads: a greeting first."""
    return FrameReader(msgspec.msgpack.Decoder(AgentFrame), GREETING_BYTES_MAX)


def frames_from_scheduler() -> FrameReader[SchedulerFrame]:
    """What an agent reads."""
    return FrameReader(msgspec.msgpack.Decoder(SchedulerFrame), GREETING_BYTES_MAX)


# --- fields -----------------------------------------------------------------------------


def pack_hashes(hashes: Sequence[int]) -> bytes:
    """Block hashes, 8 bytes each, little-endian."""
    return _little_endian(array(HASH_CODE, hashes)).tobytes()


def unpack_hashes(data: bytes) -> list[BlockHash]:
    """The hashes again. Raises MalformedFrame."""
    if not data:
        return []
    if len(data) % _HASH_BYTES:
        raise MalformedFrame(f"{len(data)} bytes are no hashes of {_HASH_BYTES} each")
    if max(data[_HASH_BYTES - 1 :: _HASH_BYTES]) >> _TOP_BYTE_BITS:
        raise MalformedFrame(f"a block hash has more than {HASH_BITS} bits")
    return cast("list[BlockHash]", _little_endian(array(HASH_CODE, data)).tolist())


def unpack_digests(data: bytes) -> Sequence[int]:
    """The digests of a `Compare`, one for each bucket."""
    return _little_endian(array(HASH_CODE, data)).tolist()


def _little_endian(hashes: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes


def to_wire(signals: NodeSignals) -> Signals:
    """Raises MalformedFrame for what no engine means, like less than no requests."""
    try:
        return msgspec.convert(signals, Signals, from_attributes=True)
    except msgspec.ValidationError as error:
        raise MalformedFrame(str(error)) from None


def from_wire(signals: Signals) -> NodeSignals:
    return msgspec.convert(signals, NodeSignals, from_attributes=True)
