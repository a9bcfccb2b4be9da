"""KV events as vLLM publishes them over ZMQ, and the replay of the last ones.

PUB: 3 frames a batch: topic, sequence number (8 bytes big-endian, from 0 at each engine start),
msgpack `[timestamp, events, data-parallel rank]`; one batch per step that had events. ROUTER on the
replay endpoint: the request is `["", first sequence number]`; the answers are
`["", topic, sequence number, payload]` for each buffered batch, then `["", "", 8 x 0xFF, ""]`.
(vllm/distributed/kv_events.py; event fields as of vLLM 0.32.)
"""

import contextlib
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from typing import assert_never

import msgspec
import xxhash
import zmq
import zmq.asyncio

from pointsman.engines.compute_model import CacheCleared, CacheEvent, Job, Removed, Stored
from pointsman.engines.simulated.options import EventEncoding, HashKind

BUFFER_BATCHES = 10_000  # vLLM's buffer_steps
SEND_HIGH_WATER = 100_000  # vLLM's hwm: a subscriber further behind loses batches
REPLAY_HIGH_WATER = 2 * BUFFER_BATCHES  # one full replay never meets the limit
END_SEQUENCE = b"\xff" * 8

WireHash = int | bytes


class AllClearedMap(
    msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="AllBlocksCleared"
):
    """The cache was dropped, vLLM >= 0.24."""


class BlockStoredArray(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="BlockStored"):
    """Blocks became reusable, older vLLM."""

    block_hashes: list[WireHash]
    parent_block_hash: WireHash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None
    medium: str


class BlockStoredMap(BlockStoredArray, frozen=True, gc=False, array_like=False, tag_field="type"):
    """Blocks became reusable, vLLM >= 0.24."""

    lora_name: str | None
    extra_keys: list[list[str] | None]
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"


class AllClearedArray(
    msgspec.Struct, frozen=True, gc=False, array_like=True, tag="AllBlocksCleared"
):
    """The cache was dropped, older vLLM."""


class EventEncoder:
    """Turns the compute model's cache events into vLLM's msgpack batches."""

    def __init__(
        self,
        *,
        encoding: EventEncoding,
        hashes: HashKind,
        block_size: int,
        loras: dict[str, int],
        rank: int,
    ) -> None:
        self._map = encoding is EventEncoding.MAP
        self._bytes = hashes is HashKind.BYTES
        self._block_size = block_size
        self._loras = loras
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()
        self._removed = self._removed_template()

    def encode(self, events: Sequence[CacheEvent], timestamp: float) -> bytes:
        """One batch: `[timestamp, events, rank]`."""
        encoded: list[msgspec.Struct | msgspec.Raw] = []
        for event in events:
            match event:
                case Stored():
                    encoded.append(self._stored(event))
                case Removed(hashes):
                    encoded.extend(self._removals(hashes))
                case CacheCleared():
                    encoded.append(AllClearedMap() if self._map else AllClearedArray())
                case _:
                    assert_never(event)
        return self._encoder.encode([timestamp, encoded, self._rank])

    def hash(self, block: int) -> WireHash:
        """A hash on the wire. Bytes end with the integer form's 8 bytes, as vLLM's do."""
        if not self._bytes:
            return block
        low = block.to_bytes(8, "big")
        return xxhash.xxh3_128_digest(low) + xxhash.xxh3_64_digest(low) + low

    def _removed_template(self) -> tuple[bytes, bytes]:
        """A BlockRemoved around its hash: an engine under pressure sends thousands of them."""
        mark = b"\xc4\x04hash"
        event: object = ["BlockRemoved", [mark[2:]], "GPU"]
        if self._map:
            fields = {"block_hashes": [mark[2:]], "medium": "GPU", "group_idx": 0}
            event = {"type": "BlockRemoved", **fields}
        before, _mark, after = self._encoder.encode(event).partition(mark)
        return before, after

    def _removals(self, hashes: list[int]) -> list[msgspec.Raw]:
        """vLLM sends one event per evicted block."""
        before, after = self._removed
        if self._bytes:
            packed = [self._encoder.encode(self.hash(block)) for block in hashes]
        else:
            packed = [b"\xcf" + block.to_bytes(8, "big") for block in hashes]
        return [msgspec.Raw(before + block + after) for block in packed]

    def _stored(self, event: Stored) -> msgspec.Struct:
        job, size = event.job, self._block_size
        last = event.first + event.count
        hashes = [self.hash(block) for block in job.hashes[event.first : last]]
        parent = self.hash(job.hashes[event.first - 1]) if event.first else None
        tokens = _pack_tokens(job.tokens[event.first * size : last * size])
        lora_id = self._loras.get(job.lora) if job.lora is not None else None
        if not self._map:
            return BlockStoredArray(hashes, parent, tokens, size, lora_id, "GPU")
        keys = [_extra_keys(job, index) for index in range(event.first, last)]
        return BlockStoredMap(hashes, parent, tokens, size, lora_id, "GPU", job.lora, keys)


class EventPublisher:
    """The PUB socket, the replay buffer and the ROUTER socket of one rank.

    `publish` never blocks: a subscriber that is too far behind loses batches, as with vLLM, and
    finds the gap by sequence number. `serve_replay` runs until it is cancelled.
    """

    def __init__(self, *, host: str, port: int, replay_port: int, topic: str) -> None:
        """Bind both sockets (0: to any free port). Raises zmq.ZMQError."""
        self.topic = topic
        self._topic = topic.encode()
        self._sequence = 0
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=BUFFER_BATCHES)
        self._context = zmq.asyncio.Context()
        self._pub = zmq.Socket(self._context, zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        try:
            self._pub.set_hwm(SEND_HIGH_WATER)
            self._router.set_hwm(REPLAY_HIGH_WATER)
            self.port = _bind(self._pub, host, port)
            self.replay_port = _bind(self._router, host, replay_port)
        except BaseException:
            self.close()
            raise

    @property
    def sequence(self) -> int:
        """The next batch's sequence number."""
        return self._sequence

    @property
    def buffered(self) -> int:
        """Batches that a replay could give."""
        return len(self._buffer)

    def publish(self, payload: bytes) -> None:
        """Send one batch to whoever subscribes, and keep it for replay."""
        number = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self._buffer.append((number, payload))
        with contextlib.suppress(zmq.Again):
            self._pub.send_multipart((self._topic, number, payload), zmq.NOBLOCK)

    def restart(self) -> None:
        """What a restarted engine process looks like: numbers from 0, nothing to replay."""
        self._sequence = 0
        self._buffer.clear()

    async def serve_replay(self) -> None:
        """Answer replay requests until cancelled; a malformed one gets no answer, as from vLLM."""
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                continue
            await self._replay(frames[0], frames[2])

    async def _replay(self, peer: bytes, first: bytes) -> None:
        for number, payload in tuple(self._buffer):
            if number >= first:  # equal lengths, big-endian: bytes compare as the numbers do
                await self._router.send_multipart((peer, b"", self._topic, number, payload))
        await self._router.send_multipart((peer, b"", b"", END_SEQUENCE, b""))

    def close(self) -> None:
        """Close both sockets at once; unsent batches are dropped."""
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._context.term()


def _pack_tokens(tokens: Sequence[int]) -> msgspec.Raw:
    """A msgpack array of uint32, without an integer object per token."""
    raw = array("I", tokens)
    if sys.byteorder == "little":
        raw.byteswap()
    data = raw.tobytes()
    packed = bytearray(b"\xce" * (5 * len(raw)))
    for index in range(4):
        packed[index + 1 :: 5] = data[index::4]
    return msgspec.Raw(b"\xdd" + len(raw).to_bytes(4, "big") + bytes(packed))


def _extra_keys(job: Job, block: int) -> list[str] | None:
    """vLLM's per-block extra keys: the adapter in every block, the salt in the first only."""
    keys = [job.lora] if job.lora is not None else []
    if block == 0 and job.salt is not None:
        keys.append(job.salt)
    return keys or None


def _bind(socket: "zmq.SyncSocket | zmq.asyncio.Socket", host: str, port: int) -> int:
    socket.bind(f"tcp://{host}:{port or '*'}")
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return int(endpoint.rpartition(":")[2])
